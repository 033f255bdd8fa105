"""From manifest to instructions, and from reports to the next manifest. Pure: no Spark, no files.

Why: what a driver decides must be the same when the batch is tried again. Here it is a function of
the last manifest and of the reports of the task attempts that won.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from joinengine.balancing.statistics import Interval, KeyCounts, summarise
from joinengine.exchange.blocks import Role
from joinengine.exchange.keying import Keying
from joinengine.exchange.reports import JoinReport
from joinengine.layouts.base import Layout
from joinengine.layouts.versions import VersionedRouter
from joinengine.model.aggregates import AggregateSpec, Stage
from joinengine.model.keys import Side
from joinengine.model.query import (
    JoinSpec,
    Operator,
)
from joinengine.operators.aggregation.task import next_end
from joinengine.operators.join.watching import Watch
from joinengine.routing.moves import Moves
from joinengine.state.keeper import Changes
from joinengine.state.manifest import JoinState, Runs, Watched
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
