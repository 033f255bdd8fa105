"""Key-based layouts: a base function, overridden key by key in a routing table.

`hash` never changes its table. The others re-plan it when the loads are out of tolerance; they
differ in their planner, and in how they judge loads.

Source: Fang et al., JOS 2017 (qmmp, mnrt); key grouping everywhere (hash).
Ours: a re-plan is due only if loads are out of tolerance by more than counting noise, and taken
only if it pays, so that a balanced stream does not re-plan back and forth.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from typing_extensions import override

from joinengine.balancing.agreement import agreeing, alike
from joinengine.balancing.levelling import divisible
from joinengine.balancing.llfd import ROUNDING
from joinengine.balancing.loads import Loads, gather_loads
from joinengine.balancing.mnrt import plan_mnrt
from joinengine.balancing.qmmp import plan_qmmp
from joinengine.balancing.reasons import Balance, Cause, Counted, reason_of
from joinengine.balancing.shares import NewShares, build_table
from joinengine.balancing.statistics import Floats, Interval, is_small, noise
from joinengine.layouts.copies import KeyCopies
from joinengine.layouts.layout import Layout, LayoutChoice, Plan
from joinengine.layouts.layout_settings import COUNT, Range, setting
from joinengine.model.conditions import Condition, meets_at_homes
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Placement
from joinengine.routing import table as routing_table
from joinengine.routing.base_functions import BASES, Backed, Base
from joinengine.routing.moves import plan_moves, replaced
from joinengine.routing.table import RoutingTable, TableRouter


@dataclass(frozen=True, slots=True)
class KeyBased(Layout):
    """The layout state: the base function, and the keys that are not at their base home.

    `incomplete`: pairs (instance, word). The instance has lost its state and lacks the copies of
    this word and of all above.
    """

    base: Base
    table: RoutingTable = field(default_factory=RoutingTable)
    incomplete: tuple[tuple[int, int], ...] = ()

    @property
    @override
    def instances(self) -> int:
        return self.base.instances

    @property
    @override
    def base_function(self) -> Base:
        return self.base

    @override
    def listing(self, table: RoutingTable) -> KeyBased:
        return replace(self, table=table)

    @property
    @override
    def wanted(self) -> int:
        """How many instances there are without standbys."""
        return self.base.single.instances if isinstance(self.base, Backed) else self.instances

    @override
    def router(self) -> TableRouter:
        """The table as arrays."""
        return self.table.router(self.base)

    @override
    def place(self, hash_: int) -> Placement | None:
        return self.table.place(hash_, self.base)

    @property
    @override
    def copied(self) -> KeyCopies | None:
        return KeyCopies(self) if isinstance(self.base, Backed) else None

    @override
    def to_json(self) -> dict[str, Any]:
        single = self.base.single if isinstance(self.base, Backed) else self.base
        state = {
            "base": next(name for name, base in BASES.items() if isinstance(single, base)),
            "instances": single.instances,
            "table": routing_table.to_columns(self.table),
        }
        if isinstance(self.base, Backed):
            state["roles"] = self.base.roles.tolist()
        if self.incomplete:
            state["incomplete"] = [list(range_missing) for range_missing in self.incomplete]
        return state


@dataclass(frozen=True)
class _KeyBasedChoice(LayoutChoice):
    """The base of all key-based layouts."""

    base: str = setting(
        "modulo",
        "how a key hash gives the base home: modulo, ring (consistent hashing) or cells (ranges)",
        "Fang 2017; cells: ours",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base not in BASES:
            raise InvalidRequest(
                f"{self.name}: base must be one of {', '.join(BASES)}, found {self.base!r}"
            )

    @override
    def start(self, instances: int) -> Layout:
        """All keys at their base homes."""
        return KeyBased(BASES[self.base](instances))

    def gather(self, base: Base, table: RoutingTable, history: Sequence[Interval]) -> Loads:
        """The loads of the intervals in `history`, newest last, as they would be under `table`."""
        return gather_loads(history, table, base)

    @override
    def restore(self, state: dict[str, Any]) -> Layout:
        base = BASES[state["base"]](int(state["instances"]))
        return KeyBased(base, routing_table.from_columns(state["table"]))

    @override
    def resized(self, layout: Layout, instances: int) -> Layout:
        """Keys of the table stay, unless one of their homes goes; other keys follow the base.

        A key that is now whole at its base home leaves the table.
        """
        assert isinstance(layout, KeyBased)
        base = BASES[self.base](instances)
        placements = layout.table.placements
        homes = base.homes(np.array(list(placements), np.uint64)).tolist()
        stay = {
            hash_: placement
            for (hash_, placement), home in zip(placements.items(), homes, strict=True)
            if max(placement.homes) < instances and placement.homes != (home,)
        }
        return KeyBased(base, RoutingTable(stay))

    @override
    def grow(self, layout: Layout, held: Sequence[int]) -> Layout:
        """One instance more."""
        return self.resized(layout, layout.instances + 1)


@dataclass(frozen=True)
class Hash(_KeyBasedChoice):
    """Every key at its base home, for ever."""

    name: ClassVar[str] = "hash"
    source: ClassVar[str] = "key grouping"
    summary: ClassVar[str] = "key hash modulo instances; never changes"


def plan_to(
    layout: KeyBased,
    table: RoutingTable,
    cause: Cause,
    levels: tuple[Floats, Floats],
    counted: Counted,
) -> Plan:
    """The plan that takes a layout to another table; `levels`: loads (N,) before and after."""
    changed = replaced(layout.table, table, layout.base)
    moves = plan_moves(changed)
    before, after = map(Balance.of, levels)
    reason = reason_of(cause, (before, after), changed, moves, counted)
    return Plan(KeyBased(layout.base, table), reason, moves)


@dataclass(frozen=True)
class Planned(_KeyBasedChoice):
    """A key-based layout with a planner."""

    intervals: int = setting(
        4, "over how many of the last intervals the load is taken", within=COUNT
    )

    @property
    @override
    def counts_keys(self) -> bool:
        """The planner moves keys by their counts."""
        return True

    @property
    @override
    def history_intervals(self) -> int:
        """As many intervals as the load is taken over."""
        return self.intervals

    @override
    def asks(self, layout: Layout, history: Sequence[Interval]) -> bool:
        """True, unless batches are small and loads in tolerance.

        In a small batch, counting all keys costs more than balance would save. There, one batch
        passes between an imbalance and its plan, unless keys have become hot: light reports list
        these.
        """
        return not history or not is_small(history[-1]) or self.was_due(layout, history)

    def was_due(self, layout: Layout, history: Sequence[Interval]) -> bool:
        """Whether loads were out of tolerance in the last intervals."""
        assert isinstance(layout, KeyBased)
        loads = self.gather(layout.base, layout.table, agreeing(history))
        return self.is_due(loads.per_instance())

    @property
    @override
    def spares_reports(self) -> bool:
        """Tasks report the lighter keys that a planner needs only after an imbalance."""
        return True

    @abstractmethod
    def changes(self, loads: Loads) -> NewShares:
        """The planner: from loads to the keys that it places anew, with their shares."""

    def planned(self, base: Base, table: RoutingTable, loads: Loads) -> RoutingTable:
        """The table that the planner makes of `table`, whether or not it pays."""
        return build_table(table, loads, self.changes(loads))

    @abstractmethod
    def limit(self, level: Floats) -> float:
        """The most load that an instance may have, if loads are (N,)."""

    @abstractmethod
    def is_due(self, level: Floats) -> bool:
        """Whether loads (N,) are out of tolerance by more than noise."""

    @abstractmethod
    def pays(self, before: Floats, after: Floats) -> bool:
        """Whether a plan that turns loads (N,) `before` into `after` is worth its moves."""

    def can_balance(self, history: Sequence[Interval]) -> bool:
        """Whether the counts of the intervals are enough for the planner.

        A light report is enough if the loads have changed: it lists the heavy keys that did so.
        """
        newest = next((interval for interval in reversed(history) if interval.stored.any()), None)
        return newest is None or newest.whole or len(agreeing(history)) < len(history)

    def asked(
        self, base: Base, table: RoutingTable, loads: Loads, newest: Interval
    ) -> RoutingTable:
        """The table after the changes that no load can prevent; `loads` are those under `table`."""
        return table

    @override
    def plan(self, layout: Layout, history: Sequence[Interval], wanted: int = 0) -> Plan | None:
        """A new table and its moves, if `asked` changes it or a plan is due and pays; else None."""
        assert isinstance(layout, KeyBased)
        base, table, able = layout.base, layout.table, self.can_balance(history)
        history = agreeing(history)
        loads = self.gather(base, table, history)
        reported_alike = alike(history)
        if able and len(reported_alike) < len(history) and self.is_due(loads.per_instance()):
            # For a planner, a key that a light report does not list has no load.
            history, loads = reported_alike, self.gather(base, table, reported_alike)
        before = after = loads.per_instance()
        cause, new = Cause.LEVELS, self.asked(base, table, loads, history[-1])
        if new is not table:
            loads = self.gather(base, new, history)
            after = loads.per_instance()
        if able and self.is_due(after):
            planned = self.planned(base, new, loads)
            balanced = self.gather(base, planned, history).per_instance()
            lower = balanced.max() <= after.max() * (1 + ROUNDING)
            if planned.placements != new.placements and lower and self.pays(after, balanced):
                cause, new, after = Cause.OVERLOAD, planned, balanced
        if new.placements == table.placements:
            return None
        counted = Counted(loads, history[-1], self.limit(before))
        return plan_to(layout, new, cause, (before, after), counted)


#: What the setting `min_gain` means.
MIN_GAIN = "a plan must remove so much overload, in means"


@dataclass(frozen=True)
class WithinLimit(Planned):
    """Loads are judged by the overload, their part above UL = (1 + `imbalance`) * mean.

    A plan pays if it removes overload of `min_gain` means, and more than counting noise.
    """

    imbalance: float = setting(
        0.05,
        "a plan is due above (1 + imbalance) means",
        "theta_max of Fang 2016, 2017, 2019",
        within=Range(hint="; 0.05 allows 5 % above the mean"),
    )
    min_gain: float = setting(0.01, MIN_GAIN, within=Range())

    @override
    def limit(self, level: Floats) -> float:
        return (1 + self.imbalance) * float(level.mean())

    @override
    def is_due(self, level: Floats) -> bool:
        """Whether the greatest load is above UL by more than noise."""
        limit = self.limit(level)
        return bool(level.max() > limit + noise(limit, len(level)))

    @override
    def pays(self, before: Floats, after: Floats) -> bool:
        limit = self.limit(before)
        gain = np.maximum(before - limit, 0).sum() - np.maximum(after - limit, 0).sum()
        return bool(gain >= max(self.min_gain * before.mean(), noise(limit)))


@dataclass(frozen=True)
class Dividing(WithinLimit):
    """Keys may be divided; `left_only`: only left tuples are divided, and right ones are copied."""

    left_only: bool = setting(False, "", not_text="it follows from the join")

    keeps_keys_whole: ClassVar[bool] = False
    can_divide_left: ClassVar[bool] = True

    @override
    def serving(self, condition: Condition) -> Self:
        """In as-of and multiway joins, a left tuple must meet its whole key at its home."""
        return replace(self, left_only=meets_at_homes(condition))

    @override
    def gather(self, base: Base, table: RoutingTable, history: Sequence[Interval]) -> Loads:
        return gather_loads(history, table, base, left_only=self.left_only)


@dataclass(frozen=True)
class _Splitting(Dividing):
    """Keys are divided wherever that lowers the greatest load."""

    @override
    def planned(self, base: Base, table: RoutingTable, loads: Loads) -> RoutingTable:
        """The planner's table, with divided keys in the mode that gives the lower greatest load.

        Keys that stay where they are get that mode, too.
        """
        ready = divisible(loads, self.limit(loads.per_instance()))
        changed = self.changes(ready)
        other = np.flatnonzero(ready.copied != loads.copied)
        divided = np.bincount(loads.keys, minlength=len(loads.hashes)) > 1
        for key in other[divided[other]].tolist():
            ours = loads.keys == key
            present = zip(loads.instances[ours].tolist(), loads.shares[ours].tolist(), strict=True)
            changed.setdefault(key, dict(present))
        return build_table(table, ready, changed)


@dataclass(frozen=True)
class Qmmp(_Splitting):
    """Quickly made plans: cut keys wherever the target load falls."""

    name: ClassVar[str] = "qmmp"
    source: ClassVar[str] = "Fang et al., JOS 2017, algorithm 3"
    summary: ClassVar[str] = "quickly make migration plan: splits keys freely, wherever a load ends"

    @override
    def changes(self, loads: Loads) -> NewShares:
        return plan_qmmp(loads, self.imbalance)


@dataclass(frozen=True)
class Mnrt(_Splitting):
    """Split on demand, merge back, move little, keep the table small."""

    name: ClassVar[str] = "mnrt"
    source: ClassVar[str] = "Fang et al., JOS 2017, algorithm 4"
    summary: ClassVar[str] = (
        "migration plan, split key, network cost and routing table: splits keys on demand and "
        "merges them back"
    )

    @override
    def changes(self, loads: Loads) -> NewShares:
        return plan_mnrt(loads, self.imbalance)
