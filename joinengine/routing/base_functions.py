"""Base functions: give the base home of each key, its home unless a routing table says otherwise.

`Modulo` spreads evenly, and moves almost every key when an instance joins. `Ring` is consistent
hashing: when an instance joins, keys move only to it; when an instance leaves, only its keys move.
`Ranges` gives each instance one range of the hashes: neighbouring hashes share a home, and when an
instance joins, about half of all keys move, each to an adjacent instance.

Law: a base home depends only on the key hash and the number of instances.
Cost: 2 ns a tuple for each; the ring is laid out as a table of owners once per layout.
Source: key grouping; Karger et al., STOC 1997, with virtual nodes. Ours: the places on the ring are
cells of the leading hash bits, so that a look-up is one gather, not a search. If virtual nodes fall
into the same cell, that of the lower instance owns it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words, mix
from joinengine.model.keys import HASH_BITS, Placement
from joinengine.routing.routes import Instances

#: Virtual nodes of each instance. With 128, its share varies by 1/sqrt(128) = 9 %.
VIRTUAL_NODES = 128
#: The ring has 2**CELL_BITS cells for any number of instances, so that cells keep their places when
#: the number changes. It is enough for some thousands of instances.
CELL_BITS = 20


@dataclass(frozen=True, slots=True)
class Modulo:
    """Key hash modulo the number of instances.

    The papers take the key itself modulo N. A mixed hash prevents patterns in key numbers from
    becoming load skew.

    >>> Modulo(4).homes(np.array([6, 9], np.uint64)).tolist()
    [2, 1]
    """

    instances: int

    def homes(self, hashes: Words) -> Instances:
        """(n,) key hashes -> (n,) base homes."""
        return (hashes % np.uint64(self.instances)).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class Ring:
    """Each cell of the hash space belongs to the first virtual node at or after it."""

    instances: int

    def homes(self, hashes: Words) -> Instances:
        """(n,) key hashes -> (n,) base homes."""
        owners = _owners(self.instances)
        homes: Instances = owners[hashes >> np.uint64(HASH_BITS - CELL_BITS)]
        return homes


@dataclass(frozen=True, slots=True)
class Ranges:
    """Equal ranges of the key hash, one for each instance.

    >>> Ranges(4).homes(np.array([0, 1 << 38, (1 << 40) - 1], np.uint64)).tolist()
    [0, 1, 3]
    """

    instances: int

    def homes(self, hashes: Words) -> Instances:
        """(n,) key hashes -> (n,) base homes."""
        return (hashes * np.uint64(self.instances) >> np.uint64(HASH_BITS)).astype(np.uint16)


#: A base function without backups: key hash -> base home.
Single = Modulo | Ring | Ranges

BASES: Mapping[str, type[Single]] = {"modulo": Modulo, "ring": Ring, "cells": Ranges}


@dataclass(frozen=True, slots=True)
class Backed:
    """Base homes with backups: a key is at the instances in its row of `roles` (rows, copies).

    The first instance of a row is the home, each other one has a backup. The keys of one base home
    are dealt into `spread` *lots*; the keys of home d and lot l have row d + N * l. As long as no
    instance is lost, this row holds d and then instances that follow d, where each lot begins at
    a different one. If instances have standbys, the row holds d and its standbys, which hold
    nothing else. Then there is one lot, and the instances of `roles[d]` are a *group*.

    >>> Backed.over(Modulo(4), backups=2).roles[3].tolist()
    [3, 0, 1]
    >>> Backed.over(Modulo(4), backups=1, spread=3).roles[3::4].tolist()
    [[3, 0], [3, 1], [3, 2]]
    >>> Backed.with_standbys(Modulo(4), backups=2).roles[3].tolist()
    [3, 7, 11]
    """

    single: Single
    roles: Instances

    @classmethod
    def over(
        cls, single: Single, backups: int, domains: int | None = None, spread: int = 1
    ) -> Backed:
        """Backups at the instances after the home d; the first is one of `spread` instances.

        `domains`: instances whose numbers are equal modulo this number fail together. So instances
        in a domain that has a copy of the key are passed over, as long as there are others.
        `spread` is at most `widest_spread`.

        >>> Backed.over(Modulo(4), backups=1, domains=3).roles[3].tolist()
        [3, 1]
        """
        n = single.instances
        rows = [
            list(islice(following(d, n, domains or n, lot), backups + 1))
            for lot in range(spread)
            for d in range(n)
        ]
        return cls(single, np.array(rows, np.uint16))

    @classmethod
    def with_standbys(cls, single: Single, backups: int) -> Backed:
        """The standbys of instance d are d + N, d + 2N and so on."""
        n = single.instances
        roles = np.arange(n)[:, None] + n * np.arange(backups + 1)
        return cls(single, roles.astype(np.uint16))

    @property
    def instances(self) -> int:
        """The number of instances, standbys included."""
        return int(self.roles.max()) + 1

    @property
    def spread(self) -> int:
        """The number of lots of keys that a base home has; their backups are elsewhere."""
        return len(self.roles) // self.single.instances

    def rows(self, hashes: Words) -> NDArray[np.int64]:
        """(n,) key hashes -> (n,) rows of `roles`.

        The lot comes from the quotient of hash and N. So it is independent of the base home, which
        is the remainder or comes from the high bits.
        """
        n, homes = self.single.instances, self.single.homes(hashes).astype(np.int64)
        if self.spread == 1:
            return homes
        lots = hashes // np.uint64(n) % np.uint64(self.spread)
        return homes + n * lots.astype(np.int64)

    def homes(self, hashes: Words) -> Instances:
        """(n,) key hashes -> (n,) base homes."""
        return self.holders(hashes)[:, 0]

    def group_of(self, instance: int) -> int:
        """The base home whose group an instance is in, if there are standbys."""
        return instance % self.single.instances

    def holders(self, hashes: Words) -> Instances:
        """(n,) key hashes -> (n, copies) instances, the home first."""
        holders: Instances = self.roles[self.rows(hashes)]
        return holders

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Backed):
            return False
        return self.single == other.single and np.array_equal(self.roles, other.roles)

    def __hash__(self) -> int:
        return hash((self.single, self.roles.tobytes()))


def widest_spread(instances: int, domains: int) -> int:
    """The greatest number of instances over which first backups can spread, for any home.

    A first backup lies in another domain than its home, if there are several domains.

    >>> widest_spread(7, domains=7), widest_spread(7, domains=3), widest_spread(7, domains=1)
    (6, 4, 6)
    """
    fullest = -(-instances // domains)
    return max(instances - fullest if domains > 1 else instances - 1, 1)


def following(instance: int, instances: int, domains: int, lot: int = 0) -> Iterator[int]:
    """All instances, beginning with `instance`; the first of each domain precede all others.

    The second is the instance at which the keys of lot `lot` have their first backup, and the rest
    follow it in a circle.

    >>> list(following(3, 5, domains=3)), list(following(3, 5, domains=3, lot=1))
    ([3, 4, 2, 0, 1], [3, 1, 2, 4, 0])
    """

    def is_apart(step: int) -> bool:
        return (instance + step) % instances % domains != instance % domains

    start = next(islice(filter(is_apart, range(1, instances)), lot, None), lot + 1) if lot else 1
    others, seen = list[int](), set[int]()
    for step in chain([0], range(start, instances), range(1, start)):
        neighbour = (instance + step) % instances
        if neighbour % domains in seen:
            others.append(neighbour)
        else:
            seen.add(neighbour % domains)
            yield neighbour
    yield from others


#: A base function: key hash -> base home and, for `Backed`, backups.
Base = Modulo | Ring | Ranges | Backed


def holders_of(base: Base, hashes: Words) -> Instances:
    """(n,) key hashes -> (n, copies) instances, the base home first."""
    return base.holders(hashes) if isinstance(base, Backed) else base.homes(hashes)[:, None]


def placements(base: Base, hashes: Words) -> list[Placement]:
    """(n,) key hashes -> n placements of keys that no routing table lists."""
    return [Placement.whole(home, tuple(more)) for home, *more in holders_of(base, hashes).tolist()]


@lru_cache(maxsize=16)
def _owners(instances: int) -> NDArray[np.uint16]:
    """(cells,) instance that owns each cell."""
    numbers = np.arange(instances * VIRTUAL_NODES, dtype=np.uint64)
    cells = mix(numbers + np.uint64(0x52494E47)) >> np.uint64(64 - CELL_BITS)
    owner = np.full(1 << CELL_BITS, instances, np.int64)
    np.minimum.at(owner, cells, (numbers // np.uint64(VIRTUAL_NODES)).astype(np.int64))
    taken = np.flatnonzero(owner < instances)
    following = np.searchsorted(taken, np.arange(1 << CELL_BITS)) % len(taken)
    return owner[taken[following]].astype(np.uint16)
