"""The join task: everything that happens to a set of instances in one batch.

An instance works in this order (the pairing rule, docs/decisions/0001): it places state that moved
in; left tuples probe right state of earlier batches; left tuples are stored; right tuples probe
left state, this batch's included; right tuples are stored. Runs are merged last, when no tuple
probes them any more. If one side is a table, the table goes first and the stream is not stored,
since no later tuple could match it.

Law: any matching pair is produced exactly once, by the later tuple at the single home of the
earlier. Cost: per tuple one sort and one gather; per distinct key one binary search per run; per
pair one comparison and one gather.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from joinengine.exchange.blocks import Tuples
from joinengine.kernels.comparing import latest_time
from joinengine.kernels.expanding import expand_pairs, rows_of_hits
from joinengine.kernels.hashing import Words, first_word
from joinengine.kernels.probing import find, group_keys, live_rows, sort_order
from joinengine.layouts.versions import AnyRouter
from joinengine.model.keys import U_BITS, Side
from joinengine.operators.base import OperatorTask
from joinengine.operators.desk import Desk
from joinengine.operators.hot import texts_in
from joinengine.operators.join.matching import PAIRS, Matcher, SortedTuples
from joinengine.operators.join.shelf import StateShelf
from joinengine.operators.join.spec import JoinSpec
from joinengine.operators.join.watching import Watchers
from joinengine.operators.levels import named_in
from joinengine.operators.spines import Spines
from joinengine.operators.unbacked import unbacked_keys
from joinengine.routing.routes import (
    BACKUP,
    KEPT,
    STORE,
    Flags,
    Instances,
    probe_flag,
    watch_flag,
)
from joinengine.routing.table import TableRouter
from joinengine.state.run import OpenRun, Run

#: Rows that a task may merge in any batch; if more, this many for each row that arrives.
MERGE_ROWS = 1 << 18
MERGE_PER_ROW = 8


def join_arrived(spec: JoinSpec, task: OperatorTask, desk: Desk) -> None:
    """Carry out a join task.

    Tuples are stored under the newest of the live layout versions; a tuple probes the i-th version
    if it has the flag of that version.
    """
    worker = _Worker(spec, task, desk)
    hosted = task.header.hosted
    # The merge allowance is per task and goes to the first instances: start with another one each
    # batch.
    turn = task.header.batch % max(len(hosted), 1)
    for instance in hosted[turn:] + hosted[:turn]:
        worker.join_instance(instance)
    worker.close()


def _arriving(task: OperatorTask) -> int:
    """How many tuples are on their way to the hosted instances."""
    bounds = [b for side in task.blocks for block in side for b in block.bounds]
    # After a shrink an instance may live on only as a watcher: blocks of an unwatched side have no
    # slice for it.
    return sum(int(b[i + 1] - b[i]) for b in bounds for i in task.header.hosted if i + 1 < len(b))


class _Worker:
    def __init__(self, spec: JoinSpec, task: OperatorTask, desk: Desk) -> None:
        self._spec = spec
        self._task = task
        self._desk = desk
        self._timed = desk.timed
        self._keying = spec.keying
        self._readers = [desk.reader(blocks) for blocks in task.blocks]
        merge_rows = max(MERGE_ROWS, MERGE_PER_ROW * _arriving(task))
        version = task.stored.versions[0]
        self._keeper = desk.keeper(StateShelf(spec), version=version, merge_rows=merge_rows)
        self._watchers: Watchers | None = None
        if spec.watched:
            self._watchers = Watchers(desk, spec, task, merge_rows)
        marker = None if self._watchers is None else self._watchers.marker
        self._matcher = Matcher(spec, desk.results, marker, self._timed)
        table = spec.table
        self._sides = tuple(Side) if table is None else (table, table.other)
        window = spec.window
        span = None if window is None else window.span_us
        with self._timed("move"):
            memory = task.memory_bytes // 4
            hosted, timed = task.header.hosted, self._timed
            self._spines = Spines(task.stored, self._keeper, hosted, memory, span, timed)

    def join_instance(self, instance: int) -> None:
        """The pairing rule at one instance."""
        with self._desk.at(instance) as here:
            with self._timed("open"):
                spines = {side: self._spines.at(instance, side) for side in Side}
            if self._watchers is not None:
                with self._timed("watch"):
                    self._watchers.judge(instance, self._desk.results)
            fresh: dict[Side, list[OpenRun]] = {side: [] for side in Side}
            homed: dict[Side, list[Words]] = {side: [] for side in Side}
            for side in self._sides:
                for arrived, last in self._arrivals(instance, side):
                    here.received[side] += len(arrived.words)
                    # The second side meets this batch's tuples of the first; those met none of it.
                    second = side is self._sides[1]
                    state = spines[side.other] + (fresh[side.other] if second else [])
                    with self._timed("probe"):
                        self._probe(side, arrived, state)
                    with self._timed("store"):
                        backups, stored = self._store(
                            instance, side, arrived, homed[side], own_file=not last
                        )
                        here.backed[side] += backups
                        fresh[side] += stored
                here.stored[side] = sum(map(len, homed[side])) + here.backed[side]
            with self._timed("merge"):
                kept = {side: self._keeper.merge(spines[side]) + fresh[side] for side in Side}
            with self._timed("count"):
                self._count_keys(instance, homed, kept)
            here.unbacked = self._unbacked(instance, kept)
            here.probe_copies = sum(here.received) - sum(here.stored)

    def _arrivals(self, instance: int, side: Side) -> Iterator[tuple[SortedTuples, bool]]:
        """Arrived tuples of a side, sorted, in pieces that fit, and whether each is the last."""
        slices = self._readers[side].slices(instance)
        if self._task.stored.lost:
            slices = self._inherited(instance, side, slices)
        rows = sum(piece.num_rows for piece in slices)
        size = sum(piece.nbytes for piece in slices)
        # A piece, its sorted copy and its matches are in memory at the same time.
        limit = rows * self._task.memory_bytes // max(4 * size, 1)
        packs = list(_packed(slices, max(limit, 1)))
        for number, pieces in enumerate(packs, start=1):
            with self._timed("sort"):
                arrived = self._sorted(instance, side, pieces)
            if len(arrived.words):
                yield arrived, number == len(packs)

    def _inherited(
        self, instance: int, side: Side, own: Sequence[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        """What would have arrived if tuples had been routed after the loss.

        A lost instance keeps its tuples as backups. Where its keys have their home now, they have
        arrived as backups; their probes are still on the way to the lost instance.
        """
        stored = self._task.stored
        if instance in stored.lost:
            return [_flagged(one, np.minimum(_flags(one) & KEPT, 1) * BACKUP) for one in own]
        found = [_flagged(one, self._promoted(instance, side, one)) for one in own]
        for lost in stored.lost:
            for piece in self._readers[side].slices(lost):
                flags = self._probes_of(instance, side, piece)
                mine = flags > 0
                if mine.any():
                    found.append(_flagged(piece, flags).filter(pa.array(mine)))
        return found

    def _promoted(self, instance: int, side: Side, piece: pa.RecordBatch) -> Flags:
        """The flags of tuples of which some have arrived as backups and are at home now."""
        flags = _flags(piece)
        words = piece.column(0).to_numpy(zero_copy_only=True)
        router = self._task.stored.router
        assert router is not None
        here = ((flags & BACKUP) > 0) & (_homes(router, side, words) == instance)
        return np.where(here, flags ^ BACKUP | STORE, flags).astype(flags.dtype)

    def _probes_of(self, instance: int, side: Side, piece: pa.RecordBatch) -> Flags:
        """Of the probes of tuples at a lost instance those that go to `instance` now."""
        words, flags, columns = Tuples.of([piece])
        keying = self._keying
        several = None if keying.is_plain else keying.probed(side, columns)
        kept = np.zeros_like(flags)
        for version, router in enumerate(self._task.stored.routers):
            for number in range(keying.probes if router is not None else 0):
                assert router is not None
                probed = words
                if several is not None:
                    probed = first_word(several[number].hashes >> np.uint64(U_BITS))
                slot = version * keying.probes + number
                flag = flags & flags.dtype.type(probe_flag(slot))
                mine = _homes(router, side, probed) == instance
                kept |= np.where(mine, flag, 0).astype(flags.dtype)
        return kept

    def _sorted(self, instance: int, side: Side, pieces: Sequence[pa.RecordBatch]) -> SortedTuples:
        """The tuples that are to be joined, sorted; a watcher gets those that are watched."""
        with self._timed("exchange"):
            tuples = Tuples.of(pieces)
        if self._watchers is not None and side in self._spec.watched:
            tuples = self._joining(instance, side, tuples)
        order = sort_order(tuples.words)
        columns = tuples.columns.take(pa.array(order))
        names = self._spec.times(side)
        times = latest_time(columns, names) if names else None
        return SortedTuples(tuples.words[order], tuples.flags[order], columns, times)

    def _joining(self, instance: int, side: Side, tuples: Tuples) -> Tuples:
        """The tuples of a watched side without those that arrived for the watcher alone."""
        assert self._watchers is not None
        flag = watch_flag(len(self._task.stored.versions), self._keying.probes)
        words, flags, columns = tuples
        watched, joining = (flags & flag) > 0, (flags & (flag - 1)) > 0
        if watched.any():
            with self._timed("watch"):
                self._watchers.arrive(instance, side, columns.filter(pa.array(watched)))
        if joining.all():
            return tuples
        return Tuples(words[joining], flags[joining], columns.filter(pa.array(joining)))

    def _probe(self, side: Side, arrived: SortedTuples, state: Iterable[OpenRun]) -> None:
        """Pair the tuples of `side` with the stored ones of the other side."""
        near = [one for one in state if not self._apart(side, arrived, one.run)]
        if not near:
            return
        keying = self._keying
        several = None if keying.is_plain else keying.probed(side, arrived.columns)
        for slot in range(len(self._task.stored.versions) * keying.probes):
            version, number = divmod(slot, keying.probes)
            stored = [one for one in near if one.run.version == self._task.stored.versions[version]]
            if not stored:
                continue
            probing = np.flatnonzero(arrived.flags & probe_flag(slot))
            words, cells = arrived.words[probing], None
            if several is not None:
                words = first_word(several[number].hashes[probing] >> np.uint64(U_BITS))
                order = sort_order(words)
                probing, words, cells = probing[order], words[order], several[number].cells
            needles = group_keys(words)
            for opened in stored:
                hits = find(opened.words, needles, opened.gone)
                for rows, ranks in expand_pairs(*rows_of_hits(hits, needles), PAIRS):
                    theirs = ranks if opened.gone is None else live_rows(opened.gone, ranks)
                    self._matcher.match(side, arrived, probing[rows], opened, theirs, cells)

    def _apart(self, side: Side, arrived: SortedTuples, run: Run) -> bool:
        """Whether no tuple of the run can be close enough in time to one that arrived."""
        window = self._spec.window
        if window is None or arrived.times is None:
            return False
        if run.min_time is None or run.max_time is None:
            return False
        mine = int(arrived.times.min()), int(arrived.times.max())
        theirs = run.min_time, run.max_time
        left, right = (mine, theirs) if side is Side.LEFT else (theirs, mine)
        lower, upper = window.lower_us, window.upper_us
        early = lower is not None and right[1] - left[0] < lower
        return early or (upper is not None and right[0] - left[1] > upper)

    def _store(
        self,
        instance: int,
        side: Side,
        arrived: SortedTuples,
        homed: list[Words],
        *,
        own_file: bool,
    ) -> tuple[int, list[OpenRun]]:
        """Seal the tuples that are stored here; returns how many are backups, and the run.

        The words of the others are appended to `homed`.
        """
        stored = (arrived.flags & KEPT) > 0
        words, columns = arrived.words, arrived.columns
        if not stored.all():
            words, columns = words[stored], columns.filter(pa.array(stored))
        at_home = words
        if self._task.header.copied:
            at_home = arrived.words[(arrived.flags & STORE) > 0]
        homed.append(at_home)
        backups = len(words) - len(at_home)
        if not len(words) or self._spec.passes_by(side):
            return backups, []
        columns = columns.select(self._spec.stored_schema(side).names)
        return backups, [self._keeper.seal(instance, side, words, columns, own_file=own_file)]

    def _count_keys(
        self,
        instance: int,
        homed: Mapping[Side, Sequence[Words]],
        spines: Mapping[Side, Sequence[OpenRun]],
    ) -> None:
        """Exact counts of the keys that a planner may want to move, and the hottest keys.

        Runs of older layout versions are left out: no plan moves them.
        """
        newest = self._task.stored.versions[0]
        stored = [_joined_words(homed[side]) for side in Side]
        held = [[one for one in spines[side] if one.run.version == newest] for side in Side]
        texts = texts_in(self._keying, held)
        named = named_in(self._task.header.levels, self._keying, held)
        self._desk.count_keys(instance, stored, held, texts, named)

    def _unbacked(self, instance: int, spines: Mapping[Side, Sequence[OpenRun]]) -> int:
        """How many keys have their home here, and no complete copy anywhere else."""
        stored = self._task.stored
        if not stored.missing or not isinstance(stored.router, TableRouter):
            return 0
        runs = (one for side in Side for one in spines[side])
        newest = (one for one in runs if one.run.version == stored.versions[0])
        return unbacked_keys(stored.router, dict(stored.missing), instance, newest)

    def close(self) -> None:
        """Seal the marks of this batch for the watchers."""
        if self._watchers is not None:
            with self._timed("watch"):
                self._watchers.close()


def _flags(piece: pa.RecordBatch) -> Flags:
    found: Flags = piece.column(1).to_numpy(zero_copy_only=True)
    return found


def _homes(router: AnyRouter, side: Side, words: Words) -> Instances:
    """(n,) words -> (n,) the homes of their keys, which are whole."""
    found = router.homes(side, words, np.zeros(len(words), np.uint16))
    homes: Instances = found.instances[found.flags == STORE]
    return homes


def _flagged(piece: pa.RecordBatch, flags: Flags) -> pa.RecordBatch:
    """A slice of a block with other flags."""
    field, kind = piece.schema.field(1), piece.schema.field(1).type
    return piece.set_column(1, field, pa.array(flags, kind))


def _joined_words(parts: Sequence[Words]) -> Words:
    """Sorted words in pieces -> all of them, sorted."""
    if len(parts) == 1:
        return parts[0]
    return np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))


def _packed(slices: Iterable[pa.RecordBatch], limit: int) -> Iterator[list[pa.RecordBatch]]:
    """Slices in packs of at most `limit` rows; larger slices are cut."""
    pack, rows = list[pa.RecordBatch](), 0
    for piece in slices:
        start = 0
        while start < piece.num_rows:
            part = piece.slice(start, limit - rows)
            pack.append(part)
            rows += part.num_rows
            start += part.num_rows
            if rows == limit:
                yield pack
                pack, rows = [], 0
    if pack:
        yield pack
