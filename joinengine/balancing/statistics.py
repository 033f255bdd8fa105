"""The counts that tasks report, interval by interval.

Why: a planner sees numbers, never tuples. Per instance, side and interval a task reports exact
counts for the keys that could unbalance it, and one sum for all other keys.

Which keys: those in the routing table, and those with more than 1/H of the tuples that an instance
stored from either side (so at most 2 H = 8192 of them), of the pairs that it compared or of its
results. Lighter keys cannot unbalance an instance: if all its keys were that light, hashing would
leave it within 1/sqrt(H) = 1.6 % of the mean.
The held tuples of keys that earlier intervals reported are counted too, so that the newest interval
has the state of every key that a planner may move (`counting`).
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import distinct, numbered
from joinengine.model.keys import Side
from joinengine.routing.base_functions import Base
from joinengine.routing.holdings import backups_of, fragments_of
from joinengine.routing.table import RoutingTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: If NOISE_AMONG instances expect n tuples each, one of them receives n + NOISE_SIGMAS * sqrt(n) by
#: chance in one interval of a hundred. With more instances, this limit is higher (`noise`).
NOISE_SIGMAS, NOISE_AMONG = 3.0, 8
#: H: a key is reported if it has more than 1/H of an instance's tuples of a side.
HEAVY_PART = 4096
#: A light report has at most MOST_LIGHT heavy keys per side and instance. A sparing one has only
#: keys with more than 1/LIGHT_PART of the tuples or pairs: no lighter key alone unbalances it.
MOST_LIGHT, LIGHT_PART = 32, 64
#: This many tuples of a side, or pairs, cost an instance about 1.5 ms, of which a plan would save a
#: part; counting keys costs half a millisecond or more. So with fewer tuples, a sparing report is
#: empty, unless they are ABOVE times the last mean of an instance, and at least LEAST_TUPLES.
FEW_TUPLES, FEW_PAIRS = 4000, 80_000
ABOVE, LEAST_TUPLES = 1.25, 1000

_WORK = "work_"


class KeyCounts(NamedTuple):
    """Counts of single keys, one row per (instance, side, key).

    `probed`: tuples of the side that have probed for the key; `candidates`, `results`: the pairs
    that they were compared in, and that they made. All three are empty if work is not weighed.
    `backups`: how many backups the predicates of service levels give a key (0: no predicate names
    it); empty without such predicates.
    """

    instances: Ints
    sides: Ints
    hashes: Words
    stored: Ints
    held: Ints
    probed: Ints = np.zeros(0, np.int64)
    candidates: Ints = np.zeros(0, np.int64)
    results: Ints = np.zeros(0, np.int64)
    backups: Ints = np.zeros(0, np.int64)

    @classmethod
    def empty(cls) -> KeyCounts:
        """No key."""
        none = np.empty(0, np.int64)
        return cls(none, none, np.empty(0, np.uint64), none, none)

    @classmethod
    def concat(cls, parts: Sequence[KeyCounts]) -> KeyCounts:
        """All rows of `parts`."""
        if not parts:
            return cls.empty()
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Prices(NamedTuple):
    """The prices of work at the end of an interval; the fields are as in `Work`."""

    costs: Floats
    hosts: int
    turn_s: float


class Work(NamedTuple):
    """The work of the keys and the instances of an operator in an interval, and what it costs.

    `probed`, `candidates`, `results` (2, K): per side of the probing tuples and key, the tuples
    (each once), the pairs compared and the results. `done` (5, N): per instance, the tuples routed,
    stored and probing, the candidates and the results. `others` (5, N): the part of `done` by keys
    that are not reported. `costs` (5,): seconds for each of the five. `hosts`: how many tasks have
    hosted the instances. `turn_s`: seconds that a task needs even without tuples.
    """

    probed: Floats
    candidates: Floats
    results: Floats
    done: Floats
    others: Floats
    costs: Floats
    hosts: int
    turn_s: float = 0.0

    def seconds(self) -> Floats:
        """(N,) what the work of each instance costs."""
        return np.asarray(self.costs @ self.done)


class Interval(NamedTuple):
    """The counts of one operator in one interval.

    `hashes` (K,): the keys. `arrived`, `held` (2, K): per side, the tuples that arrived, and those
    in the state after the interval, each tuple once. `rest` (N,): the tuples of other keys that an
    instance stored, without backups; `backed` (N,): these backups, or empty if there are none.
    `stored`, `state` (2, N): the tuples that an instance stored in the interval, and holds after
    it; copies count. `tasks`: how many tasks routed the tuples. `holders` (2, P): pairs of a key
    (its place in `hashes`) and an instance that holds it. `named` (K,): the backups that predicates
    of service levels give; 0, or empty: no predicate names the key. `whole`: whether all heavy keys
    are there, not only the heaviest (MOST_LIGHT). `work`: None if planners balance tuples.
    """

    hashes: Words
    arrived: Floats
    held: Floats
    rest: Floats
    stored: Floats = np.zeros((2, 0))
    state: Floats = np.zeros((2, 0))
    tasks: int = 1
    holders: Ints = np.zeros((2, 0), np.int64)
    backed: Floats = np.zeros(0)
    named: Ints = np.zeros(0, np.int64)
    whole: bool = True
    work: Work | None = None

    @property
    def loaded(self) -> Words:
        """The keys with arrivals; the other keys were reported for their state alone."""
        return self.hashes[self.arrived.any(axis=0)]

    @property
    def unlisted(self) -> float:
        """The most tuples that a key missing from a light report may have brought."""
        if self.whole:
            return 0.0
        most = float(self.stored.sum(axis=0).max(initial=0.0))
        return most if most < FEW_TUPLES else most / MOST_LIGHT

    def to_bytes(self) -> bytes:
        """The counts as bytes that `from_bytes` reads."""
        buffer, fields = io.BytesIO(), self._replace(work=None)._asdict()
        del fields["work"]
        if self.work is not None:
            fields |= {f"{_WORK}{name}": array for name, array in self.work._asdict().items()}
        np.savez(buffer, **fields)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Interval:
        """The inverse of `to_bytes`."""
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            fields = {name: arrays[name] for name in cls._fields if name in arrays}
            work_arrays = {n.removeprefix(_WORK): arrays[n] for n in arrays if n.startswith(_WORK)}
        whole = bool(fields.get("whole", True))  # earlier versions had only whole reports
        work = None
        if work_arrays.keys() | {"turn_s"} == {*Work._fields}:  # an earlier version knew no turns
            numbers = {
                "hosts": int(work_arrays["hosts"]),
                "turn_s": float(work_arrays.get("turn_s", 0.0)),
            }
            work = Work(**work_arrays | numbers)
        return cls(**fields | {"tasks": int(fields["tasks"]), "whole": whole, "work": work})


def skew(loads: Floats | Ints) -> float:
    """Largest over mean; 1.0 if there is no load.

    >>> skew(np.array([2.0, 4.0]))
    1.3333333333333333
    """
    total = float(np.sum(loads))
    return float(np.max(loads)) * len(loads) / total if total else 1.0


def noise(load: float, among: int = NOISE_AMONG) -> float:
    """How far the greatest of `among` loads may exceed an expected `load` by chance, in tuples."""
    sigmas = math.sqrt(NOISE_SIGMAS**2 + 2 * math.log(max(among / NOISE_AMONG, 1.0)))
    return sigmas * math.sqrt(load)


def is_small(interval: Interval) -> bool:
    """Whether every instance had too little to do to gain by counting all keys."""
    work = interval.work
    pairs = 0.0 if work is None else float(work.done[3].max(initial=0.0))
    return float(interval.stored.max(initial=0.0)) < FEW_TUPLES and pairs < FEW_PAIRS


def few_after(history: Sequence[Interval]) -> int:
    """`Asked.few` of the batch after some intervals, in tuples of a side."""
    mean = float(history[-1].stored.mean(axis=1).max(initial=0.0)) if history else FEW_TUPLES
    return max(min(max(int(ABOVE * mean), LEAST_TUPLES), FEW_TUPLES), 1)


def loads_of(history: Sequence[Interval]) -> Floats:
    """(N,) the loads of instances in some intervals, in tuples.

    If work was weighed, they are the work, stated in tuples of equal cost.
    """
    tuples = np.sum([interval.stored.sum(axis=0) for interval in history], axis=0)
    works = [interval.work for interval in history if interval.work is not None]
    seconds = np.sum([work.seconds() for work in works], axis=0)
    if len(works) < len(history) or not seconds.sum() > 0:
        return np.asarray(tuples)
    return np.asarray(seconds * (tuples.sum() / seconds.sum()))


def parts_of(interval: Interval) -> Floats:
    """(K,) each key's part of all tuples stored, or of all work if it is weighed."""
    arrived, work = interval.arrived.sum(axis=0), interval.work
    total = float(interval.stored.sum())
    if work is not None and work.seconds().sum() > 0:
        done = (work.probed, work.candidates, work.results)
        amounts = np.stack([arrived, arrived, *(counts.sum(axis=0) for counts in done)])
        arrived, total = work.costs @ amounts, float(work.seconds().sum())
    return np.asarray(arrived / max(total, 1e-12))


