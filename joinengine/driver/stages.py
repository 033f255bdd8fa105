"""The stages of a batch as values: opened, routed, computed, drafted; then it has a manifest.

Each stage is made of the one before, and holds all that follows from it. Nothing outside these
values is changed by a batch that is not committed: it may fail, be tried again, or be beaten by
another driver, and has left files at most, whose names nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joinengine.balancing.reasons import Reason
from joinengine.balancing.statistics import Interval
from joinengine.driver.records import BatchRecord
from joinengine.driver.settings import Settings
from joinengine.exchange.exchange import Through
from joinengine.model.keys import Side
from joinengine.model.skipped import Skipped
from joinengine.operators.base import Attempt, Operator, OperatorTask, QuerySpec, sides_of
from joinengine.state.manifest import Handed, Manifest, Outcome, Position
from joinengine.state.operator_state import OperatorState
from joinengine.state.plain_states import Held
from joinengine.state.wished import Relayout
from joinengine.wire.reports import Block, InputReport, OperatorReport, RouteReport
from joinengine.world.storage import StoredFile

#: Name of a statistics file -> the counts in it, which planners see.
Counts = Mapping[str, Interval]


@dataclass(frozen=True, slots=True)
class Program:
    """What is the same for all batches of a run: the query, how it runs, and where its runs lie.

    `driver` names this start of the driver: workers verify files anew for each start.
    """

    query: QuerySpec
    settings: Settings
    runs_folder: str
    parallelism: int
    driver: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A batch that begins: what it follows, how far it goes, and how its tuples travel.

    `last`: the manifest before it; `counts`: those that it names. `start`, `end`: where the batch
    begins and ends in each source. `generation`: of the driver that runs it. `clock_s`: the
    driver's clock at its start, in seconds since the epoch: the same for all tasks. `aside`: the
    folder where refused tuples are staged; None: they are only counted. `resumed_for`: per operator
    why its layout differs from that of the batch before; empty: none does. `named`: the files that
    were named as skipped before. `handed`: the last micro-batch of Spark's up to this batch.
    """

    last: Manifest
    counts: Counts
    start: Position
    end: Position
    exchange: Through
    generation: int
    clock_s: float
    aside: str | None = None
    resumed_for: Sequence[Reason | None] = ()
    named: frozenset[Skipped] = frozenset()
    handed: Handed | None = None

    @property
    def number(self) -> int:
        """The batch."""
        return self.last.batch + 1


@dataclass(frozen=True, slots=True)
class Routed:
    """A batch whose tuples are on their way.

    `skipped`: the files that were not read, and are not named yet; `told`: the staged file that
    tells them to the user, if there is one.
    """

    opened: Opened
    reports: Sequence[RouteReport]
    skipped: tuple[Skipped, ...] = ()
    told: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrived:
    """The blocks on their way to the operators of a batch, and the reports of what they hold."""

    blocks: tuple[Block, ...] = ()
    inputs: tuple[InputReport, ...] = ()

    @classmethod
    def routed(cls, reports: Sequence[RouteReport]) -> Arrived:
        """The blocks that route tasks have written."""
        return cls(
            tuple(block for report in reports for block in report.blocks),
            tuple(side for report in reports for side in report.inputs),
        )

    def and_results(self, reports: Sequence[OperatorReport]) -> Arrived:
        """These, and the blocks that an operator's tasks have written for later operators."""
        blocks = (report.next_block for report in reports)
        inputs = (report.next_input for report in reports)
        return Arrived(
            (*self.blocks, *(block for block in blocks if block is not None)),
            (*self.inputs, *(side for side in inputs if side is not None)),
        )

    def at(self, operator: Operator) -> dict[Side, tuple[Block, ...]]:
        """The blocks on their way to one operator, per side."""
        ours = [block for block in self.blocks if block.operator == operator.index]
        return {side: tuple(b for b in ours if b.side is side) for side in sides_of(operator)}


@dataclass(frozen=True, slots=True)
class Ran:
    """An operator whose tasks are done: on which state they began, they, and their reports.

    `expired_rows`: what had left the state before; `state`: that after the tasks.
    """

    begun: Attempt
    tasks: Sequence[OperatorTask]
    reports: Sequence[OperatorReport]
    state: OperatorState
    expired_rows: int = 0


@dataclass(frozen=True, slots=True)
class Computed:
    """A batch whose tasks are done; `arrived` are all of its blocks."""

    routed: Routed
    operators: Sequence[Ran]
    arrived: Arrived

    @property
    def opened(self) -> Opened:
        """What it began with."""
        return self.routed.opened


@dataclass(frozen=True, slots=True)
class Moment:
    """What a draft needs besides its batch: the time, a string that no name has had, and wishes.

    `held`: the results of earlier batches that are held back; None: results are not held back.
    """

    now_s: float
    nonce: str
    wishes: tuple[Relayout, ...] = ()
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A batch that may be committed.

    `outcome` counts once the files of `sealed` (name -> content) are written, and a manifest of it
    is. Planners see `counts` from then on. `record`: the batch in figures.
    """

    computed: Computed
    outcome: Outcome
    sealed: Mapping[str, bytes]
    counts: Counts
    record: BatchRecord
