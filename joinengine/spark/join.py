"""The join task: everything that happens to a set of instances in one batch.

Per instance, in this order (the pairing rule, docs/decisions/0001): state that moved in is placed;
left tuples probe right state of earlier batches; left is stored; right tuples probe left state,
this batch's included; right is stored. Runs are merged after, since nobody reads them then.

Law: any matching pair is produced exactly once, by the later tuple at the single home of the
earlier. Cost: per tuple one sort and one gather; per distinct key one binary search per run; per
pair one comparison and one gather.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.balancing.statistics import KeyCounts, heavy_keys
from joinengine.kernels.bands import numbers_of, own_cells, within_distance
from joinengine.kernels.comparing import equal_at, latest_time
from joinengine.kernels.expanding import expand_pairs, rows_of_hits
from joinengine.kernels.hashing import Words, first_word
from joinengine.kernels.keying import Keying
from joinengine.kernels.probing import Ints, Needles, find, group_keys, live_rows, sort_order
from joinengine.kernels.theta import holds
from joinengine.model.conditions import Distance
from joinengine.model.keys import U_BITS, Side
from joinengine.model.query import JoinSpec
from joinengine.model.reports import Block, InstanceReport, JoinReport
from joinengine.routing.moves import Moves
from joinengine.routing.routes import STORE, Flags, probe_flag
from joinengine.spark.exchange import BlockReader
from joinengine.spark.rehoming import Rehoming, rehome
from joinengine.spark.results import Results, Target
from joinengine.state.keeper import Keeper, Upkeep
from joinengine.state.run import OpenRun, Run, RunStore
from joinengine.state.storage import StoredFile

#: Candidate pairs that are looked at together.
PAIRS = 1 << 18
#: A task may merge so many rows a batch in any case, and so many per row that arrives.
MERGE_ROWS = 1 << 18
MERGE_PER_ROW = 8

Place = tuple[int, Side]


@dataclass(frozen=True, slots=True)
class JoinTask:
    """The instructions of one join task in one batch.

    `runs` holds the spines of the hosted instances and of those that they pull from, all of them
    where there is a `rehoming`; the watermark is event time in microseconds; `listed` are the keys
    that the layout wants counted, None: no counts. `versions` are the live layout versions, newest
    first: tuples are stored under that one, and the i-th is probed by whoever has its flag.
    `work_s`: emulated work for each tuple that an instance receives.
    """

    batch: int
    task: int
    spec: JoinSpec
    hosted: tuple[int, ...]
    blocks: tuple[tuple[Block, ...], tuple[Block, ...]]
    runs: Mapping[Place, tuple[Run, ...]]
    files: Mapping[str, StoredFile]
    moves: Moves
    rehoming: Rehoming | None
    versions: tuple[int, ...]
    watermark: float
    listed: Words | None
    target: Target
    checksum: bool
    runs_folder: str
    exchange_folder: str
    memory_bytes: int
    work_s: float = 0.0
    fsync: bool = False

    @property
    def arriving(self) -> int:
        """How many tuples are on their way to the hosted instances."""
        bounds = [b for side in self.blocks for block in side for b in block.bounds]
        return sum(int(b[i + 1] - b[i]) for b in bounds for i in self.hosted)


class Arrived(NamedTuple):
    """Tuples of one side that reached an instance in this batch, sorted by word."""

    words: Words
    flags: Flags
    columns: pa.RecordBatch
    times: Ints | None


def run_join(task: JoinTask, store: RunStore) -> JoinReport:
    """Carry out one join task."""
    store.retain(task.files)
    worker = _Worker(task, store)
    # Who comes first gets the merging of this batch; everyone gets a turn.
    turn = task.batch % max(len(task.hosted), 1)
    for instance in task.hosted[turn:] + task.hosted[:turn]:
        worker.join_instance(instance)
    return worker.close()


class _Worker:
    def __init__(self, task: JoinTask, store: RunStore) -> None:
        self._task = task
        self._report = JoinReport(task.task)
        self._seconds: dict[str, float] = defaultdict(float)
        self._keying = Keying.of(task.spec)
        exchange = Path(task.exchange_folder)
        self._readers = [BlockReader(exchange, list(blocks)) for blocks in task.blocks]
        self._results = Results(task.target, task.spec.output_schema, checksum=task.checksum)
        upkeep = Upkeep(
            spec=task.spec,
            batch=task.batch,
            task=task.task,
            version=task.versions[0],
            watermark=task.watermark,
            merge_rows=max(MERGE_ROWS, MERGE_PER_ROW * task.arriving),
            fsync=task.fsync,
        )
        self._keeper = Keeper(upkeep, Path(task.runs_folder), store, task.files)
        self._rehomed: dict[Place, list[OpenRun]] | None = None
        if task.rehoming is not None:
            window = task.spec.window
            with self._timed("move"):
                self._rehomed = rehome(
                    task.rehoming,
                    (run for runs in task.runs.values() for run in runs),
                    self._keeper,
                    task.hosted,
                    task.memory_bytes // 4,
                    None if window is None else window.span_us,
                )

    def join_instance(self, instance: int) -> None:
        """The pairing rule at one instance."""
        start = time.perf_counter()
        here = self._report.instances[instance] = InstanceReport()
        before = self._results.rows
        with self._timed("open"):
            spines = {side: self._placed(instance, side) for side in Side}
        fresh: dict[Side, list[OpenRun]] = {side: [] for side in Side}
        for side in Side:
            for arrived, last in self._arrivals(instance, side):
                here.received[side] += len(arrived.words)
                # Right meets the left tuples of this batch; left met none of the right ones.
                state = spines[side.other] + (fresh[Side.LEFT] if side is Side.RIGHT else [])
                with self._timed("probe"):
                    self._probe(side, arrived, state)
                with self._timed("store"):
                    fresh[side] += self._store(instance, side, arrived, aside=not last)
        for side in Side:
            here.stored[side] = sum(one.run.rows for one in fresh[side])
            with self._timed("count"):
                self._count_keys(instance, side, spines[side], fresh[side])
            with self._timed("merge"):
                self._keeper.merge(spines[side])
        here.probe_copies = sum(here.received) - sum(here.stored)
        here.results = self._results.rows - before
        if self._task.work_s:
            with self._timed("emulated"):
                time.sleep(self._task.work_s * sum(here.received))
        here.busy_s = time.perf_counter() - start

    def _placed(self, instance: int, side: Side) -> list[OpenRun]:
        """The spine of one side, less what moved away, and with what moved in."""
        if self._rehomed is not None:
            return self._rehomed.get((instance, side), [])
        runs, moves = self._task.runs, self._task.moves
        drops = [
            (d.lower, d.upper) for d in moves.drops if (d.instance, d.side) == (instance, side)
        ]
        newest = self._task.versions[0]
        here = runs.get((instance, side), ())
        spine = self._keeper.open((run for run in here if run.version == newest), drops)
        spine += self._keeper.open(run for run in here if run.version != newest)
        sources = defaultdict[int, list[tuple[int, int]]](list)
        for pull in moves.pulls:
            if (pull.target, pull.side) == (instance, side):
                sources[pull.source].append((pull.lower, pull.upper))
        for source, ranges in sorted(sources.items()):
            theirs = (run for run in runs.get((source, side), ()) if run.version == newest)
            spine += self._keeper.pull(instance, theirs, ranges)
        return spine

    def _arrivals(self, instance: int, side: Side) -> Iterator[tuple[Arrived, bool]]:
        """The tuples of one side that arrived, sorted, in pieces that fit; which is the last."""
        slices = self._readers[side].slices(instance)
        rows = sum(piece.num_rows for piece in slices)
        size = sum(piece.nbytes for piece in slices)
        # A piece, its sorted copy and what is found for it are in memory at the same time.
        limit = rows * self._task.memory_bytes // max(4 * size, 1)
        packs = list(_packed(slices, max(limit, 1)))
        for number, pieces in enumerate(packs, start=1):
            with self._timed("sort"):
                arrived = self._sorted(side, pieces)
            yield arrived, number == len(packs)

    def _sorted(self, side: Side, pieces: Sequence[pa.RecordBatch]) -> Arrived:
        with self._timed("exchange"):
            batch = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        words = batch.column(0).to_numpy(zero_copy_only=True)
        order = sort_order(words)
        taken = [column.take(pa.array(order)) for column in batch.columns[2:]]
        columns = pa.RecordBatch.from_arrays(taken, schema=self._task.spec.schemas[side])
        flags = batch.column(1).to_numpy(zero_copy_only=True)
        return Arrived(words[order], flags[order], columns, self._times(side, columns))

    def _probe(self, side: Side, arrived: Arrived, state: Iterable[OpenRun]) -> None:
        """Pair the tuples of `side` with the stored ones of the other side."""
        near = [one for one in state if not self._apart(side, arrived, one.run)]
        if not near:
            return
        keying = self._keying
        several = None if keying.is_plain else keying.probed(side, arrived.columns)
        for slot in range(len(self._task.versions) * keying.probes):
            version, number = divmod(slot, keying.probes)
            stored = [one for one in near if one.run.version == self._task.versions[version]]
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
                    self._emit(side, arrived, probing[rows], opened, theirs, cells)

    def _apart(self, side: Side, arrived: Arrived, run: Run) -> bool:
        """Whether no tuple of the run can be close enough in time to one that arrived."""
        window = self._task.spec.window
        if window is None or arrived.times is None:
            return False
        if run.min_time is None or run.max_time is None:
            return False
        mine = int(arrived.times.min()), int(arrived.times.max())
        theirs = run.min_time, run.max_time
        left, right = (mine, theirs) if side is Side.LEFT else (theirs, mine)
        return right[1] - left[0] < window.lower_us or right[0] - left[1] > window.upper_us

    def _emit(
        self,
        side: Side,
        arrived: Arrived,
        rows: Ints,
        opened: OpenRun,
        their_rows: Ints,
        cells: Ints | None,
    ) -> None:
        """Results from the candidate pairs that really match; `cells`: where they were sought."""
        spec, other = self._task.spec, side.other
        keep = np.ones(len(rows), bool)
        for mine, theirs in zip(spec.keys(side), spec.keys(other), strict=True):
            keep &= equal_at(
                arrived.columns.column(mine), rows, opened.columns.column(theirs), their_rows
            )
        their_times = self._times(other, opened.columns)
        if spec.window is not None and arrived.times is not None and their_times is not None:
            ahead = their_times[their_rows] - arrived.times[rows]
            lead = ahead if side is Side.LEFT else -ahead
            keep &= (lead >= spec.window.lower_us) & (lead <= spec.window.upper_us)
        columns = {side: arrived.columns, other: opened.columns}
        at = {side: rows, other: their_rows}
        if spec.distance is not None:
            sought = None if cells is None else cells[rows]
            keep &= _in_band(spec.distance, columns, at, other, sought)
        if not keep.all():
            rows, their_rows = rows[keep], their_rows[keep]
        if spec.predicate is not None and len(rows):
            at = {side: rows, other: their_rows}
            keep = holds(
                spec.predicate,
                (columns[Side.LEFT], columns[Side.RIGHT]),
                (at[Side.LEFT], at[Side.RIGHT]),
            )
            rows, their_rows = rows[keep], their_rows[keep]
        if not len(rows):
            return
        chosen = {side: pa.array(rows), other: pa.array(their_rows)}
        with self._timed("result"):
            self._results.add(
                [columns[c.side].column(c.column).take(chosen[c.side]) for c in spec.output]
            )

    def _store(self, instance: int, side: Side, arrived: Arrived, *, aside: bool) -> list[OpenRun]:
        """Seal the tuples that live here."""
        stored = (arrived.flags & STORE) > 0
        words, columns = arrived.words, arrived.columns
        if not stored.all():
            words, columns = words[stored], columns.filter(pa.array(stored))
        return (
            [self._keeper.seal(instance, side, words, columns, aside=aside)] if len(words) else []
        )

    def _count_keys(
        self, instance: int, side: Side, spine: list[OpenRun], fresh: list[OpenRun]
    ) -> None:
        """Exact counts of the keys that a planner may want to move."""
        if self._task.listed is None or not fresh:
            return
        words = np.concatenate([one.words for one in fresh])
        hashes, counts = heavy_keys(np.sort(words) if len(fresh) > 1 else words, self._task.listed)
        held = counts.copy()
        needles = Needles(hashes, np.arange(len(hashes) + 1))
        newest = self._task.versions[0]
        for one in (one for one in spine if one.run.version == newest):
            hits = find(one.words, needles, one.gone)
            held[hits.needles] += hits.counts
        where = np.full(len(hashes), instance), np.full(len(hashes), int(side))
        self._report.keys.append(KeyCounts(*where, hashes, counts, held))

    def _times(self, side: Side, columns: pa.RecordBatch) -> Ints | None:
        names = self._task.spec.times(side)
        return latest_time(columns, names) if names else None

    def close(self) -> JoinReport:
        """Seal the files and report."""
        with self._timed("result"):
            self._results.close(self._report)
        with self._timed("store"):
            self._report.changes = self._keeper.close()
        self._report.seconds = dict(self._seconds)
        return self._report

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Charge the time inside to `part`, and not to the part around it."""
        start, inside = time.perf_counter(), sum(self._seconds.values())
        yield
        nested = sum(self._seconds.values()) - inside
        self._seconds[part] += time.perf_counter() - start - nested


def _in_band(
    distance: Distance,
    columns: Mapping[Side, pa.RecordBatch],
    rows: Mapping[Side, Ints],
    stored: Side,
    cells: Ints | None,
) -> NDArray[np.bool_]:
    """(n,) which pairs are close enough, and were found in the cell (n,) that was probed.

    Two cells may have one hash, and each probes what is stored under it.
    """
    numbers = {
        side: numbers_of(distance, columns[side].column(distance.column(side)).take(pa.array(at)))
        for side, at in rows.items()
    }
    keep = within_distance(distance, numbers[Side.LEFT], numbers[Side.RIGHT])
    return keep if cells is None else keep & (own_cells(distance, numbers[stored]) == cells)


def _packed(slices: Iterable[pa.RecordBatch], limit: int) -> Iterator[list[pa.RecordBatch]]:
    """Slices in groups of at most `limit` rows, larger ones cut."""
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