def summarise(
    counts: KeyCounts,
    stored: Ints,
    state: Ints,
    table: RoutingTable,
    tasks: int,
    backed: tuple[Ints, Base] | None = None,
) -> Interval:
    """The reports of one interval, made under `table`; `stored`, `state` (2, N) as in `Interval`.

    `backed`: how many of the stored tuples are backups (2, N), and the base function; None: there
    are no backups. The result does not depend on the homes of a key, so intervals under different
    tables can be added.
    """
    hashes, where = known = numbered(counts.hashes)
    n = stored.shape[1]
    places = counts.sides * n + counts.instances
    reported = np.bincount(places, counts.stored, minlength=2 * n).reshape(2, n)
    arrived = _per_key(counts, counts.stored.astype(float), known, table)
    held = counts.held.astype(float)
    at_homes, rest = stored, np.zeros(0)
    if backed is None:
        held = _per_key(counts, held, known, table)
    else:
        # Backups may still hold expired tuples: runs expire whole, and backups have other runs.
        keys, instances, _ = fragments_of(hashes, table, backed[1])
        homes = np.zeros(len(hashes), np.int64)
        homes[keys] = instances
        held = np.where(counts.instances == homes[where], held, 0.0)
        _, held = _most_and_total(counts, held, known)
        at_homes = stored - backed[0]
        keys, instances = backups_of(hashes, table, backed[1])
        ours = np.bincount(instances, arrived.sum(axis=0)[keys], minlength=stored.shape[1])
        rest = np.maximum(backed[0].sum(axis=0) - ours, 0)
    return Interval(
        hashes,
        arrived,
        held,
        np.maximum(at_homes - reported, 0).sum(axis=0).astype(float),
        stored.astype(float),
        state.astype(float),
        tasks,
        _holders(counts, where, n),
        rest,
        _named(counts, where, len(hashes)),
    )


