"""Copies of keys: what layouts with copies must answer, and the answers of key-based layouts.

A lost instance stays in the layout. For each key that had its home there, the first complete backup
becomes the home and the lost instance a backup, which batches refill range by range of words. Until
then the instance is *incomplete*, and no copy that it lacks becomes a home. Once it is complete, it
becomes the home of its hashed keys again.

Law: a home is never at an instance that has lost the key's tuples.
Source: Fang et al., World Wide Web 2019, section 3.2, step 1. Ours: the lost instance stays, as a
backup; all hashed keys of one base home change their roles together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from typing_extensions import override

from joinengine.balancing.statistics import Floats, Interval
from joinengine.layouts.service_levels import Level
from joinengine.model.errors import DamagedState
from joinengine.model.keys import ALL_WORDS, HASH_BITS, U_BITS, Placement
from joinengine.model.texts import counted
from joinengine.routing.base_functions import Backed
from joinengine.routing.table import RoutingTable

if TYPE_CHECKING:
    from joinengine.layouts.key_based import KeyBased
    from joinengine.layouts.layout import Layout, LayoutChoice

#: Keys that an error names one by one.
_MOST_KEYS = 8


@dataclass(frozen=True, slots=True)
class Refill:
    """What the next batch restores: the lost copies of `instance` for words [lower, upper)."""

    instance: int
    lower: int
    upper: int


class Copies(Protocol):
    """What a layout answers if it keeps each tuple at several instances."""

    @property
    @abstractmethod
    def base(self) -> Backed:
        """The homes and backups of keys that the routing table does not list."""

    @property
    @abstractmethod
    def incomplete(self) -> Sequence[tuple[int, int]]:
        """Pairs (instance, word): the instance lacks the copies of this word and of all above."""

    @abstractmethod
    def without(self, lost: Collection[int]) -> Layout:
        """The layout after the loss of the state of `lost` instances: copies take over their keys.

        Raises DamagedState, which counts and names the keys, if some have no complete copy.
        """

    @abstractmethod
    def next_refill(self, held: int, most: int) -> Refill | None:
        """What the next batch restores: about `most` of its `held` tuples, or None."""

    @abstractmethod
    def refilled(self, refill: Refill) -> Layout:
        """The layout once a refill is done."""

    @abstractmethod
    def whole(self) -> Layout:
        """The layout once all copies are there."""

    @abstractmethod
    def restored(self) -> Layout:
        """The layout with all homes where they began; no instance may lack copies."""

    @abstractmethod
    def is_apart(self, domains: int) -> bool:
        """Whether each key has copies in two failure domains or more."""


class Copying(Protocol):
    """What the choice of a layout with copies answers."""

    @property
    def standby(self) -> bool:
        """Whether the copies are those of whole instances."""

    @property
    def domains(self) -> int | None:
        """Instances whose numbers are equal modulo it fail together; None: each fails alone."""

    @property
    def refill_rows(self) -> int:
        """About how many copies a batch makes anew for an instance that has lost its state."""

    @property
    def levels(self) -> Sequence[Level]:
        """The service levels: other numbers of backups for some keys."""

    @property
    def counted_levels(self) -> tuple[Level, ...]:
        """The levels whose predicates tasks evaluate, for the keys that they report."""

    def with_standbys(self) -> LayoutChoice:
        """The choice with copies of whole instances."""

    def across(self, domains: int) -> LayoutChoice:
        """The choice with the copies of each key in several of `domains` failure domains."""

    def with_levels(self, levels: Any) -> LayoutChoice:
        """The choice with these service levels, read or as plain values."""

    def level(self, layout: Layout, history: Sequence[Interval]) -> Floats:
        """(N,) the loads of instances under a layout of the choice."""


@dataclass(frozen=True, slots=True)
class KeyCopies(Copies):
    """The copies of a key-based layout whose base function has backups."""

    layout: KeyBased

    @property
    @override
    def base(self) -> Backed:
        base = self.layout.base
        assert isinstance(base, Backed)
        return base

    @property
    @override
    def incomplete(self) -> tuple[tuple[int, int], ...]:
        return self.layout.incomplete

    @override
    def without(self, lost: Collection[int]) -> KeyBased:
        lost = {instance for instance in lost if instance < self.layout.instances}
        missing = dict(self.incomplete) | dict.fromkeys(lost, 0)
        roles = self.base.roles.copy()
        orphans = list[int]()
        for row in np.flatnonzero(np.isin(roles[:, 0], list(lost))).tolist():
            home, *backups = roles[row].tolist()
            heirs = [backup for backup in backups if backup not in missing]
            if heirs:
                roles[row] = [
                    heirs[0],
                    *(instance for instance in backups if instance != heirs[0]),
                    home,
                ]
            else:
                orphans.append(row)
        table, gone = dict(self.layout.table.placements), list[int]()
        for hash_, placement in self.layout.table.placements.items():
            (home,) = placement.homes
            if home not in lost:
                continue
            word = hash_ << U_BITS
            heirs = [
                instance
                for instance in placement.backups
                if word < missing.get(instance, ALL_WORDS)
            ]
            if heirs:
                others = tuple(instance for instance in placement.backups if instance != heirs[0])
                table[hash_] = Placement.whole(heirs[0], (*others, home))
            else:
                gone.append(hash_)
        if orphans or gone:
            raise DamagedState(_no_copy(lost, self._told(orphans), gone))
        return replace(
            self.layout,
            base=replace(self.base, roles=roles),
            table=RoutingTable(table),
            incomplete=tuple(sorted(missing.items())),
        )

    @override
    def next_refill(self, held: int, most: int) -> Refill | None:
        """The range ends between two key hashes, so that each key is restored whole."""
        if not self.incomplete:
            return None
        instance, lower = self.incomplete[0]
        hashes = max(1, (1 << HASH_BITS) * most // max(held, 1))
        return Refill(instance, lower, min(ALL_WORDS, lower + (hashes << U_BITS)))

    @override
    def refilled(self, refill: Refill) -> KeyBased:
        missing = dict(self.incomplete) | {refill.instance: refill.upper}
        left = tuple(
            (instance, word) for instance, word in sorted(missing.items()) if word < ALL_WORDS
        )
        return replace(self.layout, incomplete=left)

    @override
    def whole(self) -> KeyBased:
        return replace(self.layout, incomplete=())

    @override
    def restored(self) -> KeyBased:
        roles = self.base.roles.copy()
        began = np.arange(len(roles)) % self.base.single.instances
        for row in np.flatnonzero(roles[:, 0] != began).tolist():
            home = int(began[row])
            roles[row] = [home, *(instance for instance in roles[row].tolist() if instance != home)]
        return replace(self.layout, base=replace(self.base, roles=roles))

    def _told(self, rows: list[int]) -> list[str]:
        """In words, the hashed keys of the rows of roles that have no copy left."""
        lots = Counter(row % self.base.single.instances for row in rows)
        whole = sorted(home for home, count in lots.items() if count == self.base.spread)
        parts = sorted(lots.keys() - set(whole))
        keys_told = [f"all keys of base {_homes(whole)}"] if whole else []
        return keys_told + ([f"some keys of base {_homes(parts)}"] if parts else [])

    @override
    def is_apart(self, domains: int) -> bool:
        rows = self.base.roles % domains
        if (rows == rows[:, :1]).all(axis=1).any():
            return False
        return all(
            len({holder % domains for holder in placement.holders}) > 1
            for placement in self.layout.table.placements.values()
        )


def _no_copy(lost: Iterable[int], homes: list[str], keys: list[int]) -> str:
    named, keys_lost = ", ".join(str(instance) for instance in sorted(lost)), [*homes]
    if keys:
        shown = ", ".join(f"#{hash_:0{HASH_BITS // 4}x}" for hash_ in keys[:_MOST_KEYS])
        more = f" and {len(keys) - _MOST_KEYS:,} more" if len(keys) > _MOST_KEYS else ""
        keys_lost.append(f"{counted(len(keys), 'key')} of the routing table ({shown}{more})")
    return (
        f"the state of instances {named} is lost, and no copy exists of {' and '.join(keys_lost)}. "
        f"Restore checkpoint and output from a copy"
    )


def _homes(numbers: list[int]) -> str:
    return f"home{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
