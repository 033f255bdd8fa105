"""One batch as pure functions: from the last manifest to instructions, from reports to the next.

Why: the decisions of the driver can be read, repeated and tested as values: no file, no clock, no
Spark. `joinengine.driver.batch` carries them out: it routes, runs, seals, commits and delivers.

Law: equal arguments give equal instructions and equal manifests.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from joinengine.balancing.reasons import Reason
from joinengine.balancing.statistics import Interval
from joinengine.driver import clock, relayout
from joinengine.driver.asking import asked_keys, asked_of
from joinengine.driver.failing import has_copies
from joinengine.driver.folding import Weighing, costs_of, interval_of
from joinengine.driver.relayout import Relayout
from joinengine.driver.settings import Settings
from joinengine.exchange.exchange import Through
from joinengine.exchange.reports import Block, InputReport, OperatorReport, RouteReport
from joinengine.exchange.results import Target, ToOperator
from joinengine.exchange.roles import Origin, Role
from joinengine.exchange.route import RoutePlan
from joinengine.layouts import Chosen
from joinengine.layouts.base import LayoutChoice
from joinengine.layouts.key_based import has_backups
from joinengine.layouts.replicas import Ftlb
from joinengine.model.keys import Side
from joinengine.model.query import FromOperator, FromSource
from joinengine.model.recovery import Durability
from joinengine.operators.base import Operator, OperatorTask, Order, QuerySpec
from joinengine.operators.desk import TaskHeader
from joinengine.state.manifest import Manifest
from joinengine.state.operator_state import Layouts, OperatorState
from joinengine.world.buckets import is_url
from joinengine.world.storage import StoredFile, tagged

#: Of the run files of an operator that are inlined, and of what a task may add to them in a batch.
#: A request to write a file takes 30 to 90 ms and costs as much as 0.4 s of a core. An inlined file
#: costs no request; it is written with its batch and in full manifests, and told to its task in
#: each batch until its runs are merged, which takes the driver some 0.1 ms for 16 KB each time.
INLINED_BYTES = 256 << 10
INLINED_FILE_BYTES = 16 << 10

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
class Batch:
    """A batch: its number, its exchange, and the generation of the driver that runs it.

    `clock_s`: the driver's clock at its start, in seconds since the epoch: the same for all tasks.
    `aside`: the folder where refused tuples are staged; None: they are only counted.
    """

    number: int
    exchange: Through
    generation: int
    clock_s: float
    aside: str | None = None


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
            tuple(one for report in reports for one in report.inputs),
        )

    def and_results(self, reports: Sequence[OperatorReport]) -> Arrived:
        """These, and the blocks that an operator's tasks have written for later operators."""
        blocks = (report.next_block for report in reports)
        inputs = (report.next_input for report in reports)
        return Arrived(
            (*self.blocks, *(block for block in blocks if block is not None)),
            (*self.inputs, *(one for one in inputs if one is not None)),
        )

    def at(self, operator: int) -> dict[Side, tuple[Block, ...]]:
        """The blocks on their way to one operator, per side."""
        return {
            side: tuple(b for b in self.blocks if (b.operator, b.side) == (operator, side))
            for side in Side
        }


@dataclass(frozen=True, slots=True)
class Done:
    """A batch whose tasks are done: per operator the state after its tasks, and their reports.

    `arrived` are all blocks of the batch; `progress` is the sources' promise: source -> no earlier
    event time follows.
    """

    states: Sequence[OperatorState]
    reports: Sequence[Sequence[OperatorReport]]
    arrived: Arrived
    progress: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Moment:
    """What a pure step must be given: the time, and a string that no name has had before."""

    now_s: float
    nonce: str


@dataclass(frozen=True, slots=True)
class Next:
    """The outcome of a batch.

    `manifest` is to be committed once the files of `sealed` (name -> content) are written. Planners
    see `counts` from then on. `reasons`: per operator why its layout changes, or why a plan
    was declined; None: it stays.
    """

    manifest: Manifest
    sealed: Mapping[str, bytes]
    counts: Counts
    reasons: tuple[Reason | None, ...]


