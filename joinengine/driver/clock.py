"""How far event time has come, and when a batch without data is due. Pure: no Spark, no files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from joinengine.driver.bookkeeping import expire, novelty_due, parts_due, watch_due
from joinengine.exchange.reports import InputReport, RouteReport
from joinengine.model.aggregates import AggregateSpec, Stage
from joinengine.model.keys import Side
from joinengine.model.novelty import NoveltySpec
from joinengine.model.query import FromJoin, FromSource, Input, JoinSpec, Operator, QuerySpec
from joinengine.state.manifest import JoinState, Manifest


def next_watermarks(
    query: QuerySpec,
    manifest: Manifest,
    joins: Sequence[JoinState],
    inputs: Sequence[InputReport],
    progress: Mapping[int, float],
    now_s: float,
) -> list[JoinState]:
    """The joins with the watermark of the next batch: per join the least over its sides.

    A side's own is the greatest event time seen less its delay, or the progress that the source
    promises; that of an earlier join's results follows from that join's watermark, of a batch ago
    where its results may come a batch after their cause. A side that has brought nothing for
    `idle_after` is left out, unless both are idle.
    """
    advanced = list[JoinState]()
    for spec, state in zip(query.joins, joins, strict=True):
        if spec.window is None:
            advanced.append(state)
            continue
        if isinstance(spec, AggregateSpec) and spec.stage is not Stage.PARTIAL:
            advanced.append(_later_stage(spec, state, manifest, advanced))
            continue
        ours = [report for report in inputs if report.join == spec.index]
        seen, idle = list(state.newest), list(state.idle_since)
        ahead, limits = list(state.ahead), [math.inf, math.inf]
        for side in spec.sides:
            here = [report for report in ours if report.side is side]
            if any(report.rows for report in here) or math.isinf(idle[side]):
                idle[side] = now_s
            times = [r.newest_time for r in here if r.newest_time is not None]
            seen[side] = max([seen[side], *times])
            limit, lags = _side_watermark(query, spec, side, seen[side], advanced, progress)
            if isinstance(spec.inputs[side], FromSource) and limit == math.inf:
                seen[side] = math.inf
            limits[side] = state.ahead[side] if lags else limit
            ahead[side] = limit
        waited_for = [limits[side] for side in spec.sides if not _is_idle(spec, now_s - idle[side])]
        watermark = max(state.watermark, min(waited_for, default=-math.inf))
        advanced.append(
            replace(
                state,
                newest=(seen[0], seen[1]),
                idle_since=(idle[0], idle[1]),
                watermark=watermark,
                ahead=(ahead[0], ahead[1]),
                held_back=any(ahead[side] != limits[side] for side in spec.sides),
                closed=state.watermark,
                late_rows=state.late_rows + sum(report.late_rows for report in ours),
            )
        )
    return advanced


def _later_stage(
    spec: AggregateSpec, state: JoinState, manifest: Manifest, earlier: Sequence[JoinState]
) -> JoinState:
    """A stage that gets partial results: it waits for all of them.

    MERGE has those of all tuples below the watermark of the stage before, if nothing waits there.
    TOP has, of the batch that is over, those of the windows that were over in it.
    """
    (source,) = spec.inputs
    assert isinstance(source, FromJoin)
    limit = state.watermark
    if spec.stage is Stage.TOP:
        limit = manifest.joins[source.join].watermark
    elif not earlier[source.join].runs:
        limit = earlier[source.join].watermark
    return replace(state, watermark=max(limit, state.watermark), closed=state.watermark)


def _side_watermark(
    query: QuerySpec,
    spec: Operator,
    side: Side,
    seen: float,
    earlier: Sequence[JoinState],
    progress: Mapping[int, float],
) -> tuple[float, bool]:
    """How far event time has come on a side, and whether its tuples may come a batch later."""
    assert spec.window is not None
    source, columns, lags = followed(query, spec.inputs[side], spec.times(side))
    if isinstance(source, FromSource):
        seen -= spec.window.delays_us[side] or 0
        return max(seen, progress.get(source.source, -math.inf)), lags
    before = query.joins[source.join]
    assert isinstance(before, JoinSpec)
    lag = None if before.window is None else before.output_lag_us(columns)
    limit = -math.inf if lag is None else earlier[source.join].watermark - lag
    return limit, lags


def followed(
    query: QuerySpec, source: Input, columns: Sequence[str]
) -> tuple[Input, Sequence[str], bool]:
    """Where event time comes from: through joins with tables to a source or a windowed join.

    The columns as they are called there, and whether any join on the way, that one included, lets
    tuples go a batch after their cause.
    """
    lags = False
    while isinstance(source, FromJoin):
        join = query.joins[source.join]
        assert isinstance(join, JoinSpec)
        lags = lags or bool(join.watched)
        if join.table is None:
            break
        stream = join.table.other
        named = {c.name: c.column for c in join.output if c.side is stream}
        source, columns = join.inputs[stream], [named[name] for name in columns if name in named]
    return source, columns, lags


def _is_idle(spec: Operator, silent_s: float) -> bool:
    assert spec.window is not None
    limit = spec.window.idle_after_us
    return limit is not None and silent_s * 1e6 >= limit


def progress_of(reports: Iterable[RouteReport]) -> dict[int, float]:
    """What the sources promise about later tuples."""
    promised = dict[int, float]()
    for report in reports:
        for source, time_us in report.progress.items():
            promised[source] = max(time_us, promised.get(source, time_us))
    return promised


def tick_due(query: QuerySpec, manifest: Manifest, quiet: bool, now_s: float) -> float | None:
    """When a batch without data is due (seconds since the epoch), None: not before data comes.

    Due at once: all sides have ended and state is left, watchers can let tuples go, or a quiet
    batch moved the watermark past some state. Due later: a side that is waited for may become idle.
    """
    due = list[float]()
    for spec, state in zip(query.joins, manifest.joins, strict=True):
        if state.is_empty:
            continue
        if isinstance(spec, AggregateSpec):
            ready = state.held_back or parts_due(spec, state, quiet=quiet)
        elif isinstance(spec, NoveltySpec):
            ready = state.held_back or novelty_due(state)
        else:
            assert isinstance(spec, JoinSpec)
            ready = state.held_back or watch_due(spec, state, manifest.batch + 1)
        if ready or state.watermark == math.inf or (quiet and expire(spec, state)[1]):
            return now_s
        if spec.window is None:
            continue
        limit = spec.window.idle_after_us
        if limit is not None:
            moments = [since + limit / 1e6 for since in state.idle_since if math.isfinite(since)]
            due += [moment for moment in moments if moment > now_s]
    return min(due, default=None)
