"""FTLB: every key has a home and backups, which store its tuples and give no results.

A backup holds all that the home of a key holds. So the two can change roles without any state
moving, for balance; and when an instance is lost, the keys that had their home there go on at
their backups.

Law: no two copies of a key are at one instance.
Cost: a tuple is sent to, and stored at, its home and each backup; only the home is probed.
Source: Fang et al., World Wide Web 2019. Ours: the load of a backup counts as a part of that of a
home, `backup_work`, since a backup sorts and stores and does not probe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from joinengine.balancing.ftlb import NewHolders, plan_ftlb
from joinengine.balancing.statistics import Interval, Loads, NewShares, gather_loads
from joinengine.layouts.base import Layout
from joinengine.layouts.key_based import KeyBased, WithinLimit
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Placement
from joinengine.routing import table as routing_table
from joinengine.routing.base import BASES, Backed, Base, placements
from joinengine.routing.table import RoutingTable


@dataclass(frozen=True)
class Ftlb(WithinLimit):
    """Keys with `backups` copies beside their home, which change roles with it for balance.

    `beta`, `gamma`: how much load and the number of copies count for what leaves an instance first
    (`joinengine.balancing.ftlb`). `refill_rows`: about how many copies a batch makes anew for an
    instance that has lost its state.
    """

    backups: int = 1
    beta: float = 1.5
    gamma: float = 1.0
    backup_work: float = 0.5
    refill_rows: int = 250_000

    name: ClassVar[str] = "ftlb"
    source: ClassVar[str] = "Fang et al., World Wide Web 2019, algorithms 1, 3 and 4"
    summary: ClassVar[str] = "keys with backups, which change roles for balance and survive losses"
    serves_aggregates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backups < 1:
            raise InvalidRequest(
                f"ftlb: backups {self.backups} must be at least 1; mixed has keys without backups"
            )
        if self.refill_rows < 1:
            raise InvalidRequest(f"ftlb: refill_rows {self.refill_rows} must be at least 1")
        for name in ("beta", "gamma", "backup_work"):
            if not getattr(self, name) >= 0:
                raise InvalidRequest(f"ftlb: {name} {getattr(self, name)} must be 0 or more")

    @override
    def least_instances(self, instances: int) -> int:
        """An instance for each copy."""
        return self.backups + 1

    @override
    def start(self, instances: int) -> KeyBased:
        """All keys at their base homes, their backups at the instances after it."""
        return KeyBased(Backed.over(BASES[self.base](instances), self.backups))

    @override
    def restore(self, state: dict[str, Any]) -> KeyBased:
        single = BASES[state["base"]](int(state["instances"]))
        base = Backed(single, np.array(state["roles"], np.uint16))
        incomplete = tuple((instance, word) for instance, word in state.get("incomplete", ()))
        return KeyBased(base, routing_table.from_json(state["table"]), incomplete)

    @override
    def resize(self, layout: Layout, instances: int) -> KeyBased:
        """Keys of the table stay, unless one of their copies goes; other keys follow the base."""
        assert isinstance(layout, KeyBased)
        fresh = self.start(instances)
        listed = layout.table.placements
        plain = placements(fresh.base, np.array(list(listed), np.uint64))
        stay = {
            hash_: placement
            for (hash_, placement), unlisted in zip(listed.items(), plain, strict=True)
            if max(placement.holders) < instances
            and len(placement.backups) == self.backups
            and placement != unlisted
        }
        return KeyBased(fresh.base, RoutingTable(stay))

    @override
    def gather(self, base: Base, table: RoutingTable, history: Sequence[Interval]) -> Loads:
        return gather_loads(history, table, base, self.backup_work)

    @override
    def planned(self, base: Base, table: RoutingTable, loads: Loads) -> RoutingTable:
        """Algorithm 3."""
        changed = plan_ftlb(loads, self.imbalance, self.beta, self.gamma)
        return _with_holders(base, table, loads, changed)

    @override
    def changes(self, loads: Loads) -> NewShares:
        """The homes alone, for those who plan without backups."""
        found = plan_ftlb(loads, self.imbalance, self.beta, self.gamma)
        return {key: {home: 1.0} for key, (home, *_) in found.items()}


def _with_holders(
    base: Base, table: RoutingTable, loads: Loads, changed: NewHolders
) -> RoutingTable:
    """The table with the keys of `changed` placed anew; what lies as the base says leaves it."""
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
