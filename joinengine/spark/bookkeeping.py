"""From manifest to instructions, and from reports to the next manifest. Pure: no Spark, no files.

Why: what a driver decides must be the same when the batch is tried again. Here it is a function of
the last manifest and of the reports of the task attempts that won.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from joinengine.balancing.statistics import Interval, KeyCounts, summarise
from joinengine.kernels.keying import Keying
from joinengine.layouts.base import Layout
from joinengine.layouts.versions import VersionedRouter
from joinengine.model.aggregates import AggregateSpec, Stage
from joinengine.model.keys import Side
from joinengine.model.novelty import NoveltySpec
from joinengine.model.query import (
    FromJoin,
    FromSource,
    Input,
    JoinSpec,
    Operator,
    QuerySpec,
)
from joinengine.model.reports import InputReport, JoinReport, RouteReport
from joinengine.routing.moves import Moves
from joinengine.spark.aggregation import next_end
from joinengine.spark.exchange import Role
from joinengine.spark.watching import Watch
from joinengine.state.keeper import Changes
from joinengine.state.manifest import JoinState, Manifest, Runs, Watched
from joinengine.state.run import Run

Place = tuple[int, Side]


def role(
    join: Operator, side: Side, state: JoinState, router: VersionedRouter, aside: Path | None
) -> Role:
    """What tuples need to know that enter `side` of `join`; `aside`: for those it refuses."""
    return Role(
        join=join.index,
        side=side,
        keying=Keying.of(join),
        times=join.times(side),
        watermark=state.watermark,
        router=router,
        schema=join.carried_schema(side),
        filter=join.filters[side],
        watchers=state.watchers if isinstance(join, JoinSpec) and side in join.watched else 0,
        windows_each=join.windows_each if isinstance(join, JoinSpec) else 1,
        aside=None if aside is None else str(aside),
        stays_put=not isinstance(join, JoinSpec),
    )


def hosts(instances: int, tasks: int) -> list[tuple[int, ...]]:
    """Which instances each join task hosts.

    >>> hosts(5, 2)
    [(0, 2, 4), (1, 3)]
    """
    n = min(instances, tasks)
    return [tuple(range(task, instances, n)) for task in range(n)]


def by_place(runs: Iterable[Run]) -> dict[Place, tuple[Run, ...]]:
    """The spines of a join, or of its watchers."""
    spines = defaultdict[Place, list[Run]](list)
    for run in runs:
        spines[run.instance, run.side].append(run)
    return {place: tuple(runs) for place, runs in spines.items()}


def expire(spec: Operator, state: JoinState) -> tuple[JoinState, int]:
    """The join without the runs that no tuple on time can meet any more, and how many rows went.

    The pairing rule lets state leave at a batch's end; leaving before it is the same, since whoever
    could still meet it would be late.
    """
    if not isinstance(spec, JoinSpec) or spec.window is None:
        return state, 0
    kept, gone = dict[tuple[str, int], Run](), 0
    for ident, run in state.runs.items():
        last = run.max_time
        if last is not None and spec.window.last_partners(run.side, last) < state.watermark:
            gone += run.live
        else:
            kept[ident] = run
    return (replace(state, runs=kept), gone) if gone else (state, 0)


def closing(spec: JoinSpec, state: JoinState, batch: int) -> float:
    """Watched entries that close below this are judged in `batch`.

    Beside a table a tuple has met all partners in its own batch.
    """
    return batch if spec.table is not None else state.watermark


def watch_due(spec: JoinSpec, state: JoinState, batch: int) -> bool:
    """Whether watchers can let something go in `batch` even if no tuple comes."""
    if spec.how == "left_semi":
        return bool(state.watched.unread)
    limit = closing(spec, state, batch)
    pending = state.watched.pending.values()
    return any(run.min_time is not None and run.min_time < limit for run in pending)


def watchers_work(spec: JoinSpec, state: JoinState, batch: int) -> bool:
    """Whether watchers have marks to read, or something to let go or to forget."""
    limit = closing(spec, state, batch)
    over = any(run.max_time is not None and run.max_time < limit for run in state.watched.runs)
    return over or bool(state.watched.unread) or watch_due(spec, state, batch)


def novelty_due(state: JoinState) -> bool:
    """Whether tuples may have become due since the last batch."""
    return state.watermark > state.closed and any(
        run.max_time is not None and run.max_time >= state.closed for run in state.runs.values()
    )


def parts_due(spec: AggregateSpec, state: JoinState, *, quiet: bool) -> bool:
    """Whether an aggregation has something to pass on, or windows that are over."""
    if spec.stage is Stage.PARTIAL:
        return bool(state.runs) and (quiet or state.watermark == math.inf)
    return next_end(spec, state.runs.values(), state.closed) <= state.watermark


def watches(
    spec: JoinSpec, state: JoinState, batch: int, hosted: Sequence[Sequence[int]]
) -> list[Watch | None]:
    """What the watchers of each task do."""
    if not spec.watched:
        return [None] * len(hosted)
    held = state.watched
    spines = [by_place(runs.values()) for runs in (held.pending, held.unread, held.seen)]
    limit = closing(spec, state, batch)
    return [
        Watch(
            state.watchers,
            limit,
            *({place: runs for place, runs in one.items() if place[0] in ours} for one in spines),
        )
        for ours in map(set, hosted)
    ]


def fold_state(state: JoinState, reports: Sequence[JoinReport]) -> JoinState:
    """The runs after the reported changes; the moves are done.

    After a re-homing all runs are new, or reported as still there. A version without runs dies.
    """
    watched = [report.watched for report in reports if report.watched is not None]
    held = state.watched
    changes = [report.changes for report in reports]
    runs = _changed({} if state.rehomes else state.runs, changes)
    after = Watched(
        pending=_changed(held.pending, [one.pending for one in watched]),
        unread=_changed(held.unread, [one.unread for one in watched]),
        seen=_changed(held.seen, [one.seen for one in watched]),
    )
    changes += [one for report in watched for one in (report.pending, report.unread, report.seen)]
    files = dict(state.files)
    files.update({stored.name: stored for change in changes for stored in change.files})
    named = {run.file for run in [*runs.values(), *after.runs]}
    files = {name: stored for name, stored in files.items() if name in named}
    live = {run.version for run in runs.values()}
    older = {version: account for version, account in state.older.items() if version in live}
    return replace(
        state, older=older, runs=runs, watched=after, files=files, moves=Moves(), before=None
    )


def _changed(runs: Runs, changes: Iterable[Changes]) -> dict[tuple[str, int], Run]:
    after = dict(runs)
    for change in changes:
        for ident in change.gone:
            after.pop(ident, None)
        after.update(change.runs)
    return after


def interval_of(
    reports: Sequence[JoinReport], state: JoinState, layout: Layout, tasks: int
) -> Interval:
    """What a join counted in this batch, for its planner; `state` is that after it.

    What lies under older layout versions is not the planner's to move.
    """
    stored, held = np.zeros((2, 2, layout.instances), np.int64)
    for report in reports:
        for instance, counts in report.instances.items():
            if instance < layout.instances:
                stored[:, instance] = counts.stored
    for run in state.runs.values():
        if run.version == state.version and run.instance < layout.instances:
            held[run.side, run.instance] += run.live
    keys = KeyCounts.concat([keys for report in reports for keys in report.keys])
    return summarise(keys, stored, held, layout.table, tasks)


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
    where its results may come a batch after their cause. A side that has brought no tuple with an
    event time for `idle_after` is left out, unless both are idle.
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
            times = [r.newest_time for r in here if r.newest_time is not None]
            if times or math.isinf(idle[side]):
                idle[side] = now_s
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
