"""Advances the watermarks, and says when a batch without data is due. Pure: no Spark, no files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from joinengine.model.keys import Side
from joinengine.model.query import FromOperator, FromSource, Input
from joinengine.operators.base import Operator, QuerySpec, sides_of
from joinengine.operators.timing import Limit, Upstream, followed
from joinengine.state.manifest import Manifest
from joinengine.state.operator_state import Clock, OperatorState, SideClock
from joinengine.state.partitions import BySource, Partitions
from joinengine.wire.reports import InputReport, RouteReport


def advance(
    query: QuerySpec,
    before: Sequence[OperatorState],
    states: Sequence[OperatorState],
    inputs: Sequence[InputReport],
    progress: Mapping[int, float],
    now_s: float,
    partitions: BySource | None = None,
) -> tuple[OperatorState, ...]:
    """The states with the clock of the next batch; `before`: the states at the start of this one.

    An operator's watermark is the least limit over its sides. A side that has brought no tuple
    with an event time for `idle_after` is left out, unless all are idle. A side that has ended is
    left out, too, until all have ended. In a source with `partitions`, the slowest one that is not
    idle counts. If n earlier operators may emit results a batch after their cause, the limit of n
    batches ago is used.
    """
    advanced = list[OperatorState]()
    slowest = {source: clocks.slowest(now_s) for source, clocks in (partitions or {}).items()}
    for operator, state in zip(query.operators, states, strict=True):
        ours = [report for report in inputs if report.operator == operator.index]
        if operator.window is None:
            advanced.append(state if operator.until_us is None else _seen(state, ours))
            continue
        upstream = Upstream(query.operators, advanced, before, progress, slowest)
        clock = _advanced(operator, state.clock, inputs, upstream, now_s)
        late = sum(report.late_rows for report in ours)
        advanced.append(replace(state, clock=clock, late_rows=state.late_rows + late))
    return tuple(advanced)


def _seen(state: OperatorState, inputs: Sequence[InputReport]) -> OperatorState:
    """The state of an operator without a watermark: it only notes the newest times of its sides."""
    sides = list(state.clock.sides)
    for report in inputs:
        if report.newest_time is not None:
            newest = max(sides[report.side].newest, report.newest_time)
            sides[report.side] = replace(sides[report.side], newest=newest)
    return replace(state, clock=replace(state.clock, sides=(sides[0], sides[1])))


def _advanced(
    operator: Operator,
    clock: Clock,
    inputs: Sequence[InputReport],
    upstream: Upstream,
    now_s: float,
) -> Clock:
    sides, limits = list(clock.sides), list[float]()
    held_back, have_ended = False, True
    for side in sides_of(operator):
        seers = (operator.index, side), followed(upstream.operators, operator, side).seer
        of_side = [report for report in inputs if (report.operator, report.side) in seers]
        side_clock, limit = _side(operator, side, clock.sides[side], of_side, upstream, now_s)
        used = [limit.time, *clock.sides[side].ahead][: limit.lags + 1][-1]
        held_back = held_back or used != limit.time
        sides[side] = side_clock
        have_ended = have_ended and used == math.inf
        if used < math.inf and not _is_idle(operator, now_s - side_clock.idle_since):
            limits.append(used)
    least = math.inf if have_ended else min(limits, default=-math.inf)
    watermark = max(clock.watermark, least)
    return Clock(tuple(sides), watermark, closed=clock.watermark, held_back=held_back)


def _side(
    operator: Operator,
    side: Side,
    clock: SideClock,
    inputs: Sequence[InputReport],
    upstream: Upstream,
    now_s: float,
) -> tuple[SideClock, Limit]:
    times = [report.newest_time for report in inputs if report.newest_time is not None]
    idle_since = now_s if times or math.isinf(clock.idle_since) else clock.idle_since
    newest = max([clock.newest, *times])
    limit = operator.limit(side, newest, upstream)
    if isinstance(operator.inputs[side], FromSource) and limit.time == math.inf:
        newest = math.inf
    ahead = limit.time, *clock.ahead[: max(limit.lags - 1, 0)]
    return SideClock(newest, idle_since, ahead), limit


def _is_idle(operator: Operator, silent_s: float) -> bool:
    assert operator.window is not None
    limit = operator.window.idle_after_us
    return limit is not None and silent_s * 1e6 >= limit


def progress_of(reports: Iterable[RouteReport]) -> dict[int, float]:
    """Source -> the event time (us) below which it promises that no tuple follows."""
    promised = dict[int, float]()
    for report in reports:
        for source, time_us in report.progress.items():
            promised[source] = max(time_us, promised.get(source, time_us))
    return promised


def awake(manifest: Manifest, begun_s: float) -> Manifest:
    """The manifest for a driver that begins at `begun_s`; the time since its batch is not silence.

    Sources may have paused together with the previous driver, and may return one by one.
    """
    return stepped(manifest, begun_s - manifest.clock_s if manifest.clock_s else 0.0, begun_s)


def stepped(manifest: Manifest, step_s: float, now_s: float) -> Manifest:
    """The manifest for a clock that was set forward by `step_s` to `now_s`; below 0: set back.

    So a step is neither silence nor the end of one.
    """
    if not step_s:
        return manifest

    def later(since: float) -> float:
        return since if math.isinf(since) else min(since + step_s, now_s)

    operators = list[OperatorState]()
    for state in manifest.operators:
        sides = [replace(side, idle_since=later(side.idle_since)) for side in state.clock.sides]
        operators.append(replace(state, clock=replace(state.clock, sides=tuple(sides))))
    partitions = {
        source: replace(
            progress,
            clocks={n: (time, later(since)) for n, (time, since) in progress.clocks.items()},
        )
        for source, progress in manifest.partitions.items()
    }
    return replace(manifest, operators=tuple(operators), partitions=partitions)


def is_lagging(query: QuerySpec, manifest: Manifest) -> bool:
    """Whether a right side has not come as far as it must before left tuples are read."""
    return any(
        operator.until_us is not None and state.clock.sides[Side.RIGHT].newest < operator.until_us
        for operator, state in zip(query.operators, manifest.operators, strict=True)
    )


def tick_due(query: QuerySpec, manifest: Manifest, now_s: float) -> float | None:
    """When a batch without data is due (seconds since the epoch); None: not before data arrives.

    It is due at once if the watermark is held back, if all sides have ended and state is left, if
    an operator is due, or if a quiet batch moved the watermark past some state. It is due later if
    a side that holds the watermark up may become idle. An operator counts if it holds state, or if
    an operator that reads its results holds state, and so waits for its watermark.
    """
    due, waiting = list[float](), set[Input]()
    for operator, state in zip(
        reversed(query.operators), reversed(manifest.operators), strict=True
    ):
        clock, holds = state.clock, not state.shelves.is_empty
        if not (holds or FromOperator(operator.index) in waiting):
            continue
        waiting |= {*operator.inputs}
        if clock.held_back or (holds and _is_due(operator, state, manifest)):
            return now_s
        limit = None if operator.window is None else operator.window.idle_after_us
        if limit is not None:
            moments = [s.idle_since + limit / 1e6 for s in clock.sides if s.idle_since < math.inf]
            due += [moment for moment in moments if moment > now_s]
        if operator.window is not None:
            asides = (progress.due(now_s) for progress in manifest.partitions.values())
            due += [moment for moment in asides if moment is not None]
    return min(due, default=None)


def _is_due(operator: Operator, state: OperatorState, manifest: Manifest) -> bool:
    """Whether a batch without data would do something with the state of an operator."""
    return (
        state.clock.watermark == math.inf
        or operator.is_due(state, manifest.batch + 1, quiet=manifest.quiet)
        or (manifest.quiet and operator.expire(state)[1] > 0)
    )


def partitions_after(before: BySource, reports: Iterable[RouteReport], now_s: float) -> BySource:
    """The partitions after a batch that ended at `now_s`."""
    after, newest = dict(before), dict[tuple[int, int], int]()
    stamps = {source: dict(progress.read) for source, progress in before.items()}
    for report in reports:
        for source, seen in report.newest.items():
            for number, time in seen.times.items():
                newest[source, number] = max(time, newest.get((source, number), time))
            read = stamps.setdefault(source, {})
            for number, stamp in seen.stamps.items():
                read[number] = max(stamp / 1e3, read.get(number, 0.0))
        for source, lag in report.lags.items():
            old = before[source].clocks if source in before else {}
            clocks = {number: old.get(number, (-math.inf, now_s)) for number in lag.behind}
            after[source] = Partitions(lag.idle_us / 1e6, clocks, lag.behind)
    return {
        source: Partitions(
            progress.idle_s,
            {
                number: _moved(clock, newest.get((source, number)), progress.behind[number], now_s)
                for number, clock in progress.clocks.items()
            },
            progress.behind,
            stamps.get(source, {}),
        )
        for source, progress in after.items()
    }


def _moved(
    clock: tuple[float, float], time: int | None, waiting: int, now_s: float
) -> tuple[float, float]:
    newest, since = clock
    return (
        newest if time is None else max(newest, time),
        now_s if waiting or time is not None else since,
    )
