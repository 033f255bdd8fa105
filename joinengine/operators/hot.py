"""Finds the heaviest keys of a task in one batch, with their values, for users who watch a query.

Why: planners know keys as hashes, and many layouts count no keys at all. A user wants to know which
customer or which page a key is. So each task reports the few keys that brought it most tuples, with
the value from a tuple of each.

Law: the number reported for a key is never more than the task stored. A key that brought more than
1/MOST_NAMED of a side's tuples to some instance, and is among the MOST_NAMED heaviest of the task,
is reported. A key that brought less than 1/LEAST_PART of both sides' tuples to each instance is
not. No value of a key makes a task fail.
Cost: some passes over the distinct keys of an instance, and for the whole task few gathered values:
some 4 ms of one core for half a million tuples of a hundred thousand keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from joinengine.exchange.blocks import Tuples
from joinengine.exchange.keying import Keying
from joinengine.kernels.bands import Bools
from joinengine.kernels.hashing import Words, first_word
from joinengine.kernels.probing import Ints, Needles, distinct, find, rows_among, rows_of_keys
from joinengine.kernels.seating import keys_of, seats_of
from joinengine.model.keys import Side
from joinengine.model.spelling import printable
from joinengine.state.run import OpenRun
from joinengine.wire.reports import HotKey

#: The most keys that a task reports, and the most characters of each.
MOST_NAMED = 32
MOST_TEXT = 64
#: Keys with less than 1/LEAST_PART of the tuples are of no interest, and naming them would be the
#: slowest step of a small batch.
LEAST_PART = 64

#: (K,) ascending key hashes -> the value of each as text; None: not known.
Texts = Callable[[Words], list[str | None]]


class HotKeys:
    """Gathers the heaviest keys of the instances of a task; `named`: with their values."""

    def __init__(self, *, named: bool) -> None:
        self._named = named
        #: (K,) ascending key hashes, and (2, K) how many tuples of each were stored, per side
        self._hashes = np.empty(0, np.uint64)
        self._rows = np.zeros((2, 0), np.int64)
        self._texts: dict[int, str] = {}

    def see(self, stored: Sequence[Needles], texts: Texts) -> None:
        """Take note of an instance; `stored`: per side, the keys that it stored in the batch."""
        heads = list[Words]()
        for keys in stored:
            counts = np.diff(keys.starts)
            top = _largest(counts)
            heads.append(keys.hashes[top[counts[top] * LEAST_PART >= keys.starts[-1]]])
        hashes = np.unique(np.concatenate(heads))
        rows = np.zeros((2, len(hashes)), np.int64)
        for side, keys in enumerate(stored):
            rows[side] = rows_of_keys(keys, hashes)
        self._add(hashes, rows, texts)

    def see_team(self, stored: Sequence[Needles], texts: Texts) -> None:
        """Take note of several instances; `stored`: seated keys, otherwise as in `see`."""
        keys = [keys_of(needles.hashes) for needles in stored]
        hashes = distinct(
            np.concatenate(
                [
                    keys_there[_heavy(needles)]
                    for keys_there, needles in zip(keys, stored, strict=True)
                ]
            )
        )
        rows = np.zeros((2, len(hashes)), np.int64)
        for side, (keys_there, needles) in enumerate(zip(keys, stored, strict=True)):
            present, at = rows_among(keys_there, hashes)
            rows[side] = np.bincount(at, np.diff(needles.starts)[present], len(hashes))
        self._add(hashes, rows, texts)

    def _add(self, hashes: Words, rows: Ints, texts: Texts) -> None:
        """Add the heaviest of (K,) ascending keys, with (2, K) tuples."""
        if not len(hashes):
            return
        top = _largest(rows.sum(axis=0))
        hashes, rows = hashes[top], rows[:, top]
        self._hashes, at = np.unique(np.concatenate([self._hashes, hashes]), return_inverse=True)
        all_rows = np.concatenate([self._rows, rows], axis=1)
        self._rows = np.stack([np.bincount(at, side).astype(np.int64) for side in all_rows])
        if self._named:
            self._name(hashes, texts)

    def heaviest(self) -> list[HotKey]:
        """The heaviest keys of all instances seen, heaviest first."""
        top = np.sort(_largest(self._rows.sum(axis=0)))
        top = top[np.argsort(-self._rows[:, top].sum(axis=0), kind="stable")]
        keys = zip(self._hashes[top].tolist(), *self._rows[:, top].tolist(), strict=True)
        return [HotKey(hash_, (left, right), self._texts.get(hash_)) for hash_, left, right in keys]

    def _name(self, hashes: Words, texts: Texts) -> None:
        """Note the values of the keys of an instance that are among the heaviest so far.

        Any other key can join the heaviest only through a later instance, which has its value.
        """
        top = self._hashes[_largest(self._rows.sum(axis=0))].tolist()
        unnamed = np.array(sorted({*top} & {*hashes.tolist()} - self._texts.keys()), np.uint64)
        if len(unnamed):
            spelled = zip(unnamed.tolist(), texts(unnamed), strict=True)
            self._texts |= {hash_: text for hash_, text in spelled if text is not None}


def texts_in(keying: Keying, runs: Sequence[Iterable[OpenRun]]) -> Texts | None:
    """Gives the values of keys, from the tuples of `runs` (per side, newest last).

    Under a band, a hash stands for a cell, and its text is the value of one tuple in it. None:
    there are no keys, under any other predicate.
    """
    if not keying.needed(Side.LEFT):
        return None

    def texts(hashes: Words) -> list[str | None]:
        spelled: list[str | None] = [None] * len(hashes)
        for places, side, columns, rows in tuples_of(keying, runs, hashes):
            values = texts_of(keying, side, columns, rows)
            for place, text in zip(places.tolist(), values, strict=True):
                spelled[place] = text
        return spelled

    return texts


def texts_of_team(
    keying: Keying, stored: Sequence[Needles], spines: Sequence[Sequence[Sequence[OpenRun]]]
) -> Texts | None:
    """Gives the values of keys, from the runs of a team; `spines`: per side and seat, newest last.

    `stored`: per side, the seated keys that the batch stored, which say where a key is.
    """
    if not keying.needed(Side.LEFT):
        return None

    def texts(hashes: Words) -> list[str | None]:
        spelled: list[str | None] = [None] * len(hashes)
        for keys in stored:
            rows, places = rows_among(keys_of(keys.hashes), hashes)
            seats = seats_of(keys.hashes[rows])
            for seat in distinct(seats).tolist():
                missing = [p for p in places[seats == seat].tolist() if spelled[p] is None]
                if not missing:
                    continue
                texts_at_seat = texts_in(keying, [by_seat[seat] for by_seat in spines])
                assert texts_at_seat is not None
                for place, text in zip(missing, texts_at_seat(hashes[missing]), strict=True):
                    spelled[place] = text
        return spelled

    return texts


def tuples_of(
    keying: Keying, runs: Sequence[Iterable[OpenRun]], hashes: Words
) -> Iterator[tuple[Ints, Side, pa.RecordBatch, Ints]]:
    """Finds one tuple of each of (K,) ascending `hashes` in `runs` (per side, newest last).

    Yields places among the hashes, each at most once, with the side, columns and row of the tuple.
    """
    missing = np.arange(len(hashes))
    for side, spine in enumerate(runs):
        names = keying.needed(Side(side))
        for run in reversed(list(spine)):
            if not (len(missing) and names and set(names) <= set(run.columns.schema.names)):
                break
            hits = find(run.words, Needles(hashes[missing], np.arange(len(missing) + 1)))
            yield missing[hits.needles], Side(side), run.columns, hits.lower
            missing = np.delete(missing, hits.needles)


def texts_at(keying: Keying, order: Ints, words: Words, arrived: Sequence[Tuples]) -> Texts | None:
    """Gives the values of keys, from arrived tuples; `order` (n,) sorts these to `words` (n,).

    None: there are no keys, as in an aggregation over all tuples.
    """
    if not keying.needed(Side.LEFT):
        return None

    def texts(hashes: Words) -> list[str | None]:
        rows = order[np.searchsorted(words, first_word(hashes))]
        starts = np.cumsum([0, *(len(tuples.words) for tuples in arrived)])
        pieces = np.searchsorted(starts, rows, side="right") - 1
        spelled: list[str | None] = [None] * len(hashes)
        for piece in distinct(pieces).tolist():
            places = np.flatnonzero(pieces == piece)
            own_rows = rows[places] - starts[piece]
            values = texts_of(keying, Side.LEFT, arrived[piece].columns, own_rows)
            for place, text in zip(places.tolist(), values, strict=True):
                spelled[place] = text
        return spelled

    return texts


def texts_of(keying: Keying, side: Side, columns: pa.RecordBatch, rows: Ints) -> list[str | None]:
    """The key of each of `rows` as text; None: some part of it has no text."""
    near = keying.distance is not None and keying.distance.column(side)
    columns_spelled = list[list[str | None]]()
    for name in keying.needed(side):
        values = columns.column(name).take(pa.array(rows))
        texts = [_spelled(value) for value in values]
        columns_spelled.append([t and f"near {t}" for t in texts] if name == near else texts)
    return [
        None if None in parts else _cut(", ".join(map(str, parts)))
        for parts in zip(*columns_spelled, strict=True)
    ]


def _spelled(value: pa.Scalar) -> str | None:
    """A value as one line of text; None: Python lacks it, such as a date in the year 20,000.

    Unprintable characters are escaped, since keys go into logs and terminals.
    """
    try:
        text = "NULL" if not value.is_valid else str(value.as_py())
    except UnicodeDecodeError:  # Arrow's strings may hold any bytes
        text = value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    except (ArithmeticError, NotImplementedError, ValueError):
        return None
    return printable(text)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


def _heavy(stored: Needles) -> Bools:
    """(n,) which of the seated keys have at least 1/LEAST_PART of the tuples of their seat."""
    counts, seats = np.diff(stored.starts), seats_of(stored.hashes)
    return np.asarray(counts * LEAST_PART >= np.bincount(seats, counts)[seats])


def _largest(counts: Ints) -> Ints:
    """The places of the MOST_NAMED greatest counts, in any order."""
    if len(counts) <= MOST_NAMED:
        return np.arange(len(counts))
    return np.argpartition(counts, -MOST_NAMED)[-MOST_NAMED:]
