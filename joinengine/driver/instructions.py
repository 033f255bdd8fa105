"""From the state of an operator and what is on its way to it: the instructions of its tasks.

Law: a function of the manifest, the plan and the reports of this batch; no Spark, no files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joinengine.driver import bookkeeping
from joinengine.driver.relayout import PlannedJoin
from joinengine.driver.settings import Settings
from joinengine.exchange.reports import Block, InputReport
from joinengine.exchange.results import Target
from joinengine.model.aggregates import AggregateSpec, Stage
from joinengine.model.keys import Side
from joinengine.model.novelty import NoveltySpec
from joinengine.model.query import JoinSpec, Operator
from joinengine.operators.aggregation.task import AggregateTask
from joinengine.operators.base import OperatorTask
from joinengine.operators.join.task import MERGE_ROWS, JoinTask
from joinengine.operators.novelty.task import NoveltyTask
from joinengine.operators.spines import Stored
from joinengine.state.manifest import JoinState
from joinengine.state.storage import Checkpoint


@dataclass(frozen=True)
class Order:
    """One operator in one batch: its state before it, and what is on its way, per side."""

    join: PlannedJoin
    state: JoinState
    batch: int
    generation: int
    exchange_folder: str
    blocks: Mapping[Side, tuple[Block, ...]]
    is_last: bool


@dataclass
class Arriving:
    """What is on its way to the joins of one batch."""

    blocks: dict[tuple[int, Side], list[Block]]
    inputs: list[InputReport]

    def at(self, spec: Operator) -> Mapping[Side, tuple[Block, ...]]:
        """What is on its way to one operator, per side."""
        return {side: tuple(self.blocks.get((spec.index, side), ())) for side in Side}


Targets = Callable[[Order, int], Target]


@dataclass(frozen=True)
class Instructions:
    """Writes the instructions of a query's tasks."""

    settings: Settings
    checkpoint: Checkpoint
    parallelism: int

    def tasks(self, order: Order, target: Targets) -> Sequence[OperatorTask]:
        """The tasks of one operator, none where nothing arrives and nothing is due."""
        spec, state = order.join.spec, order.state
        brings = any(order.blocks.values())
        if isinstance(spec, AggregateSpec):
            due = bookkeeping.parts_due(spec, state, quiet=True)
            return self._aggregating(order, spec, target) if brings or due else []
        due = state.before is not None
        if isinstance(spec, NoveltySpec):
            due = due or bookkeeping.novelty_due(state)
            return self._judging(order, spec, target) if brings or due else []
        assert isinstance(spec, JoinSpec)
        due = due or bookkeeping.watchers_work(spec, state, order.batch)
        return self._joining(order, spec, target) if brings or due else []

    def _joining(self, order: Order, spec: JoinSpec, target: Targets) -> list[JoinTask]:
        most = max(order.join.router(order.state).instances, order.state.watchers)
        hosted_by_task = bookkeeping.hosts(most, self.parallelism)
        watches = bookkeeping.watches(spec, order.state, order.batch, hosted_by_task)
        stored = _stored(order, hosted_by_task)
        return [
            JoinTask(
                spec=spec,
                blocks=(order.blocks[Side.LEFT], order.blocks[Side.RIGHT]),
                stored=stored[number],
                watch=watches[number],
                memory_bytes=self.settings.memory_per_task,
                **self._common(order, number, hosted, target),
            )
            for number, hosted in enumerate(hosted_by_task)
        ]

    def _aggregating(
        self, order: Order, spec: AggregateSpec, target: Targets
    ) -> list[AggregateTask]:
        state, blocks = order.state, order.blocks[Side.LEFT]
        ended = state.watermark == math.inf
        passes_on = not blocks or (order.batch + 1) % spec.merge_every == 0 or ended
        spines = bookkeeping.by_place(state.runs.values())
        # Parts stay where they were added up, also where that is no instance any more.
        most = max([order.join.router(state).instances, *(i + 1 for i, _ in spines)])
        tasks = list[AggregateTask]()
        for number, hosted in enumerate(bookkeeping.hosts(most, self.parallelism)):
            common = self._common(order, number, hosted, target)
            if spec.stage is not Stage.PARTIAL:  # the emulated work is that of tuples
                common["work_s"] = 0.0
            tasks.append(
                AggregateTask(
                    spec=spec,
                    blocks=blocks,
                    runs={i: runs for (i, _), runs in spines.items() if i in hosted},
                    closed=state.closed,
                    passes_on=passes_on,
                    merge_rows=MERGE_ROWS,
                    **common,
                )
            )
        return tasks

    def _judging(self, order: Order, spec: NoveltySpec, target: Targets) -> list[NoveltyTask]:
        instances = order.join.router(order.state).instances
        hosted_by_task = bookkeeping.hosts(instances, self.parallelism)
        stored = _stored(order, hosted_by_task)
        return [
            NoveltyTask(
                spec=spec,
                blocks=order.blocks[Side.LEFT],
                stored=stored[number],
                closed=order.state.closed,
                memory_bytes=self.settings.memory_per_task,
                **self._common(order, number, hosted, target),
            )
            for number, hosted in enumerate(hosted_by_task)
        ]

    def _common(
        self, order: Order, number: int, hosted: tuple[int, ...], target: Targets
    ) -> dict[str, Any]:
        """What the tasks of every operator are told."""
        join = order.join
        return {
            "batch": order.batch,
            "task": number,
            "generation": order.generation,
            "hosted": hosted,
            "files": order.state.files,
            "watermark": order.state.watermark,
            "listed": join.layout.router().listed if join.choice.counts_keys else None,
            "target": target(order, number),
            "checksum": self.settings.checksum and order.is_last,
            "runs_folder": str(self.checkpoint.runs),
            "exchange_folder": order.exchange_folder,
            "work_s": self.settings.work_s,
            "fsync": self.settings.fsync,
        }


def _stored(order: Order, hosted_by_task: Sequence[tuple[int, ...]]) -> list[Stored]:
    """What each task needs of the state."""
    state = order.state
    spines = bookkeeping.by_place(state.runs.values())
    rehoming = order.join.rehoming(state)
    found = list[Stored]()
    for hosted in hosted_by_task:
        needed = _needed(hosted, state)
        runs = {p: some for p, some in spines.items() if rehoming is not None or p[0] in needed}
        found.append(Stored(runs, state.moves, rehoming, state.live_versions))
    return found


def _needed(hosted: tuple[int, ...], state: JoinState) -> set[int]:
    """The instances whose runs a task reads: its own, and those that it pulls from."""
    return set(hosted) | {pull.source for pull in state.moves.pulls if pull.target in hosted}
