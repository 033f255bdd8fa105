"""Base functions: the base home of each key, where it lives unless a routing table says otherwise.

`Modulo` spreads evenly and moves almost every key when an instance joins. `Ring` is consistent
hashing: when an instance joins keys move only to it, when one leaves only its own move. `Ranges`
gives each instance one range of the hashes: neighbours live together, and when an instance joins
about half of all keys move, each to the instance next door.

Law: a function of key hash and number of instances alone.
Cost: 2 ns a tuple for each; the ring is laid out as a table of owners once per layout.
Source: key grouping; Karger et al., STOC 1997, with virtual nodes. Ours: the ring's places are
cells of the leading hash bits, so that a look-up is one gather instead of a search; if virtual
nodes fall into the same cell, the lower one owns it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words, mix
from joinengine.model.keys import HASH_BITS, Placement
from joinengine.routing.routes import Instances

#: Virtual nodes of an instance; the share of an instance then varies by 1/sqrt(128) = 9 %.
VIRTUAL_NODES = 128
#: Cells of the ring. The number is the same for any number of instances, so that cells stay where
#: they are; it is enough for some thousands of instances.
CELL_BITS = 20


@dataclass(frozen=True, slots=True)
class Modulo:
    """Key hash modulo the number of instances.

    The papers take the key itself modulo N; a mixed hash keeps patterns in the key numbers from
    becoming load.

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
        found: Instances = owners[hashes >> np.uint64(HASH_BITS - CELL_BITS)]
        return found


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


#: Key hash -> base home, of one copy.
Single = Modulo | Ring | Ranges

BASES: Mapping[str, type[Single]] = {"modulo": Modulo, "ring": Ring, "cells": Ranges}


@dataclass(frozen=True, slots=True)
class Backed:
    """Base homes with backups: the keys of base home d are at the instances `roles[d]` (N, copies).

    The first of these is their home, the others have a backup each. Until an instance is lost,
    `roles[d]` are d and the instances after it; or, if instances have standbys, d and its standbys,
    which hold nothing else. Then `roles[d]` in any order are a *group*.

    >>> Backed.over(Modulo(4), backups=2).roles[3].tolist()
    [3, 0, 1]
    >>> Backed.with_standbys(Modulo(4), backups=2).roles[3].tolist()
    [3, 7, 11]
    """

    single: Single
    roles: Instances

    @classmethod
    def over(cls, single: Single, backups: int, domains: int | None = None) -> Backed:
        """The backups of instance d are at the instances after it.

        `domains`: instances whose numbers are equal modulo it fail together, so those after d of
        whose domains the key has a copy are left out, as long as there are others.

        >>> Backed.over(Modulo(4), backups=1, domains=3).roles[3].tolist()
        [3, 1]
        """
        n = single.instances
        rows = [list(islice(following(d, n, domains or n), backups + 1)) for d in range(n)]
        return cls(single, np.array(rows, np.uint16))

    @classmethod
    def with_standbys(cls, single: Single, backups: int) -> Backed:
        """The standbys of instance d are d + N, d + 2N and so on."""
        n = single.instances
        roles = np.arange(n)[:, None] + n * np.arange(backups + 1)
        return cls(single, roles.astype(np.uint16))

    @property
    def instances(self) -> int:
        """How many instances there are, standbys included."""
        return int(self.roles.max()) + 1

    def homes(self, hashes: Words) -> Instances:
        """(n,) key hashes -> (n,) base homes."""
        return self.holders(hashes)[:, 0]

    def group_of(self, instance: int) -> int:
        """The base home whose group an instance is in, if there are standbys."""
        return instance % self.single.instances

    def holders(self, hashes: Words) -> Instances:
        """(n,) key hashes -> (n, copies) instances, the home first."""
        found: Instances = self.roles[self.single.homes(hashes)]
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Backed):
            return False
        return self.single == other.single and np.array_equal(self.roles, other.roles)

    def __hash__(self) -> int:
        return hash((self.single, self.roles.tobytes()))


def following(instance: int, instances: int, domains: int) -> Iterator[int]:
    """All instances from one on, the first of each domain before the others.

    >>> list(following(3, 5, domains=3))
    [3, 4, 2, 0, 1]
    """
    others, seen = list[int](), set[int]()
    for step in range(instances):
        one = (instance + step) % instances
        if one % domains in seen:
            others.append(one)
        else:
            seen.add(one % domains)
            yield one
    yield from others


#: Key hash -> where it lives unless a routing table says otherwise.
Base = Modulo | Ring | Ranges | Backed


def holders_of(base: Base, hashes: Words) -> Instances:
    """(n,) key hashes -> (n, copies) instances, the base home first."""
    return base.holders(hashes) if isinstance(base, Backed) else base.homes(hashes)[:, None]


def placements(base: Base, hashes: Words) -> list[Placement]:
    """(n,) key hashes -> how the keys lie that no routing table lists."""
    return [Placement.whole(home, tuple(more)) for home, *more in holders_of(base, hashes).tolist()]


@lru_cache(maxsize=16)
def _owners(instances: int) -> NDArray[np.uint16]:
    """(cells,) the owner of each cell."""
    numbers = np.arange(instances * VIRTUAL_NODES, dtype=np.uint64)
    cells = mix(numbers + np.uint64(0x52494E47)) >> np.uint64(64 - CELL_BITS)
    owner = np.full(1 << CELL_BITS, instances, np.int64)
    np.minimum.at(owner, cells, (numbers // np.uint64(VIRTUAL_NODES)).astype(np.int64))
    taken = np.flatnonzero(owner < instances)
    following = np.searchsorted(taken, np.arange(1 << CELL_BITS)) % len(taken)
    return owner[taken[following]].astype(np.uint16)