def begin(query: QuerySpec, choices: Sequence[LayoutChoice], query_id: str) -> Manifest:
    """The manifest before the first batch."""
    states = list[OperatorState]()
    for operator, choice in zip(query.operators, choices, strict=True):
        chosen = Chosen.start(choice, operator.instances)
        watchers = operator.instances if operator.watched else 0
        states.append(OperatorState(Layouts(chosen, chosen), watchers=watchers))
    return Manifest(query_id, -1, tuple(states))


def resume(
    query: QuerySpec, manifest: Manifest, choices: Sequence[LayoutChoice], *, lazy: bool
) -> tuple[Manifest, tuple[Reason | None, ...]]:
    """The manifest of a checkpoint with the layouts that this start of the query asks for, and why.

    `reasons` as in Next.
    """
    resumed = [
        relayout.as_asked(operator, state, choice, lazy=lazy)
        for operator, state, choice in zip(
            query.operators, manifest.operators, choices, strict=True
        )
    ]
    states, reasons = zip(*resumed, strict=True)
    return replace(manifest, operators=states), reasons


def route(program: Program, manifest: Manifest, batch: Batch) -> RoutePlan:
    """The instructions of all route tasks."""
    query = program.query
    roles = {
        source: tuple(
            _role(manifest, operator, side, batch)
            for operator, side in query.readers_of(FromSource(source))
        )
        for source in range(len(query.sources))
    }
    return RoutePlan(batch.number, roles, batch.exchange, program.settings.memory_per_task)


def expire(query: QuerySpec, manifest: Manifest) -> list[tuple[OperatorState, int]]:
    """Per operator the state that the batch begins with, and how many rows have left it."""
    return [
        operator.expire(state)
        for operator, state in zip(query.operators, manifest.operators, strict=True)
    ]


def order(
    program: Program,
    manifest: Manifest,
    batch: Batch,
    operator: Operator,
    state: OperatorState,
    arrived: Arrived,
    counts: Counts,
    sink_target: Callable[[], Target],
) -> Sequence[OperatorTask]:
    """The tasks of an operator; none if nothing arrives and nothing is due.

    `state` is the operator's state without expired runs, `counts` are those that the manifest
    names; `sink_target`: where the last operator's results go.
    """
    query, settings = program.query, program.settings
    later = query.readers_of(FromOperator(operator.index))
    history = [counts[stored.name] for stored in state.layouts.history]
    asked = asked_keys(state.layouts.newest, history)
    next_role = _role(manifest, *later[0], batch) if later else None
    last = query.operators[-1]
    newest = state.layouts.newest
    copied = has_backups(newest.layout)
    levels = newest.choice.counted_levels if isinstance(newest.choice, Ftlb) else ()
    stored = settings.kept_store is not None
    retried = state.layouts.lost or state.fetched

    inline_bytes = _inline_bytes(program, state)

    def header(task: int, hosted: tuple[int, ...], files: Collection[str]) -> TaskHeader:
        if next_role is None:
            target = sink_target()
        else:
            target = ToOperator(next_role, Origin(batch.number, task))
        return TaskHeader(
            operator=operator.index,
            batch=batch.number,
            task=task,
            generation=batch.generation,
            hosted=hosted,
            files={name: state.shelves.files[name] for name in sorted(files)},
            watermark=state.clock.watermark,
            counted=asked_of(asked, hosted),
            target=target,
            checksum=settings.checksum and operator is last,
            runs_folder=program.runs_folder,
            exchange=batch.exchange,
            driver=program.driver,
            work_s=settings.work_s,
            result_work_s=settings.result_work_s,
            fsync=settings.fsync,
            cache_bytes=settings.cache_bytes,
            inline_bytes=inline_bytes,
            is_behind=settings.durability is Durability.REPLICAS,
            named=settings.show_keys,
            copied=copied,
            survives=stored or has_copies(operator, state),
            levels=levels,
            weighs=settings.weighs,
            failed=() if retried else tuple(settings.losses.get(batch.number, ())),
        )

    blocks = arrived.at(operator.index)
    memory = settings.memory_per_task
    return operator.tasks(Order(state, batch.number, blocks, program.parallelism, memory, header))


