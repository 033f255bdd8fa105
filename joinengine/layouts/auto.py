"""The layout that chooses: per key the cheapest mode, by measured costs; most keys stay hashed.

Why: no single layout is best for every stream, nor for every key of a stream. The best one follows
from what the tuples, pairs and results of a key cost, which tasks measure anyway.

How: heavy keys are divided the way that costs least (`balancing.dividing`), others moved by MNRT's
planner. A plan is taken if it relieves the busiest task by more than noise, and if that repays the
tuples that move before the loads are expected to change again. A declined plan is reported with the
cost that it would have had. Reports are light while loads are level, so that even streams cost
little more than under `hash`.

Law: functions of the layout and of the history. No plan raises the greatest load of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from typing_extensions import override

from joinengine.balancing.agreement import agreeing, alike, expected_life
from joinengine.balancing.dividing import divide, gather, resting
from joinengine.balancing.hosting import has_several
from joinengine.balancing.llfd import ROUNDING
from joinengine.balancing.loads import Loads
from joinengine.balancing.mnrt import plan_mnrt
from joinengine.balancing.reasons import Cause, Counted, rows_of
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Floats, Interval, noise
from joinengine.layouts import keyless
from joinengine.layouts.biclique import Biclique
from joinengine.layouts.key_based import MIN_GAIN, Dividing, KeyBased, plan_to
from joinengine.layouts.layout import Layout, Plan, without_keys
from joinengine.layouts.layout_settings import COUNT, Range, setting
from joinengine.layouts.matrix import Grid
from joinengine.model.conditions import Condition
from joinengine.routing.base_functions import Base
from joinengine.routing.moves import Moves, plan_moves, replaced
from joinengine.routing.table import RoutingTable

#: A plan is due only if it could save this part of a task's fixed work (`Loads.turn`): the driver
#: works that much to make it, and the cost of a few thousand tuples is not known more exactly. The
#: first plan must save it too: tasks then start to count listed keys, which costs a fifth of it.
TURN_PART = 0.5
#: An instance needs no relief while its load is below this part of the mean work of a task.
TASK_PART = 0.1
#: To level the instances of each task, a plan may raise the work of tasks by this factor.
EVENNESS = 1.05
#: A key stays where it is if its load is below this part of the mean load of an instance: a great
#: many such keys would have to move to relieve one instance.
LIGHT = 0.01
#: Tasks therefore do not report keys with less than 1/HEAVY of an instance's tuples, pairs or
#: results, unless the routing table lists them.
HEAVY = 128


class _Seen(NamedTuple):
    """What a plan is made from and judged by.

    `recent`: the last intervals that agree with the newest one. `before`: (T,) the loads of tasks.
    `tolerance`: by what part of the mean an instance may exceed the mean. `due`: whether loads are
    out of tolerance.
    """

    layout: KeyBased
    history: Sequence[Interval]
    recent: Sequence[Interval]
    counted: Counted
    before: Floats
    tolerance: float
    due: bool

    @property
    def loads(self) -> Loads:
        """The loads, in which keys too light to be moved count as immovable."""
        return self.counted.loads


@dataclass(frozen=True)
class Auto(Dividing):
    """Each key in the cheapest of all modes.

    `keyless`: whether any two tuples may match. The layout is then a matrix or a biclique
    (`layouts.keyless`).
    """

    intervals: int = setting(
        8, "how many intervals back changes of the loads are looked for", within=COUNT
    )
    min_gain: float = setting(0.02, MIN_GAIN, within=Range())
    payback: float = setting(
        1.0,
        "how many times a plan must save what it moves before the loads are expected to change",
        within=Range(),
    )
    most_moved: float = setting(
        0.5,
        "the part of the state that moves in an interval at most",
        within=Range(is_open=True, hint="; 1 means no limit"),
    )
    keyless: bool = setting(False, "", not_text="it follows from the join")

    name: ClassVar[str] = "auto"
    source: ClassVar[str] = "ours"
    summary: ClassVar[str] = "divides a hot key if that saves time, in the way that costs least"
    serves_theta: ClassVar[bool] = True

    @override
    def serving(self, condition: Condition) -> Self:
        """The choice for a condition: it places by key if the condition has keys."""
        keyless = without_keys(condition) is not None
        return replace(super().serving(condition), keyless=keyless)

    @override
    def lines(self, instances: int) -> list[str]:
        """Which layouts serve a join without keys."""
        what = (
            "any two tuples may match: a matrix (dynamic) or a biclique (bi), whichever costs less"
        )
        return [what] if self.keyless else []

    @property
    @override
    def counts_keys(self) -> bool:
        """Whether there are keys to count."""
        return not self.keyless

    @override
    def start(self, instances: int) -> Layout:
        """All keys at their base homes; without keys, the kind that uses more instances."""
        return keyless.start(instances) if self.keyless else super().start(instances)

    @override
    def restore(self, state: dict[str, Any]) -> Layout:
        return keyless.restore(state) if self.keyless else super().restore(state)

    @override
    def resized(self, layout: Layout, instances: int) -> Layout:
        """By the rule of its kind."""
        if isinstance(layout, KeyBased):
            return super().resized(layout, instances)
        return keyless.resized(layout, instances)

    @override
    def grow(self, layout: Layout, held: Sequence[int]) -> Layout:
        """By the rule of its kind."""
        if isinstance(layout, KeyBased):
            return super().grow(layout, held)
        return keyless.choice_of(layout).grow(layout, held)

    @property
    @override
    def heavy_part(self) -> int:
        """No plan moves lighter keys, so tasks need not report them."""
        return HEAVY

    @override
    def asks(self, layout: Layout, history: Sequence[Interval]) -> bool:
        """Whether loads are out of tolerance; until they are, a few keys are enough."""
        if not history or not isinstance(layout, KeyBased):
            return False
        loads = self.gather(layout.base, layout.table, alike(agreeing(history)))
        return self._is_due(loads, loads.per_instance())

    def _is_due(self, loads: Loads, level: Floats) -> bool:
        """Whether tasks are out of tolerance, and by more than it costs to look for a plan."""
        tasks = loads.at_tasks(level) + loads.turn
        above = float(tasks.max() - tasks.mean())
        return self.is_due(tasks) and above > TURN_PART * loads.turn

    @override
    def changes(self, loads: Loads) -> NewShares:
        """The changes of MNRT, for keys that are not divided."""
        return plan_mnrt(loads, self.imbalance)

    @override
    def planned(self, base: Base, table: RoutingTable, loads: Loads) -> RoutingTable:
        return divide(table, loads, self.imbalance)

    @override
    def plan(self, layout: Layout, history: Sequence[Interval], wanted: int = 0) -> Plan | None:
        """The first plan that pays; else a declined one, which keeps the layout; else None."""
        if isinstance(layout, Grid | Biclique):
            life = len(history) / max(self.payback, ROUNDING)
            return keyless.plan(layout, history, max(wanted, layout.instances), life)
        assert isinstance(layout, KeyBased)
        seen = self._seen(layout, history)
        stay, cold = resting(seen.loads, history, seen.counted.limit)
        if seen.due:
            tables = self._divided(seen, stay)
        else:
            tables = [gather(layout.table, seen.loads, seen.counted.limit, cold)]
        declined = None
        for best in tables:
            if best.placements != layout.table.placements:
                plan, pays = self._judged(seen, best)
                if pays:
                    return plan
                declined = declined or plan
        return declined

    def _seen(self, layout: KeyBased, history: Sequence[Interval]) -> _Seen:
        """The loads under the layout, and whether a plan is due."""
        recent = alike(agreeing(history))
        loads = self.gather(layout.base, layout.table, recent)
        level = loads.per_instance()
        loads = loads.heavy(LIGHT * float(level.mean()), layout.table)
        tolerance = self._tolerance(loads, level)
        counted = Counted(loads, recent[-1], (1 + tolerance) * float(level.mean()))
        before, due = loads.at_tasks(level), self._is_due(loads, level)
        return _Seen(layout, history, recent, counted, before, tolerance, due=due)

    def _divided(self, seen: _Seen, stay: Sequence[int]) -> list[RoutingTable]:
        """The best tables, whether or not they pay, best first.

        If tasks host several instances, the first table may level these too, where that costs
        almost nothing; it moves more tuples.
        """
        table, loads = seen.layout.table, seen.loads
        even = divide(table, loads, seen.tolerance, stay)
        if not has_several(loads):
            return [even]
        few = divide(table, loads, self.imbalance, stay, by_task=True)
        wide, narrow = (self._at_tasks(seen, wanted) + loads.turn for wanted in (even, few))
        cheap = wide.max() <= EVENNESS * narrow.max() and wide.sum() <= EVENNESS * narrow.sum()
        return [even, few] if cheap else [few]

    def _judged(self, seen: _Seen, wanted: RoutingTable) -> tuple[Plan | None, bool]:
        """The plan to a table, and whether it pays; if not, the plan to report as declined."""
        loads, before, table = seen.loads, seen.before, seen.layout.table
        cause = Cause.OVERLOAD if seen.due else Cause.COOLED_KEY

        def plan_of(wanted: RoutingTable) -> tuple[Plan, Floats]:
            after = self._at_tasks(seen, wanted)
            return plan_to(seen.layout, wanted, cause, (before, after), seen.counted), after

        plan, after = plan_of(wanted)
        part = self._affordable(seen, wanted)
        if part is not None:
            smaller, then = plan_of(part)
            # A part of the changes may do next to nothing for the busiest task.
            half = _rows(smaller) / _rows(plan) / 2
            if before.max() - then.max() >= half * (before.max() - after.max()):
                plan, after = smaller, then
        if after.max() > before.max() * (1 + ROUNDING):
            return None, False
        gain = self._gain(before + loads.turn, after + loads.turn, due=seen.due)
        gain -= _listing(table, loads) if seen.due else 0.0
        cost = self.payback * loads.row * _rows(plan) / _readers(loads, plan.moves)
        reported = sum(bool(interval.stored.any()) for interval in seen.recent)
        if gain > 0 and gain / max(reported, 1) * expected_life(seen.history) > cost:
            return plan, True
        if gain <= 0 or not seen.due:
            return None, False
        declined = plan_to(seen.layout, table, Cause.DECLINED, (before, after), seen.counted)
        return Plan(seen.layout, declined.reason.at_cost(plan.reason.cost)), False

    def _at_tasks(self, seen: _Seen, table: RoutingTable) -> Floats:
        """(T,) the loads of tasks under another table."""
        loads = self.gather(seen.layout.base, table, seen.recent)
        return loads.at_tasks(loads.per_instance())

    def _tolerance(self, loads: Loads, level: Floats) -> float:
        """By what part of the mean an instance may exceed the mean.

        If a task hosts many instances, the load of one is a small part of the task's work.
        """
        if not has_several(loads):
            return self.imbalance
        of_task = TASK_PART * float(loads.at_tasks(level).mean() + loads.turn)
        return max(self.imbalance, of_task / max(float(level.mean()), ROUNDING) - 1)

    def _gain(self, before: Floats, after: Floats, *, due: bool) -> float:
        """What a plan saves per interval, for loads (T,) of tasks; 0: no more than noise.

        If no plan is `due`, this is the mean over tasks, not the gain of the busiest task.
        """
        if not due:
            return float((before - after).mean())
        gain = float(before.max() - after.max())
        enough = max(self.min_gain * float(before.mean()), noise(self.limit(before)))
        return gain if gain >= enough else 0.0

    def _affordable(self, seen: _Seen, wanted: RoutingTable) -> RoutingTable | None:
        """As many changes as fit into what one interval may move; None: all of them fit.

        The changes that relieve overloaded tasks most for each tuple moved come first.
        """
        layout, loads, newest = seen.layout, seen.loads, seen.counted.newest
        changed = replaced(layout.table, wanted, layout.base)
        hashes = np.array([change.hash_ for change in changed], np.uint64)
        rows = np.sum(rows_of(plan_moves(changed), newest, hashes), axis=0)
        # A plan may copy more tuples than the state has, so even 1 would be a limit: it means none.
        most = self.most_moved * float(newest.state.sum()) if self.most_moved < 1 else np.inf
        if len(changed) < 2 or rows.sum() <= most:
            return None
        above = seen.before > (1 + self.imbalance) * seen.before.mean()
        over = {int(instance) for instance in np.flatnonzero(above[loads.tasks])}
        weights = (loads.spread + loads.fixed)[np.searchsorted(loads.hashes, hashes)]
        relief = [
            sum(f.u_upper - f.u_lower for f in change.before.fragments if f.instance in over)
            - sum(f.u_upper - f.u_lower for f in change.after.fragments if f.instance in over)
            for change in changed
        ]
        order = np.argsort(-weights * np.array(relief) / np.maximum(rows, 1.0), kind="stable")
        within = int(np.searchsorted(np.cumsum(rows[order]), most, side="right"))
        taken = order[: max(within, 1)]
        placed = {**layout.table.placements}
        for hash_ in hashes[taken].tolist():
            placed.pop(hash_, None)
            if hash_ in wanted.placements:
                placed[hash_] = wanted.placements[hash_]
        return RoutingTable(placed)


@dataclass(frozen=True)
class Unasked(Auto):
    """`auto` if the user names no layout: a checkpoint keeps the layout that it began with."""

    is_asked: ClassVar[bool] = False


def _rows(plan: Plan) -> float:
    assert plan.reason.cost is not None
    return plan.reason.cost.rows


def _readers(loads: Loads, moves: Moves) -> int:
    """How many tasks read the moved state in parallel: those that host the new homes."""
    targets = np.array([pull.target for pull in moves.pulls], np.int64)
    return max(len(np.unique(loads.tasks[targets])), 1)


def _listing(table: RoutingTable, loads: Loads) -> float:
    """What it may cost each task if a first key is listed; 0 if the table lists keys already."""
    return 0.0 if table.placements else TURN_PART * loads.turn
