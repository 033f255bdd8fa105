"""The layout that chooses: per key the cheapest mode, by measured costs; most keys stay hashed.

Why: no single layout is best for every stream, nor for every key of one. What is best follows from
what tuples, pairs and results of a key cost, which is measured anyway.

How: heavy keys are divided the way that costs least (`balancing.dividing`), others moved by MNRT's
planner. A plan is taken if the busiest task then has less by more than noise, and if that pays back
the tuples that move before the loads are expected to change again. What is declined is told
with what it would have cost. Reports are light while loads are level, so that even streams cost
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

#: A plan must be able to save this part of what a task works whatever comes: so much the driver
#: works for it, and what a few thousand tuples cost is no better known. The first plan must save it
#: in any case, since tasks count listed keys from then on, for a fifth of it.
TURN_PART = 0.5
#: An instance need not be relieved of less than this part of what a task works.
TASK_PART = 0.1
#: So much more work tasks may have that their instances are as busy as each other.
EVENNESS = 1.05
#: A key is left where it is if its load is below this part of what an instance has as a mean:
#: thousands of such keys would have to move to relieve one instance.
LIGHT = 0.01
#: So no key is counted that has less than one in so many of an instance's tuples, pairs or results.
HEAVY = 128


class _Seen(NamedTuple):
    """What a plan is made of and judged by.

    `recent`: of the history what agrees with the newest interval. `before`: (T,) the loads of
    tasks. `tolerance`: by what part an instance may be above the mean. `due`: whether loads are out
    of tolerance.
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
        """Without those that are too light to be moved."""
        return self.counted.loads


@dataclass(frozen=True)
class Auto(Dividing):
    """Per key the cheapest of all modes.

    `keyless`: any two tuples may match, so that it is a matrix or a biclique (`layouts.keyless`).
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
        """By keys, if the condition has any."""
        keyless = without_keys(condition) is not None
        return replace(super().serving(condition), keyless=keyless)

    @override
    def lines(self, instances: int) -> list[str]:
        """What it is without keys."""
        what = (
            "any two tuples may match: a matrix (dynamic) or a biclique (bi), whichever costs less"
        )
        return [what] if self.keyless else []

    @property
    @override
    def counts_keys(self) -> bool:
        """Unless there are none."""
        return not self.keyless

    @override
    def start(self, instances: int) -> Layout:
        """All keys at their base homes; without keys the kind that uses most instances."""
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
        """Keys that are lighter are not moved; so they need not be told."""
        return HEAVY

    @override
    def asks(self, layout: Layout, history: Sequence[Interval]) -> bool:
        """If loads are out of tolerance; until they are, a few keys are enough."""
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
        """MNRT's, for keys that are not divided."""
        return plan_mnrt(loads, self.imbalance)

    @override
    def planned(self, base: Base, table: RoutingTable, loads: Loads) -> RoutingTable:
        return divide(table, loads, self.imbalance)

    @override
    def plan(self, layout: Layout, history: Sequence[Interval], wanted: int = 0) -> Plan | None:
        """The plan that pays; one that keeps the layout, if none does; None: none is due."""
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
        """The tables that would be best, whether or not they pay, best first.

        Where tasks host several instances, these are levelled, too, if it costs next to nothing;
        but that moves more.
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
        """The plan to a table, and whether it pays; if not, what is told of it (None: nothing)."""
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
        """By what part an instance may be above the mean.

        If a task has many instances, that of one is a small part of what the task works.
        """
        if not has_several(loads):
            return self.imbalance
        of_task = TASK_PART * float(loads.at_tasks(level).mean() + loads.turn)
        return max(self.imbalance, of_task / max(float(level.mean()), ROUNDING) - 1)

    def _gain(self, before: Floats, after: Floats, *, due: bool) -> float:
        """What a plan saves an interval, for loads (T,) of tasks; 0: no more than noise.

        If none is `due`, what counts is work in all.
        """
        if not due:
            return float((before - after).mean())
        gain = float(before.max() - after.max())
        enough = max(self.min_gain * float(before.mean()), noise(self.limit(before)))
        return gain if gain >= enough else 0.0

    def _affordable(self, seen: _Seen, wanted: RoutingTable) -> RoutingTable | None:
        """The changes for which an interval moves not too much of the state; None: all of them.

        Those come first that relieve overloaded tasks most for each tuple.
        """
        layout, loads, newest = seen.layout, seen.loads, seen.counted.newest
        changed = replaced(layout.table, wanted, layout.base)
        hashes = np.array([change.hash_ for change in changed], np.uint64)
        rows = np.sum(rows_of(plan_moves(changed), newest, hashes), axis=0)
        # Copies can be more than the state has tuples, so that a part of 1 would be a limit, too.
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
    """`auto` where none was asked for: a checkpoint keeps the layout that it was begun with."""

    is_asked: ClassVar[bool] = False


def _rows(plan: Plan) -> float:
    assert plan.reason.cost is not None
    return plan.reason.cost.rows


def _readers(loads: Loads, moves: Moves) -> int:
    """How many tasks read what moves side by side: those of the new homes."""
    targets = np.array([pull.target for pull in moves.pulls], np.int64)
    return max(len(np.unique(loads.tasks[targets])), 1)


def _listing(table: RoutingTable, loads: Loads) -> float:
    """What it may cost each task to list a first key: next to nothing, unless batches are small."""
    return 0.0 if table.placements else TURN_PART * loads.turn