def _inline_bytes(program: Program, state: OperatorState) -> int:
    """How many bytes of run files each task may hand over with its report; 0 over a folder.

    So the inlined files of an operator stay below INLINED_BYTES.
    """
    if not is_url(program.runs_folder):
        return 0
    files = state.shelves.files.values()
    inlined = sum(one.size_bytes for one in files if one.content is not None)
    left = max(INLINED_BYTES - inlined, 0)
    return min(INLINED_FILE_BYTES, left // program.parallelism)


def close(
    program: Program,
    manifest: Manifest,
    batch: Batch,
    done: Done,
    counts: Counts,
    wishes: Sequence[Relayout],
    moment: Moment,
) -> Next:
    """The next manifest: `manifest` is the last one, `counts` are those that it names."""
    query, settings = program.query, program.settings
    planned, reasons = list[OperatorState](), list[Reason | None]()
    seen, sealed = dict(counts), dict[str, bytes]()
    for operator, folded, ours in zip(query.operators, done.states, done.reports, strict=True):
        state, history = folded, list[Interval]()
        choice = state.layouts.newest.choice
        if ours and settings.weighs:
            state = replace(state, costs=costs_of(state.costs, ours))
        if ours and choice.history_intervals:
            interval = _interval(program, operator, state, ours, done.arrived, seen)
            if choice.keeps(interval):
                name = f"counts-{batch.number:08d}-{operator.index}-{moment.nonce}.npz"
                name = tagged(batch.generation, name)
                seen[name], sealed[name] = interval, interval.to_bytes()
                state = _with_counts(state, name, sealed[name])
                history = [seen[stored.name] for stored in state.layouts.history]
        fitting = [one.fitted(operator, len(query.operators), settings.naming) for one in wishes]
        state, reason = relayout.after_batch(
            operator, state, history, fitting, capacity=settings.capacity, lazy=settings.lazy
        )
        planned.append(state)
        reasons.append(reason)
    inputs = done.arrived.inputs
    advanced = clock.advance(
        query, manifest.operators, planned, inputs, done.progress, moment.now_s
    )
    results = tuple(stored for report in done.reports[-1] for stored in report.result_files)
    refused = tuple(one.refused for one in inputs if one.refused is not None)
    after = Manifest(
        manifest.query, batch.number, advanced, results, refused, clock_s=batch.clock_s
    )
    named = {stored.name for state in advanced for stored in state.layouts.history}
    return Next(
        after,
        {name: content for name, content in sealed.items() if name in named},
        {name: interval for name, interval in seen.items() if name in named},
        tuple(reasons),
    )


def _interval(
    program: Program,
    operator: Operator,
    state: OperatorState,
    reports: Sequence[OperatorReport],
    arrived: Arrived,
    counts: Counts,
) -> Interval:
    """The counts of this batch; `counts` are those that the last manifest names."""
    index, newest = operator.index, state.layouts.newest
    tasks = sum((one.operator, one.side) == (index, Side.LEFT) for one in arrived.inputs)
    history = [counts[stored.name] for stored in state.layouts.history]
    whole, weighing = newest.choice.asks(newest.layout, history), _weighing(program)
    return interval_of(reports, state, tasks, whole=whole, weighing=weighing)


def _weighing(program: Program) -> Weighing | None:
    """How work is weighed; None: planners balance tuples.

    Emulated work of the instances of a task is done side by side, as if each had a machine.
    """
    settings = program.settings
    if not settings.weighs:
        return None
    emulated = settings.work_s, settings.result_work_s
    return Weighing(*emulated, hosts=0 if any(emulated) else program.parallelism)


def _with_counts(state: OperatorState, name: str, content: bytes) -> OperatorState:
    """The state whose history ends with the counts in the file `name`."""
    layouts = state.layouts
    stored = StoredFile(name, len(content), zlib.crc32(content))
    kept = (*layouts.history, stored)[-layouts.newest.choice.history_intervals :]
    return replace(state, layouts=replace(layouts, history=kept))


def _role(manifest: Manifest, operator: Operator, side: Side, batch: Batch) -> Role:
    """The role that tuples of this batch have on a side of an operator."""
    return Role.of(
        operator.index,
        side,
        operator.admission(side),
        manifest.operators[operator.index],
        watched=side in operator.watched,
        aside=batch.aside,
        generation=batch.generation,
        clock_s=batch.clock_s,
    )
