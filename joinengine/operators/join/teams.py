"""Gathers the tuples that arrive at a team of instances, sorted, in pieces that fit into memory.

A *team* is several instances of a task that are processed together; each has a *seat* in it
(`joinengine.kernels.seating`). An instance with many tuples is a team of one: it would gain nothing
from a larger team, which would need more memory.

Law: each tuple that arrives at an instance of the team is in one piece, with the seat of that
instance.
Cost: per tuple one sort and one gather; in a team of several one more gather.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from joinengine.exchange.blocks import PIECE_PART, BlockReader, Piece, Tuples, packed
from joinengine.kernels.comparing import latest_time
from joinengine.kernels.hashing import Words, first_word
from joinengine.kernels.probing import Ints, expand_ranges
from joinengine.kernels.seating import MOST_SEATS, Seats, row_bounds, seated_order
from joinengine.layouts.versions import AnyRouter
from joinengine.model.keys import U_BITS, Side
from joinengine.operators.base import OperatorTask
from joinengine.operators.desk import Desk
from joinengine.operators.join.join_spec import JoinSpec
from joinengine.operators.join.watchers import Watchers
from joinengine.routing.routes import (
    BACKUP,
    KEPT,
    STORE,
    Flags,
    Instances,
    probe_flag,
    watch_flag,
)

#: At most this many tuples, of both sides together, arrive at a team of several instances.
TEAM_ROWS = 1 << 15


class SortedTuples(NamedTuple):
    """Tuples of one side that have arrived at a team in this batch, sorted by seat and word.

    `bounds`: (seats + 1,) where the tuples of each seat begin, and how many there are.
    """

    words: Words
    flags: Flags
    columns: pa.RecordBatch
    times: Ints | None
    seats: Seats
    bounds: Ints


class Arrivals:
    """The tuples that arrive at the instances of one join task."""

    def __init__(
        self, spec: JoinSpec, task: OperatorTask, desk: Desk, watchers: Watchers | None
    ) -> None:
        self._spec = spec
        self._task = task
        self._timed = desk.timed
        self._readers: list[BlockReader] = [desk.reader(blocks) for blocks in task.blocks]
        self._watchers = watchers

    def teams(self, *, alone: bool) -> list[tuple[int, ...]]:
        """The hosted instances in teams, ascending; `alone`: each by itself."""
        hosted = self._task.header.hosted
        if alone or len(hosted) == 1:
            return [(instance,) for instance in hosted]
        rows = [_rows(reader, hosted) for reader in self._readers]
        size = sum(_row_bytes(reader) * n for reader, n in zip(self._readers, rows, strict=True))
        # Four copies of a team's pieces are in memory (see `at`).
        part = np.maximum(sum(rows) / TEAM_ROWS, 4.0 * size / self._task.memory_bytes)
        teams, team, full = list[tuple[int, ...]](), list[int](), 0.0
        for instance, more in zip(hosted, part.tolist(), strict=True):
            if team and (full + more > 1 or len(team) == MOST_SEATS):
                teams.append(tuple(team))
                team, full = [], 0.0
            team.append(instance)
            full += more
        return [*teams, tuple(team)] if team else teams

    def at(self, team: Sequence[int], side: Side) -> Iterator[tuple[SortedTuples, bool]]:
        """The arrived tuples of a side, in sorted pieces that fit; the flag marks the last one."""
        with self._timed("exchange"):
            arriving = _gathered(self._readers[side], team)
        if self._task.stored.lost:
            (instance,) = team
            own_pieces = [piece for piece, _ in arriving]
            arriving = [(piece, None) for piece in self._inherited(instance, side, own_pieces)]
        packs = list(packed(arriving, self._task.memory_bytes // PIECE_PART))
        for number, pieces in enumerate(packs, start=1):
            with self._timed("sort"):
                arrived = self._sorted(team, side, pieces)
            if len(arrived.words):
                yield arrived, number == len(packs)

    def _inherited(
        self, instance: int, side: Side, own_pieces: Sequence[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        """The deliveries that would have arrived if tuples had been routed after the loss.

        A lost instance keeps its tuples as backups. At the new homes of its keys, these tuples have
        arrived as backups; their probes were sent to the lost instance.
        """
        stored = self._task.stored
        if instance in stored.lost:
            return [
                _flagged(piece, np.minimum(_flags(piece) & KEPT, 1) * BACKUP)
                for piece in own_pieces
            ]
        pieces = [_flagged(piece, self._promoted(instance, side, piece)) for piece in own_pieces]
        for lost in stored.lost:
            for piece in self._readers[side].slices(lost):
                flags = self._probes_of(instance, side, piece)
                probing = flags > 0
                if probing.any():
                    pieces.append(_flagged(piece, flags).filter(pa.array(probing)))
        return pieces

    def _promoted(self, instance: int, side: Side, piece: pa.RecordBatch) -> Flags:
        """The flags of tuples; backups whose home is now `instance` become tuples to store."""
        flags = _flags(piece)
        words = piece.column(0).to_numpy(zero_copy_only=True)
        router = self._task.stored.router
        assert router is not None
        is_home = ((flags & BACKUP) > 0) & (_homes(router, side, words) == instance)
        return np.where(is_home, flags ^ BACKUP | STORE, flags).astype(flags.dtype)

    def _probes_of(self, instance: int, side: Side, piece: pa.RecordBatch) -> Flags:
        """The flags of the probes sent to a lost instance that now go to `instance`."""
        words, flags, columns = Tuples.of([piece])
        keying = self._spec.keying
        several = None if keying.is_plain else keying.probed(side, columns)
        probes = np.zeros_like(flags)
        for version, router in enumerate(self._task.stored.routers):
            for number in range(keying.probes if router is not None else 0):
                assert router is not None
                probed = words
                if several is not None:
                    probed = first_word(several[number].hashes >> np.uint64(U_BITS))
                slot = version * keying.probes + number
                flag = flags & flags.dtype.type(probe_flag(slot))
                is_home = _homes(router, side, probed) == instance
                probes |= np.where(is_home, flag, 0).astype(flags.dtype)
        return probes

    def _sorted(self, team: Sequence[int], side: Side, pieces: Sequence[Piece]) -> SortedTuples:
        """The tuples to join, sorted. Gives watched tuples to their watchers."""
        with self._timed("exchange"):
            tuples = Tuples.of([piece for piece, _ in pieces])
            seats = None
            if len(team) > 1:
                seats = np.concatenate(
                    [piece_seats for _, piece_seats in pieces if piece_seats is not None]
                )
        if self._watchers is not None and side in self._spec.watched:
            tuples, seats = self._joining(team, side, tuples, seats)
        order = seated_order(tuples.words, seats)
        columns = tuples.columns.take(pa.array(order))
        seats = None if seats is None else seats[order]
        names = self._spec.times(side)
        times = latest_time(columns, names) if names else None
        bounds = row_bounds(seats, len(order), len(team))
        return SortedTuples(tuples.words[order], tuples.flags[order], columns, times, seats, bounds)

    def _joining(
        self, team: Sequence[int], side: Side, tuples: Tuples, seats: Seats
    ) -> tuple[Tuples, Seats]:
        """The tuples of a watched side, without those that arrived only for watchers.

        Gives watched tuples to their watchers.
        """
        assert self._watchers is not None
        flag = watch_flag(len(self._task.stored.versions), self._spec.keying.probes)
        words, flags, columns = tuples
        watched, joining = np.flatnonzero(flags & flag), (flags & (flag - 1)) > 0
        if len(watched):
            with self._timed("watch"):
                if seats is not None:
                    watched = watched[np.argsort(seats[watched], kind="stable")]
                bounds = row_bounds(
                    None if seats is None else seats[watched], len(watched), len(team)
                )
                kept = columns.take(pa.array(watched))
                for seat in np.flatnonzero(np.diff(bounds)).tolist():
                    start, stop = bounds[seat : seat + 2].tolist()
                    self._watchers.arrive(team[seat], side, kept.slice(start, stop - start))
        if joining.all():
            return tuples, seats
        left = Tuples(words[joining], flags[joining], columns.filter(pa.array(joining)))
        return left, None if seats is None else seats[joining]


def _rows(reader: BlockReader, instances: Sequence[int]) -> Ints:
    """(n,) instances -> (n,) how many tuples arrive at each."""
    wanted = np.asarray(instances, np.int64)
    counts = np.zeros(len(wanted), np.int64)
    for bounds, _ in reader.chunks():
        # After a shrink, an instance may remain only as a watcher: blocks of an unwatched side have
        # no slice for it.
        present = np.flatnonzero(wanted + 1 < len(bounds))
        counts[present] += bounds[wanted[present] + 1] - bounds[wanted[present]]
    return counts


def _row_bytes(reader: BlockReader) -> float:
    """The mean bytes of a tuple; 0 if there are none."""
    batches = [batch for _, batch in reader.chunks()]
    rows = sum(batch.num_rows for batch in batches)
    return sum(batch.nbytes for batch in batches) / rows if rows else 0.0


def _gathered(reader: BlockReader, team: Sequence[int]) -> list[Piece]:
    """The rows for a team, a piece from each record batch that has any, in the order of the seats.

    Rows are copied unless the team has one instance.
    """
    if len(team) == 1:
        return [(piece, None) for piece in reader.slices(team[0])]
    pieces, wanted = list[Piece](), np.asarray(team, np.int64)
    for bounds, batch in reader.chunks():
        seats = np.flatnonzero(wanted + 1 < len(bounds))
        starts = bounds[wanted[seats]]
        sizes = bounds[wanted[seats] + 1] - starts
        rows = expand_ranges(starts, sizes)
        if len(rows):
            taken = batch.take(pa.array(rows))
            pieces.append((taken, np.repeat(seats, sizes).astype(np.uint16)))
    return pieces


def _flags(piece: pa.RecordBatch) -> Flags:
    flags: Flags = piece.column(1).to_numpy(zero_copy_only=True)
    return flags


def _homes(router: AnyRouter, side: Side, words: Words) -> Instances:
    """(n,) words of keys that are whole -> (n,) their homes."""
    deliveries = router.homes(side, words, np.zeros(len(words), np.uint16))
    homes: Instances = deliveries.instances[deliveries.flags == STORE]
    return homes


def _flagged(piece: pa.RecordBatch, flags: Flags) -> pa.RecordBatch:
    """A slice of a block with `flags` in place of its own."""
    field, kind = piece.schema.field(1), piece.schema.field(1).type
    return piece.set_column(1, field, pa.array(flags, kind))
