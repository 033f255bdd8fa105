"""FTLB: every key has a home, and backups, which store its tuples and give no results.

A backup holds all that the home of a key holds. So the two can change roles for balance without
moving any state; and when an instance is lost, backups take over the keys that had their home
there.

With `standby`, whole instances are copied: each of N instances has `backups` standbys,
which hold what it holds and nothing else. Then roles change only if an instance is lost, and plans
move keys between the groups of an instance and its standbys.

Law: no two copies of a key are at one instance.
Cost: a tuple is sent to, and stored at, its home and each backup; only the home is probed.
Tasks report in two stages: always the loads and a few keys; all keys that a plan may need only in
the batches after one whose loads are out of tolerance.
Source: Fang et al., World Wide Web 2019; its baseline TaskB (`standby`). Ours: the load of a backup
is the part `backup_work` of a home's load, since a backup sorts and stores but does not probe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from joinengine.balancing.backup_levels import Levels, wanted_backups, with_backups
from joinengine.balancing.ftlb import NewHolders, plan_ftlb
from joinengine.balancing.loads import Backups, Loads, gather_loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Floats, Interval, noise
from joinengine.layouts import backup_spread as spreads
from joinengine.layouts.key_based import KeyBased, WithinLimit
from joinengine.layouts.layout import Layout, LayoutChoice
from joinengine.layouts.layout_settings import COUNT, FINITE, Range, setting
from joinengine.layouts.service_levels import Level, most_backups, read_levels
from joinengine.model.conditions import Condition
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Placement
from joinengine.routing import table as routing_table
from joinengine.routing.base_functions import BASES, Backed, Base, following, holders_of, placements
from joinengine.routing.routes import MAX_INSTANCES
from joinengine.routing.table import RoutingTable


@dataclass(frozen=True)
class Ftlb(WithinLimit):
    """Keys with `backups` copies beside their home, which change roles with it for balance.

    `levels`: other numbers of backups for some keys, as a mapping
    (`joinengine.layouts.service_levels`). `joinengine.balancing.ftlb` says which keys leave an
    instance first.
    `intervals` is 1 by default, since c(k) of the paper is the load of the last interval. With w
    intervals, w batches pass between an imbalance and its plan, and each of them has whole reports.
    """

    intervals: int = setting(
        1,
        "over how many of the last intervals the load is taken",
        "1: Fang 2019; more: ours",
        within=COUNT,
    )
    backups: int = setting(
        1,
        "how many copies a key has beside its home",
        "Fang 2019, section 3",
        within=Range(1, MAX_INSTANCES - 1, hint="; layout mixed keeps no backups"),
    )
    beta: float = setting(
        1.5,
        "weight of a key's load in what leaves an instance first",
        "Fang 2019, algorithm 3",
        within=FINITE,
    )
    gamma: float = setting(
        1.0, "weight of the number of its copies", "Fang 2019, algorithm 3", within=FINITE
    )
    backup_work: float = setting(
        0.5, "the load of a backup, as a part of that of a home", within=Range(0, 1)
    )
    refill_rows: int = setting(
        250_000,
        "about how many copies a batch makes anew for an instance that has lost its state",
        within=COUNT,
    )
    underload: float = setting(
        1.0,
        "a plan is due below (1 - underload) means, too",
        "theta_min of Fang 2019",
        within=FINITE,
    )
    levels: Any = setting((), "", not_text="use --levels FILE, or Ftlb(levels=..)")
    standby: bool = setting(
        False, "whether whole instances have copies, in place of keys", "TaskB of Fang 2019"
    )
    domains: int | None = setting(
        None,
        "instances of equal number modulo it fail together; none: each fails alone",
        within=Range(1, MAX_INSTANCES),
    )
    spread: int | str | None = setting(None, spreads.SPREAD_MEANING, words=(spreads.ALL,))

    name: ClassVar[str] = "ftlb"
    source: ClassVar[str] = "Fang et al., World Wide Web 2019, algorithms 1, 3 and 4"
    summary: ClassVar[str] = (
        "fault tolerance and load balance: keeps backup copies of keys, which take over for "
        "balance and after a loss"
    )
    serves_aggregates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "levels", read_levels(self.levels))
        if self.standby and self.levels:
            raise InvalidRequest(
                "ftlb: levels copy single keys, but standby (recovery taskb) copies whole "
                "instances; give only one of the two"
            )
        spreads.check_spread(self.spread, standby=self.standby)

    @property
    @override
    def copying(self) -> Ftlb:
        return self

    def with_standbys(self) -> Ftlb:
        """The choice with copies of whole instances."""
        return replace(self, standby=True)

    def across(self, domains: int) -> Ftlb:
        """The choice with the copies of each key in several of `domains` failure domains."""
        return replace(self, domains=domains)

    def with_levels(self, levels: Any) -> Ftlb:
        """The choice with these service levels, read or as plain values."""
        return replace(self, levels=levels)

    def level(self, layout: Layout, history: Sequence[Interval]) -> Floats:
        """(N,) the loads of instances under a layout of the choice."""
        assert isinstance(layout, KeyBased)
        return self.gather(layout.base, layout.table, history).per_instance()

    @override
    def settings(self) -> dict[str, Any]:
        return super().settings() | {"levels": [level.to_json() for level in self.levels]}

    @classmethod
    @override
    def filed(cls, settings: Mapping[str, Any]) -> Ftlb:
        """Older manifests have no `spread`: all backups lay at the instance after the home."""
        return cls(**{"spread": 1, **settings})

    @override
    def going_on(self, before: LayoutChoice) -> Ftlb:
        """The choice with the spread of the last start, unless it has its own."""
        if self.standby or self.spread is not None or not isinstance(before, Ftlb):
            return self
        return replace(self, spread=before.spread)

    @override
    def lines(self, instances: int) -> list[str]:
        """Which instances may be lost, and a line for each service level."""
        least = min([self.backups, *(level.backups for level in self.levels)])
        spread = 1 if self.standby else spreads.spread_over(self.spread, instances, self.domains)
        levels = [f"service level {level}" for level in self.levels]
        return [spreads.losses_in_words(least, spread), *levels]

    @property
    @override
    def group_size(self) -> int:
        return 1 + self.backups if self.standby else 1

    @override
    def least_instances(self, instances: int) -> int:
        """An instance for each copy, unless the copies are at standbys."""
        return 1 if self.standby else most_backups(self.levels, self.backups) + 1

    @override
    def check(self, condition: Condition, instances: int) -> None:
        for level in self.levels:
            if self.backups < instances <= level.backups:
                raise InvalidRequest(
                    f"level {level.name}: {level.backups} backups need at least "
                    f"{level.backups + 1} instances, found {instances}"
                )
        super().check(condition, instances)
        if not self.standby:
            spreads.check_others(self.spread, instances)

    @cached_property
    def _levels(self) -> Levels:
        """The levels of this join."""
        listed, top = dict[int, int](), dict[int, int]()
        for level in self.levels:
            for hash_ in level.hashes or ():
                listed[hash_] = max(level.backups, listed.get(hash_, 0))
            if level.top is not None:
                top[level.top] = max(level.backups, top.get(level.top, 0))
        return Levels(self.backups, listed, top)

    @property
    def counted_levels(self) -> tuple[Level, ...]:
        """The levels whose predicates tasks evaluate, for the keys that they report."""
        return tuple(level for level in self.levels if level.predicate is not None)

    @override
    def start(self, instances: int) -> KeyBased:
        """All keys at their base homes, their backups at instances after these, or at standbys."""
        single = BASES[self.base](instances)
        if self.standby:
            base = Backed.with_standbys(single, self.backups)
        else:
            spread = spreads.spread_over(self.spread, instances, self.domains)
            base = Backed.over(single, self.backups, self.domains, spread)
        return KeyBased(base, RoutingTable(self._listed(base)))

    def _listed(self, base: Backed) -> dict[int, Placement]:
        """The placements of keys that levels list: at their base homes and the instances after."""
        listed = sorted(self._levels.listed)
        rows = base.rows(np.array(listed, np.uint64)).tolist()
        listings, n = dict[int, Placement](), base.instances

        @cache
        def placed(row: int, copies: int) -> Placement:
            lot, home = divmod(row, n)
            backups = islice(following(home, n, self.domains or n, lot), 1, copies + 1)
            return Placement.whole(home, tuple(backups))

        for hash_, row in zip(listed, rows, strict=True):
            placement = placed(row, self._levels.listed[hash_])
            if placement.holders != tuple(base.roles[row].tolist()):
                listings[hash_] = placement
        return listings

    @override
    def restore(self, state: dict[str, Any]) -> KeyBased:
        single = BASES[state["base"]](int(state["instances"]))
        base = Backed(single, np.array(state["roles"], np.uint16))
        incomplete = tuple((instance, word) for instance, word in state.get("incomplete", ()))
        return KeyBased(base, routing_table.from_columns(state["table"]), incomplete)

    @override
    def resized(self, layout: Layout, instances: int) -> KeyBased:
        """Keys of the table stay, unless one of their copies goes; other keys follow the base.

        The next plan gives keys the backups that their levels and domains now say.
        """
        assert isinstance(layout, KeyBased)
        fresh = self.start(instances)
        listed = layout.table.placements
        if self.standby:
            listed = _at_groups(listed, layout.base, fresh.base)
        plain = placements(fresh.base, np.array(list(listed), np.uint64))
        stay = {
            hash_: placement
            for (hash_, placement), unlisted in zip(listed.items(), plain, strict=True)
            if max(placement.holders) < fresh.instances and placement != unlisted
        }
        return KeyBased(fresh.base, RoutingTable({**fresh.table.placements, **stay}))

    def _least(self, level: Floats) -> float:
        """LL: the least load that an instance should have, if loads are (N,)."""
        return max(0.0, 1 - self.underload) * float(level.mean())

    @override
    def is_due(self, level: Floats) -> bool:
        """Whether some load is above UL or below LL by more than noise."""
        least = self._least(level)
        return super().is_due(level) or bool(level.min() < least - noise(least, len(level)))

    @override
    def pays(self, before: Floats, after: Floats) -> bool:
        """Whether a plan removes enough load above UL, or fills up enough load below LL."""
        least = self._least(before)
        gain = np.maximum(least - before, 0).sum() - np.maximum(least - after, 0).sum()
        enough = max(self.min_gain * before.mean(), noise(least))
        return super().pays(before, after) or bool(gain > 0 and gain >= enough)

    @override
    def asks(self, layout: Layout, history: Sequence[Interval]) -> bool:
        """Whether loads are out of tolerance; until they are, a few keys are enough."""
        return bool(history) and self.was_due(layout, history)

    @property
    @override
    def spares_reports(self) -> bool:
        """False: service levels may want more backups of hot keys even while loads are level."""
        return False

    @override
    def keeps(self, interval: Interval) -> bool:
        """Whether it brought tuples: an imbalance outlasts batches that bring none."""
        return bool(interval.stored.any())

    @override
    def can_balance(self, history: Sequence[Interval]) -> bool:
        """Whether the reports of all intervals that loads are taken over are whole."""
        return len(history) >= self.intervals and all(interval.whole for interval in history)

    @override
    def grow(self, layout: Layout, held: Sequence[int]) -> KeyBased:
        """One instance more, with its standbys."""
        assert isinstance(layout, KeyBased)
        instances = layout.instances // self.group_size + 1
        if instances * self.group_size > MAX_INSTANCES:
            return layout
        return self.resized(layout, instances)

    @override
    def gather(self, base: Base, table: RoutingTable, history: Sequence[Interval]) -> Loads:
        """The loads of instances; with standbys, the loads of groups."""
        if self.standby:
            return _of_groups(gather_loads(history, table, base), base)
        return gather_loads(history, table, base, self.backup_work)

    @override
    def asked(
        self, base: Base, table: RoutingTable, loads: Loads, newest: Interval
    ) -> RoutingTable:
        """The table with the backups that levels give, in different failure domains if possible."""
        if self.standby:
            return table
        counted = newest.hashes[: len(newest.named)], newest.named
        wanted = wanted_backups(loads, self._levels, counted)
        plain = holders_of(base, loads.hashes)
        changed = with_backups(loads, wanted, plain, self.domains)
        return _with_holders(base, table, loads, changed) if changed else table

    @override
    def planned(self, base: Base, table: RoutingTable, loads: Loads) -> RoutingTable:
        """The table after algorithm 3 of the paper."""
        changed = self._changed(loads)
        if self.standby:  # the plan is of groups
            assert isinstance(base, Backed)
            rows = {key: base.roles[group].tolist() for key, (group, *_) in changed.items()}
            changed = {key: tuple(row) for key, row in rows.items()}
        return _with_holders(base, table, loads, changed)

    def _changed(self, loads: Loads) -> NewHolders:
        domains = None if self.standby else self.domains
        return plan_ftlb(
            loads, self.imbalance, self.beta, self.gamma, self.underload, domains=domains
        )

    @override
    def changes(self, loads: Loads) -> NewShares:
        """The homes alone, for callers that plan without backups."""
        holders = self._changed(loads)
        return {key: {home: 1.0} for key, (home, *_) in holders.items()}


def _with_holders(
    base: Base, table: RoutingTable, loads: Loads, changed: NewHolders
) -> RoutingTable:
    """The table with the keys of `changed` placed anew; keys that lie as the base says leave it."""
    entries = dict(table.placements)
    hashes = loads.hashes[list(changed)]
    plain = placements(base, hashes)
    for hash_, (home, *backups), unlisted in zip(
        hashes.tolist(), changed.values(), plain, strict=True
    ):
        entries[hash_] = Placement.whole(home, tuple(backups))
        if entries[hash_] == unlisted:
            del entries[hash_]
    return RoutingTable(entries)


def _of_groups(loads: Loads, base: Base) -> Loads:
    """The loads of groups, without standbys: each group has the same number of them."""
    assert isinstance(base, Backed)
    n, none = base.single.instances, np.zeros(0, np.int64)
    return replace(
        loads,
        homes=loads.homes % n,
        instances=loads.instances % n,
        rest=loads.rest.reshape(-1, n).sum(axis=0),
        level=loads.level.reshape(-1, n).sum(axis=0),
        backups=Backups(none, none, loads.backups.load),
    )


def _at_groups(listed: Mapping[int, Placement], before: Base, after: Base) -> dict[int, Placement]:
    """The keys of a table at the same groups under `after`; keys whose group is gone leave it."""
    if not isinstance(before, Backed):
        return {}
    assert isinstance(after, Backed)
    groups = {hash_: before.group_of(placement.homes[0]) for hash_, placement in listed.items()}
    rows = after.roles.tolist()
    return {
        hash_: Placement.whole(rows[group][0], tuple(rows[group][1:]))
        for hash_, group in groups.items()
        if group < len(rows)
    }
