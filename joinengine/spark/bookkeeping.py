"""From manifest to instructions, and from reports to the next manifest. Pure: no Spark, no files.

Why: what a driver decides must be the same when the batch is tried again. Here it is a function of
the last manifest and of the reports of the task attempts that won.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from joinengine.balancing.statistics import Interval, KeyCounts, summarise
from joinengine.kernels.keying import Keying
from joinengine.layouts.base import Layout
from joinengine.layouts.versions import VersionedRouter
from joinengine.model.keys import Side
from joinengine.model.query import (
    FromJoin,
    FromSource,
    Input,
    JoinSpec,
    OutputColumn,
    QuerySpec,
)
from joinengine.model.reports import InputReport, JoinReport, RouteReport
from joinengine.routing.moves import Moves
from joinengine.spark.exchange import Role
from joinengine.state.manifest import JoinState, Manifest
from joinengine.state.run import Run

Place = tuple[int, Side]


def role(join: JoinSpec, side: Side, state: JoinState, router: VersionedRouter) -> Role:
    """What tuples need to know that enter `side` of `join`."""
    return Role(
        join=join.index,
        side=side,
        keying=Keying.of(join),
        times=join.times(side),
        watermark=state.watermark,
        router=router,
        schema=join.schemas[side],
        filter=join.filters[side],
    )


def hosts(instances: int, tasks: int) -> list[tuple[int, ...]]:
    """Which instances each join task hosts.

    >>> hosts(5, 2)
    [(0, 2, 4), (1, 3)]
    """
    n = min(instances, tasks)
    return [tuple(range(task, instances, n)) for task in range(n)]


def by_place(state: JoinState) -> dict[Place, tuple[Run, ...]]:
    """The spines of a join."""
    spines = defaultdict[Place, list[Run]](list)
    for run in state.runs.values():
        spines[run.instance, run.side].append(run)
    return {place: tuple(runs) for place, runs in spines.items()}


def expire(spec: JoinSpec, state: JoinState) -> tuple[JoinState, int]:
    """The join without the runs that no tuple on time can meet any more, and how many rows went.

    The pairing rule lets state leave at a batch's end; leaving before it is the same, since whoever
    could still meet it would be late.
    """
    if spec.window is None:
        return state, 0
    kept, gone = dict[tuple[str, int], Run](), 0
    for ident, run in state.runs.items():
        last = run.max_time
        if last is not None and last + spec.window.retention_us(run.side) < state.watermark:
            gone += run.live
        else:
            kept[ident] = run
    return (replace(state, runs=kept), gone) if gone else (state, 0)


def fold_state(state: JoinState, reports: Sequence[JoinReport]) -> JoinState:
    """The runs after the reported changes; the moves are done.

    After a re-homing all runs are new, or reported as still there. A version without runs dies.
    """
    runs = {} if state.rehomes else dict(state.runs)
    files = dict(state.files)
    for report in reports:
        for ident in report.changes.gone:
            runs.pop(ident, None)
        runs.update(report.changes.runs)
        files.update({stored.name: stored for stored in report.changes.files})
    named = {run.file for run in runs.values()}
    files = {name: stored for name, stored in files.items() if name in named}
    live = {run.version for run in runs.values()}
    older = {version: account for version, account in state.older.items() if version in live}
    return replace(state, older=older, runs=runs, files=files, moves=Moves(), before=None)


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
        if run.version == state.version:
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
    promises; that of an earlier join's results follows from that join's watermark. A side that has
    brought nothing for `idle_after` is left out, unless both are idle.
    """
    advanced = list[JoinState]()
    for spec, state in zip(query.joins, joins, strict=True):
        if spec.window is None:
            advanced.append(state)
            continue
        ours = [report for report in inputs if report.join == spec.index]
        seen, idle, ahead = list(state.newest), list(state.idle_since), list[float]()
        for side in Side:
            here = [report for report in ours if report.side is side]
            if any(report.rows for report in here) or math.isinf(idle[side]):
                idle[side] = now_s
            times = [r.newest_time for r in here if r.newest_time is not None]
            seen[side] = max([seen[side], *times])
            limit = _side_watermark(query, spec, side, seen[side], advanced)
            source = spec.inputs[side]
            if isinstance(source, FromSource):
                limit = max(limit, progress.get(source.source, -math.inf))
                if math.isinf(limit) and limit > 0:
                    seen[side] = math.inf
            ahead.append(limit)
        waited_for = [
            limit
            for side, limit in zip(Side, ahead, strict=True)
            if not _is_idle(spec, now_s - idle[side])
        ]
        watermark = max(state.watermark, min(waited_for, default=-math.inf))
        advanced.append(
            replace(
                state,
                newest=(seen[0], seen[1]),
                idle_since=(idle[0], idle[1]),
                watermark=watermark,
                late_rows=state.late_rows + sum(report.late_rows for report in ours),
            )
        )
    return advanced


def output_watermark(spec: JoinSpec, watermark: float, columns: Sequence[str]) -> float:
    """How late the results of a join may still be, in the time of `columns` of its output.

    One tuple of each result arrived in this batch, at or above the watermark; the other is at
    most a bound away. A time that covers both sides is therefore never below the watermark.
    """
    if spec.window is None:
        return -math.inf
    covered = covered_sides(spec.output, spec.window.times, columns)
    if len(covered) == len(Side):
        return watermark
    return watermark - min(spec.window.output_lag_us(side) for side in covered)


def covered_sides(
    output: Sequence[OutputColumn],
    times: tuple[tuple[str, ...], tuple[str, ...]],
    columns: Sequence[str],
) -> list[Side]:
    """The sides of a join whose whole event time is among the output columns `columns`."""
    named = {(column.side, column.column) for column in output if column.name in columns}
    return [side for side in Side if {(side, name) for name in times[side]} <= named]


def _side_watermark(
    query: QuerySpec, spec: JoinSpec, side: Side, seen: float, earlier: Sequence[JoinState]
) -> float:
    assert spec.window is not None
    source: Input = spec.inputs[side]
    if isinstance(source, FromJoin):
        before = query.joins[source.join]
        return output_watermark(before, earlier[source.join].watermark, spec.times(side))
    return seen - (spec.window.delays_us[side] or 0)


def _is_idle(spec: JoinSpec, silent_s: float) -> bool:
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

    Due at once: all sides have ended and state is left, or a quiet batch moved the watermark past
    some. Due later: a side that is waited for may become idle.
    """
    due = list[float]()
    for spec, state in zip(query.joins, manifest.joins, strict=True):
        if spec.window is None or not state.runs:
            continue
        if state.watermark == math.inf or (quiet and expire(spec, state)[1]):
            return now_s
        limit = spec.window.idle_after_us
        if limit is not None:
            moments = [since + limit / 1e6 for since in state.idle_since if math.isfinite(since)]
            due += [moment for moment in moments if moment > now_s]
    return min(due, default=None)
