"""Defines `Operator`: a step of a query, as the driver sees it, and its tasks.

Why: routing, blocks, runs, plans, watermarks, results and the commit are the same for every
operator. The driver asks an operator about everything else. So a new operator is one folder: a
frozen value that implements `Operator`. Tasks get this value with the function of their job. What
changes from batch to batch, they get as an `OperatorTask`, which holds values and no code.

Law: every answer is a function of its arguments, so a batch that is tried again gets the same
tasks. If tasks are repeated, the layout changes, or the input is cut into other batches, the
results stay the same multiset.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from joinengine.exchange.arrivals import Arriving
from joinengine.exchange.exchange import Exchange
from joinengine.exchange.finishing import Finish
from joinengine.exchange.roles import Admission
from joinengine.exchange.task_results import ResultColumns
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.conditions import Condition
from joinengine.model.keys import Side
from joinengine.model.query import FromSource, Input, Timed
from joinengine.operators.desk import Desk, TaskHeader
from joinengine.operators.layout_policy import LayoutPolicy
from joinengine.operators.spines import Hosted, Stored
from joinengine.operators.timing import Flow, Limit, Upstream, limit_of_side, noted
from joinengine.state.operator_state import OperatorState
from joinengine.state.run import RunStore, Spread
from joinengine.wire.reports import Block, OperatorReport
from joinengine.world.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTask:
    """The instructions of one task of an operator in one batch.

    `arriving`: per side, the tuples on their way. `received`: per side, the blocks that have
    reached the task through a shuffle; None: it reads files. `stored`: the state, and how it must
    move first. `shelves`: the runs of the hosted instances on further shelves. `facts`: named
    numbers of the operator. `memory_bytes`: how many bytes of tuples the task may hold.
    """

    header: TaskHeader
    arriving: tuple[Arriving, ...]
    stored: Stored
    shelves: Mapping[str, Spread]
    facts: Mapping[str, float]
    memory_bytes: int
    received: tuple[tuple[Block, ...], ...] | None = None

    @property
    def blocks(self) -> tuple[tuple[Block, ...], ...]:
        """Per side, the blocks with the tuples; only the bounds of hosted instances are valid."""
        if self.received is not None:
            return self.received
        return tuple(side.blocks for side in self.arriving)


def carry_out(
    operator: Operator, task: OperatorTask, store: RunStore, exchange: Exchange, world: World
) -> OperatorReport:
    """Run one task. `store`: opens the runs of its operator; `exchange`: has what arrives."""
    columns = ResultColumns(operator.output_schema, operator.finish, operator.is_changelog)
    desk = Desk(*(task.header, columns, store, exchange, world), memory_bytes=task.memory_bytes)
    shelves = (task.stored.runs, *task.shelves.values())
    if task.header.survives and (lost := desk.lost(shelves)):
        return OperatorReport(task.header.task, lost=lost)
    operator.carry_out(task, desk)
    return desk.close()


@dataclass(frozen=True)
class Attempt:
    """The state on which the tasks of an operator run in a batch, and the losses found so far.

    `lost`: instances that copies have replaced after the batch's tuples were routed. `fetched`:
    instance whose state was read again from the store -> how many rows.
    """

    state: OperatorState
    lost: tuple[int, ...] = ()
    fetched: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """One operator in one batch: its state before the batch, and the blocks on their way, per side.

    `lost`: instances whose state could not be read; others take over the tuples sent to them.
    `fetched`: instances whose state was read again from the store. `header`: (task, hosted
    instances, names of their files) -> the part of the instructions that all operators share.
    """

    state: OperatorState
    batch: int
    blocks: Mapping[Side, tuple[Block, ...]]
    parallelism: int
    memory_bytes: int
    header: Callable[[int, tuple[int, ...], Collection[str]], TaskHeader]
    lost: tuple[int, ...] = ()
    fetched: Collection[int] = ()

    @property
    def brings(self) -> bool:
        """Whether any tuple arrives."""
        return any(self.blocks.values())

    def tasks(
        self, instances: int, shelves: Sequence[str] = (), facts: Mapping[str, float] | None = None
    ) -> list[OperatorTask]:
        """The tasks that host `instances` instances; each gets their runs, and the same `facts`.

        `shelves`: further shelves whose runs the tasks need, beside that of the state.
        """
        hosted_by_task = hosts(instances, self.parallelism)
        stored = Stored.by_task(self.state, hosted_by_task, self.lost)
        read_by_task = [tuple({*hosted, *self.lost}) for hosted in hosted_by_task]
        arriving = [
            Arriving.by_task(blocks, side, read_by_task) for side, blocks in self.blocks.items()
        ]
        runs_by_shelf = {
            shelf: Hosted.of(self.state.shelves.on(shelf).values()) for shelf in shelves
        }
        tasks = list[OperatorTask]()
        for number, hosted in enumerate(hosted_by_task):
            shelves_here = {shelf: runs.at(hosted) for shelf, runs in runs_by_shelf.items()}
            spreads = (stored[number].runs, *shelves_here.values())
            files = {run.file for spines in spreads for spine in spines.values() for run in spine}
            tasks.append(
                OperatorTask(
                    header=self.header(number, hosted, files),
                    arriving=tuple(side[number] for side in arriving),
                    stored=stored[number],
                    shelves=shelves_here,
                    facts=facts or {},
                    memory_bytes=self.memory_bytes,
                )
            )
        return tasks


class Defaults(Protocol):
    """The default answers of an operator: no side is watched, and no batch is due.

    `index` and `inputs` are not here: a dataclass would take a property for a field's default.
    """

    __slots__ = ()

    @property
    def kind(self) -> str:
        """The operator's name for people: the name of its class."""
        return type(self).__name__.lower()

    @property
    def policy(self) -> LayoutPolicy:
        """The effect of a change of the layout; by default, the state follows the layout."""
        return LayoutPolicy()

    @property
    def watched(self) -> tuple[Side, ...]:
        """The watched sides: their tuples also go to a watcher (`operators.join.watchers`)."""
        return ()

    @property
    def lags(self) -> bool:
        """Whether results may come a batch after the watermark has passed their tuples."""
        return False

    @property
    def is_changelog(self) -> bool:
        """Whether results are changes: the last column says how many equal rows come or go."""
        return False

    @property
    def until_us(self) -> int | None:
        """The event time that the right side must reach before the left one is read; None: none."""
        return None

    @property
    def finish(self) -> Finish | None:
        """The steps from a result to the row that leaves; None: none."""
        return None

    def expire(self, state: OperatorState) -> tuple[OperatorState, int]:
        """The state without the runs that no tuple on time can need, and how many rows expired.

        By default, all runs stay, and tasks forget them.
        """
        return state, 0

    def is_due(self, state: OperatorState, batch: int, *, quiet: bool) -> bool:
        """Whether a batch is due without data; `quiet`: the last batch brought none either."""
        return False

    def limit(self: Operator, side: Side, newest: float, upstream: Upstream) -> Limit:
        """How far event time has come on a side; `newest`: the greatest time seen there (us).

        By default, the source or the operator that the side reads decides (`limit_of_side`).
        """
        return limit_of_side(self, side, newest, upstream)

    def time_through(self, columns: Sequence[str]) -> tuple[Side, Sequence[str]] | None:
        """The side whose event time the output `columns` pass on, and its columns; None: none."""
        return None

    def output_lag_us(self, columns: Sequence[str]) -> int | None:
        """How far the latest of `columns` may lag behind the watermark (us); None: no bound."""
        return None

    def forecast(self, rates: Mapping[Side, Flow]) -> tuple[float, float] | None:
        """(rows, bytes) of the state at its fullest, if `rates` continue; None: unknown."""
        return None