def weighed(
    interval: Interval,
    counts: KeyCounts,
    table: RoutingTable,
    base: Base | None,
    done: Floats,
    prices: Prices,
) -> Interval:
    """The interval that `summarise` has made of `counts` under `table`, with its work.

    `base`: the base function; None: the layout does not place by key. `done` as in `Work`.
    """
    known = numbered(counts.hashes)
    n, weights = done.shape[1], (counts.probed, counts.candidates, counts.results)
    probed, candidates, results = (
        column.astype(float) if len(column) else np.zeros(len(counts.hashes)) for column in weights
    )
    routed = np.maximum(probed, counts.stored)
    ours = np.stack(
        [
            np.bincount(counts.instances, some, n)
            for some in (routed, counts.stored, probed, candidates, results)
        ]
    )
    _, compared = _most_and_total(counts, candidates, known)
    _, made = _most_and_total(counts, results, known)
    if base is not None:
        keys, instances = backups_of(known[0], table, base)
        ours[:2, :n] += np.bincount(instances, interval.arrived.sum(axis=0)[keys], n)
    others = np.maximum(done - ours[:, :n], 0.0)
    probed = _probed(counts, probed, known, table)
    work = Work(probed, compared, made, done, others, *prices)
    return interval._replace(work=work)


def _probed(
    counts: KeyCounts, values: Floats, keys: tuple[Words, Ints], table: RoutingTable
) -> Floats:
    """(2, K) tuples per side and key that have probed, each once.

    A tuple probes all homes of its key. But under COPIED a tuple of the split side probes one home,
    and under GRID a tuple probes a line of cells.
    """
    most, total = _most_and_total(counts, values, keys)
    rows, places = table.columns.rows_in(keys[0])
    some = table.columns.copied[rows]
    sides, copied = table.columns.split_sides[rows[some]], places[some]
    most[sides, copied] = total[sides, copied]
    grids = places[table.columns.grid_columns[rows] > 0]
    most[:, grids] = total[:, grids]
    return _once_in_grids(most, table, rows, places)


def _named(counts: KeyCounts, where: Ints, n: int) -> Ints:
    """(K,) the backups that predicates give to each of `n` keys."""
    most, known = np.zeros(n, np.int64), len(counts.backups)
    np.maximum.at(most, where[:known], counts.backups)
    return most


def _holders(counts: KeyCounts, where: Ints, instances: int) -> Ints:
    """(2, P) keys and the instances that hold them, on any side, each pair once."""
    some = counts.held > 0
    pairs = distinct(where[some] * instances + counts.instances[some])
    return np.asarray(np.divmod(pairs, instances))


def _per_key(
    counts: KeyCounts, values: Floats, keys: tuple[Words, Ints], table: RoutingTable
) -> Floats:
    """(2, K) tuples per side and key, each counted once however many instances store it.

    `keys`: (K,) keys, and the key of each count.
    """
    most, total = _most_and_total(counts, values, keys)
    rows, places = table.columns.rows_in(keys[0])
    some = table.columns.copied[rows]
    others, copied = 1 - table.columns.split_sides[rows[some]], places[some]
    total[others, copied] = most[others, copied]
    return _once_in_grids(total, table, rows, places)


def _most_and_total(
    counts: KeyCounts, values: Floats, keys: tuple[Words, Ints]
) -> tuple[Floats, Floats]:
    """(2, K) per side and key the greatest value at an instance, and (2, K) the sum."""
    hashes, where = keys
    n, where = len(hashes), counts.sides * len(hashes) + where
    most = np.zeros((2, n))
    np.maximum.at(most.reshape(-1), where, values)
    return most, np.bincount(where, values, 2 * n).reshape(2, n).astype(float)


def _once_in_grids(total: Floats, table: RoutingTable, rows: Ints, places: Ints) -> Floats:
    """(2, K) tuples at all homes -> each once: under GRID a tuple is in all cells of its line.

    `rows` of the table are those of the keys `places`.
    """
    columns = table.columns.grid_columns[rows]
    some = np.flatnonzero(columns)
    homes = np.diff(table.columns.bounds)[rows[some]]
    total[Side.LEFT, places[some]] /= columns[some]
    total[Side.RIGHT, places[some]] /= homes // columns[some]
    return total
