"""A batch as pure functions: last manifest -> instructions, and reports -> next manifest.

Why: the decisions of the driver can be read, repeated and tested as values: no file, no clock, no
Spark. `joinengine.driver.batch` carries them out: it routes, runs, seals, commits and delivers.

Law: equal arguments give equal instructions and equal manifests.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from joinengine.balancing.reasons import Reason
from joinengine.balancing.statistics import Interval, Prices
from joinengine.driver import clock, relayout
from joinengine.driver.asking import asked_keys, asked_of
from joinengine.driver.batch_totals import added
from joinengine.driver.folding import costs_of, interval_of
from joinengine.driver.recording import record_of
from joinengine.driver.recovery.demands import has_copies
from joinengine.driver.relayout import fitted_wish
from joinengine.driver.stages import Arrived, Computed, Draft, Moment, Opened, Program, Ran
from joinengine.exchange.roles import Origin, Role
from joinengine.exchange.route import RoutePlan
from joinengine.exchange.task_results import Target, ToOperator
from joinengine.layouts import Chosen
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.keys import PAIR, Side
from joinengine.model.query import FromOperator, FromSource
from joinengine.model.recovery import Durability
from joinengine.operators.base import Attempt, Operator, OperatorTask, Order, QuerySpec
from joinengine.operators.desk import RunFolder, TaskHeader
from joinengine.operators.timing import Noted, noted
from joinengine.state.manifest import Manifest, Outcome
from joinengine.state.operator_state import Clock, Layouts, OperatorState, SideClock
from joinengine.world.buckets import is_url
from joinengine.world.storage import StoredFile, tagged

#: The most bytes of inlined run files that an operator has, and that one task adds in a batch. A
#: request to write a file takes 30 to 90 ms and costs as much as 0.4 s of a core. An inlined file
#: needs no request. Instead, the manifest of its batch and full manifests carry it, and so do the
#: instructions of each batch until its runs are merged: some 0.1 ms of the driver for 16 KB.
INLINED_BYTES = 256 << 10
INLINED_FILE_BYTES = 16 << 10


def begin(query: QuerySpec, choices: Sequence[LayoutChoice], query_id: str) -> Manifest:
    """The manifest before the first batch."""
    states = list[OperatorState]()
    for operator, choice in zip(query.operators, choices, strict=True):
        chosen = Chosen.start(choice, operator.instances)
        watchers = operator.instances if operator.watched else 0
        clock = Clock((SideClock(),) * max(len(operator.inputs), len(PAIR)))
        states.append(OperatorState(Layouts(chosen, chosen), clock, watchers=watchers))
    return Manifest(query_id, -1, tuple(states))


def resume(
    query: QuerySpec, manifest: Manifest, choices: Sequence[LayoutChoice], *, lazy: bool
) -> tuple[Manifest, tuple[Reason | None, ...]]:
    """The manifest of a checkpoint with the layouts that this start of the query asks for.

    The second value says for each operator why its layout has changed; None: it has not.
    """
    resumed = [
        relayout.as_asked(
            operator, state, choice, lazy=lazy, sized=operator.index not in query.unsized
        )
        for operator, state, choice in zip(
            query.operators, manifest.operators, choices, strict=True
        )
    ]
    states, reasons = zip(*resumed, strict=True)
    return replace(manifest, operators=states), reasons


def route(program: Program, opened: Opened) -> RoutePlan:
    """The instructions of all route tasks."""
    query, notes = program.query, noted(program.query.operators)
    roles = {
        source: tuple(
            _role(program, opened, operator, side, notes.get((operator.index, side)))
            for operator, side in query.readers_of(FromSource(source))
        )
        for source in range(len(query.sources))
    }
    memory, serials = program.settings.held_bytes, opened.last.serials
    return RoutePlan(opened.number, serials, roles, opened.exchange, memory)


def expire(query: QuerySpec, manifest: Manifest) -> list[tuple[OperatorState, int]]:
    """Per operator, the state that the batch begins with, and how many rows have expired."""
    return [
        operator.expire(state)
        for operator, state in zip(query.operators, manifest.operators, strict=True)
    ]


def order(
    program: Program,
    opened: Opened,
    operator: Operator,
    attempt: Attempt,
    arrived: Arrived,
    sink_target: Callable[[], Target],
) -> Sequence[OperatorTask]:
    """The tasks of an operator; none if nothing arrives and nothing is due.

    `attempt`: has the operator's state without expired runs. `sink_target`: gives the place for the
    results of the last operator.
    """
    query, settings, state = program.query, program.settings, attempt.state
    later = query.readers_of(FromOperator(operator.index))
    history = [opened.counts[stored.name] for stored in state.layouts.history]
    asked = asked_keys(state.layouts.newest, history)
    next_role = _role(program, opened, *later[0]) if later else None
    last = query.operators[-1]
    newest = state.layouts.newest
    copied, copying = newest.layout.copied is not None, newest.choice.copying
    levels = () if copying is None else copying.counted_levels
    stored = settings.keeps_store
    runs = RunFolder(
        program.runs_folder,
        fsync=settings.fsync,
        cache_bytes=settings.cache_bytes,
        inline_bytes=_inline_bytes(program, state),
        is_behind=settings.durability is Durability.REPLICAS,
    )

    def header(task: int, hosted: tuple[int, ...], files: Collection[str]) -> TaskHeader:
        if next_role is None:
            target = sink_target()
        else:
            target = ToOperator(next_role, Origin(opened.number, task, opened.last.serials + task))
        return TaskHeader(
            operator=operator.index,
            batch=opened.number,
            task=task,
            generation=opened.generation,
            hosted=hosted,
            files={name: state.shelves.files[name] for name in sorted(files)},
            watermark=state.clock.watermark,
            counted=asked_of(asked, hosted),
            target=target,
            checksum=settings.checksum and operator is last,
            runs=runs,
            exchange=opened.exchange,
            driver=program.driver,
            named=settings.show_keys,
            copied=copied,
            survives=stored or has_copies(operator, state),
            levels=levels,
            weighs=settings.weighs,
        )

    blocks = arrived.at(operator)
    memory = settings.held_bytes
    number, most = opened.number, program.parallelism
    losses = attempt.lost, tuple(attempt.fetched)
    return operator.tasks(Order(state, number, blocks, most, memory, header, *losses))


def _inline_bytes(program: Program, state: OperatorState) -> int:
    """How many bytes of run files each task may inline; 0 if runs lie in a folder.

    With this, the inlined files of an operator stay below INLINED_BYTES.
    """
    if not is_url(program.runs_folder):
        return 0
    files = state.shelves.files.values()
    inlined = sum(file.size_bytes for file in files if file.content is not None)
    left = max(INLINED_BYTES - inlined, 0)
    return min(INLINED_FILE_BYTES, left // program.parallelism)


def close(program: Program, computed: Computed, moment: Moment) -> Draft:
    """The draft of a computed batch: its outcome, the files to write, and its record."""
    query, settings, opened = program.query, program.settings, computed.opened
    planned, reasons = list[OperatorState](), list[Reason | None]()
    seen, sealed = dict(opened.counts), dict[str, bytes]()
    count = len(query.operators)
    for operator, ran in zip(query.operators, computed.operators, strict=True):
        state, history = ran.state, list[Interval]()
        choice = state.layouts.newest.choice
        if ran.reports and settings.weighs:
            state = replace(state, costs=costs_of(state.costs, ran.reports))
        if ran.reports and choice.history_intervals:
            interval = _interval(program, operator, ran, state, computed.arrived)
            if choice.keeps(interval):
                name = f"counts-{opened.number:08d}-{operator.index}-{moment.nonce}.npz"
                name = tagged(opened.generation, name)
                seen[name], sealed[name] = interval, interval.to_bytes()
                state = _with_counts(state, name, sealed[name])
                history = [seen[stored.name] for stored in state.layouts.history]
        state, reason = relayout.after_batch(
            operator,
            state,
            history,
            [fitted_wish(wish, operator, count, settings.naming) for wish in moment.wishes],
            capacity=settings.capacity,
            lazy=settings.lazy,
        )
        planned.append(state)
        reasons.append(reason)
    last, inputs = opened.last, computed.arrived.inputs
    routed = computed.routed.reports
    partitions = clock.partitions_after(last.partitions, routed, moment.now_s)
    past = last.operators, planned, inputs, clock.progress_of(routed)
    states = clock.advance(query, *past, moment.now_s, partitions)
    named = {stored.name for state in states for stored in state.layouts.history}
    sealed = {name: content for name, content in sealed.items() if name in named}
    counts = {name: interval for name, interval in seen.items() if name in named}
    record = record_of(query, computed, states, reasons, sealed, counts)
    record.partitions = partitions
    refused = *(side.refused for side in inputs), *(r.refused for r in computed.routed.reports)
    outcome = Outcome(
        query=last.query,
        batch=opened.number,
        operators=states,
        results=tuple(
            stored for report in computed.operators[-1].reports for stored in report.result_files
        ),
        refused=(*filter(None, refused), *computed.routed.told),
        held=moment.held,
        totals=added(last.totals, record),
        clock_s=opened.clock_s,
        position=opened.end,
        wishes=moment.wishes,
        skipped=computed.routed.skipped,
        quiet=not any(side.rows for side in inputs),
        handed=opened.handed,
        partitions=partitions,
        serials=last.serials + _tasks_of(computed),
    )
    return Draft(computed, outcome, sealed, counts, record)


def _tasks_of(computed: Computed) -> int:
    """How many serials a batch needs, so that no two tasks that feed one side share one."""
    routing = (report.partition + 1 for report in computed.routed.reports)
    joining = (report.task + 1 for ran in computed.operators for report in ran.reports)
    return max((*routing, *joining), default=0)


def _interval(
    program: Program, operator: Operator, ran: Ran, state: OperatorState, arrived: Arrived
) -> Interval:
    """The counts of this batch; `state`: after the tasks, with the costs fitted to them."""
    sent = [(report.operator, report.side) for report in arrived.inputs]
    asked = [task.header.counted for task in ran.tasks]
    return interval_of(
        ran.reports,
        state,
        sent.count((operator.index, Side.LEFT)),
        whole=all(keys is None or keys.whole for keys in asked),
        prices=_prices(program, operator, state),
    )


def _prices(program: Program, operator: Operator, state: OperatorState) -> Prices | None:
    """The cost of work; None: planners balance tuples.

    The `further` seconds of the policy pass at all instances of a task at the same time, as if each
    had a task of its own.
    """
    if not program.settings.weighs:
        return None
    further = operator.policy.further
    hosts = 0 if any(further) else program.parallelism
    return Prices(state.costs.prices(further), hosts, state.costs.turn_s)


def _with_counts(state: OperatorState, name: str, content: bytes) -> OperatorState:
    """The state whose history ends with the counts in the file `name`."""
    layouts = state.layouts
    stored = StoredFile(name, len(content), zlib.crc32(content))
    kept = (*layouts.history, stored)[-layouts.newest.choice.history_intervals :]
    return replace(state, layouts=replace(layouts, history=kept))


def _role(
    program: Program, opened: Opened, operator: Operator, side: Side, passed: Noted | None = None
) -> Role:
    """The role that tuples of this batch have on a side of an operator, which notes `passed`."""
    admission, state = operator.admission(side), opened.last.operators[operator.index]
    ahead_us = admission.ahead_us if passed is None else passed.ahead_us
    return Role(
        operator.index,
        side,
        admission,
        watermark=state.clock.watermark,
        router=state.layouts.router,
        watchers=state.watchers if side in operator.watched else 0,
        aside=opened.aside,
        fsync=program.settings.fsync,
        generation=opened.generation,
        latest=math.inf if ahead_us is None else round(opened.clock_s * 1e6) + ahead_us,
        noted=() if passed is None else passed.times,
    )