class OneInput(Defaults):
    """The defaults of operators with one input; by default, results pass on no event time."""

    __slots__ = ()


class Operator(Defaults, Protocol):
    """A step of a query as the driver sees it; `inputs` and `schemas` are per side."""

    __slots__ = ()

    @property
    @abstractmethod
    def index(self) -> int:
        """The number of the operator in the query."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[Input, ...]:
        """The input of each side: LEFT alone, two sides, or more."""

    @property
    @abstractmethod
    def schemas(self) -> tuple[pa.Schema, ...]:
        """The columns of the inputs."""

    @property
    @abstractmethod
    def output_schema(self) -> pa.Schema:
        """The columns of the results."""

    @property
    @abstractmethod
    def instances(self) -> int:
        """How many instances the operator starts with."""

    @property
    @abstractmethod
    def condition(self) -> Condition:
        """Which tuples a layout must bring together."""

    @property
    @abstractmethod
    def window(self) -> Timed | None:
        """Which columns hold event time; None: the operator ignores event time."""

    @abstractmethod
    def admission(self, side: Side) -> Admission:
        """Which tuples enter a side, and under which hashes they are stored and probed."""

    @abstractmethod
    def tasks(self, order: Order) -> Sequence[OperatorTask]:
        """The tasks of a batch; none if nothing arrives and nothing is due."""

    @abstractmethod
    def carry_out(self, task: OperatorTask, desk: Desk) -> None:
        """Do the work of a task at its instances, in a worker."""

    @abstractmethod
    def account(self) -> Mapping[str, Any]:
        """Plain values that must agree if a checkpoint is to be continued."""

    @abstractmethod
    def lines(
        self, inputs: Sequence[str], choice: LayoutChoice, rates: Mapping[Side, Flow]
    ) -> list[str]:
        """The lines of the operator in `explain`; `inputs`: the names of its inputs.

        `rates`: the flow of sides so far, where it was measured.
        """


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """All operators of one streaming query; the results of the last operator are the query's.

    `tables`: the bounded sources, which are read whole before the first batch. `unsized`: the
    operators without a given number of instances, so that a checkpoint keeps its own number.
    `first`: sources that are read before the others, as far as they go when the query starts.
    """

    operators: tuple[Operator, ...]
    sources: tuple[str, ...]
    tables: frozenset[int] = frozenset()
    unsized: frozenset[int] = frozenset()
    first: frozenset[int] = frozenset()

    def readers_of(self, source: Input) -> list[tuple[Operator, Side]]:
        """(operator, side) of each input that reads `source`."""
        return [
            (operator, Side(side))
            for operator in self.operators
            for side, read in enumerate(operator.inputs)
            if read == source
        ]


def time_column(query: QuerySpec, source: int) -> str | None:
    """The event-time column by which a source is joined; None: no operator knows its times."""
    notes = noted(query.operators)
    for operator, side in query.readers_of(FromSource(source)):
        passed = notes.get((operator.index, side))
        for column in operator.admission(side).times if passed is None else passed.times:
            return column
    return None


def ahead_us(query: QuerySpec, source: int) -> int | None:
    """How far event times of a source may be ahead of the clock for all operators that read it.

    In microseconds; None: any distance.
    """
    notes, limits = noted(query.operators), list[int | None]()
    for operator, side in query.readers_of(FromSource(source)):
        passed = notes.get((operator.index, side))
        limits.append((passed or operator.admission(side)).ahead_us)
    return min((limit for limit in limits if limit is not None), default=None)


def sides_of(operator: Operator) -> tuple[Side, ...]:
    """The sides of an operator: two, LEFT alone, or more."""
    return tuple(Side)[: len(operator.inputs)]


def hosts(instances: int, tasks: int) -> list[tuple[int, ...]]:
    """The instances that each task hosts.

    >>> hosts(5, 2)
    [(0, 2, 4), (1, 3)]
    """
    n = min(instances, tasks)
    return [tuple(range(task, instances, n)) for task in range(n)]
