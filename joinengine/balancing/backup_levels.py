"""Gives keys as many backups as their service levels say.

Why: a level by list is known before any tuple comes; one by a predicate or by rank of load only
from what tasks count, and a rank changes with the load.

How: a key that needs more backups gets them at the least loaded instances that have no copy of it;
one that needs fewer loses first those that the base function does not name, so that it lies like
other keys again and leaves the table, then those at the fullest. So that keys around a rank do not
come and go, a key keeps its level until it is beyond twice the rank.

Law: no two copies of a key are at one instance, and no home changes.
Cost: some array operations over the keys, and a loop over those whose backups change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from joinengine.balancing.ftlb import NewHolders
from joinengine.balancing.loads import Loads
from joinengine.balancing.statistics import Ints
from joinengine.kernels.hashing import Words
from joinengine.routing.routes import Instances

#: A key keeps its rank until so many times the rank.
KEEP_FACTOR = 2


class Levels(NamedTuple):
    """How many backups keys have: `default`, unless a level names them.

    `listed`: key hash -> backups. `top`: rank of load -> backups of the keys up to it.
    """

    default: int
    listed: Mapping[int, int]
    top: Mapping[int, int]


def wanted_backups(loads: Loads, levels: Levels, counted: tuple[Words, Ints]) -> Ints:
    """(K,) how many backups each key of `loads` is to have.

    `counted`: keys, ascending, and what predicates say of each; 0: none of them names it.
    """
    keys = len(loads.hashes)
    named = np.zeros(keys, np.int64)
    listed = sorted(levels.listed.items())
    lists = (
        np.array([hash_listed for hash_listed, _ in listed], np.uint64),
        np.array([n for _, n in listed], int),
    )
    for hashes, backups in (counted, lists):
        known = np.isin(hashes, loads.hashes)
        at = np.searchsorted(loads.hashes, hashes[known])
        np.maximum.at(named, at, backups[known])
    cost, present = loads.spread + loads.fixed, _present(loads)
    rank = np.empty(keys, np.int64)
    rank[np.lexsort((loads.hashes, -cost))] = np.arange(keys)
    for most, given in levels.top.items():
        kept = (rank < KEEP_FACTOR * most) & (present >= given)
        among = (cost > 0) & ((rank < most) | kept)
        named[among] = np.maximum(named[among], given)
    return np.where(named > 0, named, levels.default)


def with_backups(
    loads: Loads, wanted: Ints, plain: Instances, domains: int | None = None
) -> NewHolders:
    """The copies of the keys that have more or fewer backups than `wanted` (K,).

    `plain`: (K, copies) where the keys would be without a routing table. `domains`: instances whose
    numbers are equal modulo it fail together; None: each fails alone.
    """
    level, holders = loads.per_instance(), dict[int, tuple[int, ...]]()
    cost = loads.backups.load
    homes = np.zeros(len(loads.hashes), np.int64)
    homes[loads.keys] = loads.instances
    odd = np.flatnonzero(_present(loads) != wanted)
    present = {key: list[int]() for key in odd.tolist()}
    some = np.isin(loads.backups.keys, odd)
    pairs = loads.backups.keys[some].tolist(), loads.backups.instances[some].tolist()
    for key, backup in zip(*pairs, strict=True):
        present[key].append(backup)
    for key in odd[np.argsort(-cost[odd], kind="stable")].tolist():
        backups = present[key]
        taken = {int(homes[key]), *backups}
        while len(backups) < wanted[key]:
            others = _others(taken, loads.n_instances, domains or loads.n_instances)
            new = min(others, key=lambda instance: (level[instance], instance))
            level[new] += cost[key]
            backups.append(new)
            taken.add(new)
        while len(backups) > wanted[key]:
            kept = plain[key].tolist()
            gone = max(
                backups, key=lambda instance: (instance not in kept, level[instance], instance)
            )
            level[gone] -= cost[key]
            backups.remove(gone)
        holders[key] = (int(homes[key]), *backups)
    return holders


def _present(loads: Loads) -> Ints:
    """(K,) how many backups each key has."""
    return np.bincount(loads.backups.keys, minlength=len(loads.hashes))


def _others(taken: set[int], instances: int, domains: int) -> list[int]:
    """Instances that have no copy; of domains that have none, if there are such."""
    others = [instance for instance in range(instances) if instance not in taken]
    shut = {instance % domains for instance in taken}
    return [instance for instance in others if instance % domains not in shut] or others
