"""The stages of a batch as values: opened, routed, computed, drafted; then it has a manifest.

Each stage is made from the previous stage, and holds all that follows from it. A batch that is not
committed changes nothing outside these values. It may fail, be tried again, or be beaten by another
driver; at most it leaves files that no manifest names.
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

#: Name of a statistics file -> the counts in it, for planners.
Counts = Mapping[str, Interval]


@dataclass(frozen=True, slots=True)
class Program:
    """What all batches of a start share: the query, its settings, and where its run files lie.

    `driver` names this start of the driver: workers verify files anew for each start.
    """

    query: QuerySpec
    settings: Settings
    runs_folder: str
    parallelism: int
    driver: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A batch that begins: what it follows, how far it reads, and how its tuples travel.

    `last`: the previous manifest; `counts`: the counts that it names. `start`, `end`: where the
    batch begins and ends in each source. `generation`: of the driver that runs it. `clock_s`: the
    driver's clock at the start of the batch, in seconds since the epoch; all tasks use it. `aside`:
    the folder where refused tuples are staged; None: they are only counted. `resumed_for`: per
    operator, why its layout differs from that of the previous batch; empty: none does. `named`:
    the files already named as skipped. `handed`: Spark's last micro-batch up to this batch.
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
        """The number of the batch."""
        return self.last.batch + 1


@dataclass(frozen=True, slots=True)
class Routed:
    """A batch whose tuples are on their way.

    `skipped`: the files that were not read and are not named yet. `told`: the staged file that
    lists them for the user, if there is one.
    """

    opened: Opened
    reports: Sequence[RouteReport]
    skipped: tuple[Skipped, ...] = ()
    told: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrived:
    """The blocks on their way to the operators of a batch, and the reports of their content."""

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
        """These, plus the blocks that an operator's tasks have written for later operators."""
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
    """An operator whose tasks are done: the attempt that succeeded, its tasks and their reports.

    `state`: after the tasks. `expired_rows`: rows that had expired before the tasks.
    """

    begun: Attempt
    tasks: Sequence[OperatorTask]
    reports: Sequence[OperatorReport]
    state: OperatorState
    expired_rows: int = 0


@dataclass(frozen=True, slots=True)
class Computed:
    """A batch whose tasks are done; `arrived`: all of its blocks."""

    routed: Routed
    operators: Sequence[Ran]
    arrived: Arrived

    @property
    def opened(self) -> Opened:
        """The batch as it began."""
        return self.routed.opened


@dataclass(frozen=True, slots=True)
class Moment:
    """What a draft needs besides its batch: the time, an unused string for names, and wishes.

    `held`: the results of earlier batches that are held back; None: results are not held back.
    """

    now_s: float
    nonce: str
    wishes: tuple[Relayout, ...] = ()
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A batch that may be committed.

    `outcome` counts once the files of `sealed` (name -> content) and a manifest of it are written.
    From then on, planners see `counts`. `record`: the figures of the batch.
    """

    computed: Computed
    outcome: Outcome
    sealed: Mapping[str, bytes]
    counts: Counts
    record: BatchRecord
