"""The desk: the services that tasks of all operators use.

The desk reads the tuples that have arrived, keeps runs on shelves, takes results, counts keys and
time, and makes the report. So an operator's task contains only what is particular to the operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import numpy as np

from joinengine.balancing.costs import Amounts, shared_out
from joinengine.balancing.counting import Asked, Done, count_keys
from joinengine.exchange.blocks import BlockReader, Tuples
from joinengine.exchange.exchange import Exchange, Through
from joinengine.exchange.task_results import ResultColumns, Results, Target
from joinengine.kernels.hashing import Words, multiset_checksum, net_checksum
from joinengine.kernels.probing import Needles, group_keys
from joinengine.layouts.service_levels import Level
from joinengine.model.errors import DamagedState
from joinengine.operators.hot import HotKeys, Texts
from joinengine.operators.level_keys import Named
from joinengine.state.gathering import Sheet, sheets_of
from joinengine.state.keeper import Keeper
from joinengine.state.operator_state import STATE
from joinengine.state.run import OpenRun, Place, Run, RunStore
from joinengine.state.run_file import Allowance
from joinengine.state.upkeep import Shelf, Upkeep
from joinengine.wire.reports import Block, InstanceReport, OperatorReport
from joinengine.world.storage import Storage, StoredFile
from joinengine.world.world import World

#: Rows that a task may merge in a batch.
MERGE_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where run files lie, and how a task writes them.

    `cache_bytes`: the size of the file cache on the task's machine. `inline_bytes`: the most bytes
    of run files that the task inlines in its report instead of writing them. `is_behind`: files lie
    on the executor's disk first, and are uploaded later.
    """

    folder: str
    fsync: bool = False
    cache_bytes: int = 0
    inline_bytes: int = 0
    is_behind: bool = False

    def storage(self, world: World) -> Storage:
        """The folder as storage of a task's world."""
        return world.storage(
            self.folder,
            fsync=self.fsync,
            cache_bytes=self.cache_bytes,
            is_behind=self.is_behind,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHeader:
    """The instructions that tasks of all operators share: task `task` of a batch hosts `hosted`.

    `generation`: the driver's; the name of every file that the task writes contains it. `files`:
    those of the runs in the task's instructions. `watermark`: event time in microseconds.
    `counted`: the keys that hosted instances count in any case; None: the task counts no keys.
    `driver`: names the start of the driver that sends the task. `copied`: keys have copies at other
    instances, so the runs of each instance lie in their own files. `survives`: the task may report
    instances as lost, and then runs again. `named`: the report has hot keys by value. `weighs`:
    the report has counted keys with their pairs and results. `levels`: the service levels whose
    predicates are evaluated for the reported keys.
    """

    operator: int
    batch: int
    task: int
    generation: int
    hosted: tuple[int, ...]
    files: Mapping[str, StoredFile]
    watermark: float
    counted: Asked | None
    target: Target
    checksum: bool
    runs: RunFolder
    exchange: Through
    driver: str
    named: bool = True
    copied: bool = False
    survives: bool = False
    levels: tuple[Level, ...] = ()
    weighs: bool = False


class Desk:
    """The desk of one task; `close` gives the report of the task."""

    def __init__(
        self,
        header: TaskHeader,
        columns: ResultColumns,
        store: RunStore,
        exchange: Exchange,
        world: World,
        *,
        memory_bytes: int,
    ) -> None:
        store.see(header.files, header.batch)
        self.header = header
        self.report = OperatorReport(header.task)
        self.memory_bytes = memory_bytes
        checksum = net_checksum if columns.is_changelog else multiset_checksum
        self.results = Results(
            *(header.target, columns, exchange, world),
            checksum=checksum if header.checksum else None,
            most_bytes=memory_bytes // 8,
            fsync=header.runs.fsync,
        )
        self._exchange = exchange
        self._world = world
        self._store = store
        self._keepers = dict[str, Keeper]()
        self._allowance = Allowance(header.runs.inline_bytes)
        self._hot = HotKeys(named=header.named)
        #: seconds by part of the work, and in all
        self._seconds: dict[str, float] = defaultdict(float)
        self._charged_s = 0.0
        #: instance -> when its work was finished, by the timer of the task
        self.done_s = dict[int, float]()

    def lost(self, shelves: Iterable[Mapping[Place, Sequence[Run]]]) -> dict[int, str]:
        """Instance with a run that cannot be read -> why."""
        damaged = dict[int, str]()
        for (instance, _), spine in chain.from_iterable(runs.items() for runs in shelves):
            for run in spine:
                try:
                    self._store.check(self.header.files[run.file])
                except (DamagedState, OSError) as error:
                    damaged.setdefault(instance, str(error))
        return damaged

    def reader(self, blocks: Sequence[Block]) -> BlockReader:
        """The reader of `blocks`: it gives the tuples that arrived at an instance."""
        return BlockReader(self._exchange, blocks)

    def pieces(
        self, reader: BlockReader, instance: int, most_bytes: int
    ) -> Iterator[tuple[Tuples, bool]]:
        """As `BlockReader.pieces`; charges the time to the exchange."""
        pieces = reader.pieces(instance, most_bytes)
        while True:
            with self.timed("exchange"):
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def keeper(
        self,
        shelf: Shelf,
        *,
        on: str = STATE,
        version: int = 0,
        merge_rows: int = 0,
        watermark: float | None = None,
    ) -> Keeper:
        """The keeper of the runs on the shelf named `on`; the desk closes it.

        `merge_rows`: how many rows the keeper may merge. `watermark`: a merge drops tuples that
        were last needed below it; None: the watermark of the batch.
        """
        header = self.header
        upkeep = Upkeep(
            shelf=shelf,
            batch=header.batch,
            task=header.task,
            generation=header.generation,
            version=version,
            watermark=header.watermark if watermark is None else watermark,
            merge_rows=merge_rows,
            gather_bytes=max(self.memory_bytes // 4, 1),
            nonce=self._world.nonce,
            apart=header.copied,
            allowance=self._allowance,
        )
        keeper = Keeper(upkeep, header.runs.storage(self._world), self._store, header.files)
        self._keepers[on] = keeper
        return keeper

    @contextmanager
    def at(self, instance: int) -> Iterator[InstanceReport]:
        """Measures the block as work at one instance: its results and its time."""
        before = self.results.rows
        with self.at_all([instance]) as (report,):
            yield report
            report.results = self.results.rows - before

    @contextmanager
    def at_all(self, team: Sequence[int]) -> Iterator[list[InstanceReport]]:
        """Measures the block as work at several instances; shares time by tuples and results."""
        start, before = self._world.timer_s(), dict(self._seconds)
        reports = [InstanceReport() for _ in team]
        self.report.instances.update(zip(team, reports, strict=True))
        yield reports
        self.report.turns += 1
        now = self._world.timer_s()
        spent = {part: s - before.get(part, 0.0) for part, s in self._seconds.items()}
        untold = max(0.0, now - start - sum(spent.values()))
        amounts = [_amounts(report, 1 / len(team)) for report in reports]
        shares = shared_out(spent | {"untold": untold}, amounts)
        for report, seconds in zip(reports, shares, strict=True):
            report.seconds = tuple(seconds)
            report.busy_s = sum(seconds)
        self.done_s.update(dict.fromkeys(team, now))

    def pause(self, until_s: float, part: str) -> None:
        """Wait until `until_s` by the timer of the task, and charge the time to `part`."""
        with self.timed(part):
            self._world.sleep(max(0.0, until_s - self._world.timer_s()))

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Charge the time of the block to `part`, and not to the part around it."""
        start, inside = self._world.timer_s(), self._charged_s
        yield
        spent = self._world.timer_s() - start - (self._charged_s - inside)
        self._seconds[part] += spent
        self._charged_s += spent

    def count_keys(
        self,
        instance: int,
        stored: Sequence[Words],
        spines: Sequence[Iterable[OpenRun]],
        texts: Texts | None = None,
        named: Named | None = None,
        done: Sequence[Done] = (),
    ) -> None:
        """Report the hottest keys, and those that the planner may move if the task counts keys.

        `stored`: per side, the sorted words that arrived to be stored. `spines`: per side, the runs
        that are held after the batch. `texts`: gives the values of keys; None: report no hot keys.
        `named`: gives the backups of keys by service levels; None: no level has a predicate.
        `done`: the work for each key; empty if keys are not weighed.
        """
        arrived = [group_keys(words) for words in stored]
        if texts is not None:
            self._hot.see(arrived, texts)
        sheets = [sheets_of([spine]) for spine in spines]
        self._report_keys([instance], arrived, sheets, named, done)

    def count_keys_of_team(
        self,
        team: Sequence[int],
        stored: Sequence[Needles],
        sheets: Sequence[Sequence[Sheet]],
        texts: Texts | None = None,
        done: Sequence[Done] = (),
    ) -> None:
        """As `count_keys`, for several instances together.

        `stored`: per side, the seated keys that arrived to be stored. `sheets`: per side, the runs.
        """
        if texts is not None:
            self._hot.see_team(stored, texts)
        self._report_keys(team, stored, sheets, None, done)

    def _report_keys(
        self,
        team: Sequence[int],
        stored: Sequence[Needles],
        sheets: Sequence[Sequence[Sheet]],
        named: Named | None,
        done: Sequence[Done],
    ) -> None:
        counted = self.header.counted
        if counted is None:
            return
        stretches = [[sheet.stretch for sheet in held] for held in sheets]
        counts = count_keys(team, stored, stretches, counted, done)
        if named is not None:
            hashes, at = np.unique(counts.hashes, return_inverse=True)
            counts = counts._replace(backups=named(hashes)[at])
        self.report.keys.append(counts)

    def close(self) -> OperatorReport:
        """Hand over the last results, seal the files, and report."""
        with self.timed("result"):
            self.results.close(self.report)
        with self.timed("store"):
            self.report.changes = {shelf: keeper.close() for shelf, keeper in self._keepers.items()}
        self.report.hot = self._hot.heaviest()
        self.report.seconds = dict(self._seconds)
        self.report.reads = self._store.reads(self.header.files)
        return self.report


def _amounts(report: InstanceReport, turns: float) -> Amounts:
    """The work of an instance, without the bytes of its results, which are not measured apart."""
    received, stored = float(sum(report.received)), float(sum(report.stored))
    return Amounts(turns, received, stored, report.probed, report.candidates, report.results)
