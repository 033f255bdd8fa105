"""Gives keys as many backups as their service levels say.

Why: the keys of a level by list are known before any tuple arrives. Those of a level by predicate
or by rank of load follow only from what tasks count, and ranks change with the load.

How: a key that needs more backups gets them at the least loaded instances that have no copy of it.
A key that needs fewer first loses those that fail together with another copy; then those where the
base function puts none, so that the key lies like other keys again and leaves the table; then those
at the fullest instances. If the failure domains have changed, so that copies fail together although
another domain has none, one of these copies goes there. A key keeps its level until it is beyond
twice the rank, so that keys around a rank do not change back and forth.

Law: no two copies of a key are at one instance, or in one failure domain while another has none;
no home changes.
Cost: some array operations over the keys, and a loop over those whose backups change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from joinengine.balancing.ftlb import NewHolders
from joinengine.balancing.loads import Loads
from joinengine.balancing.statistics import Bools, Ints
from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import distinct
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

    `counted`: keys, ascending, and the backups that predicates give each; 0: no predicate names it.
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
    """New copies for keys that have more or fewer than `wanted` (K,) backups, or fail together.

    `plain`: (K, copies) where the keys would be without a routing table. `domains`: instances whose
    numbers are equal modulo it fail together; None: each fails alone.
    """
    level, holders = loads.per_instance(), dict[int, tuple[int, ...]]()
    cost, n = loads.backups.load, loads.n_instances
    domains = min(domains or n, n)
    homes = np.zeros(len(loads.hashes), np.int64)
    homes[loads.keys] = loads.instances
    odd = np.flatnonzero((_present(loads) != wanted) | _together(loads, homes, domains))
    present = {key: list[int]() for key in odd.tolist()}
    some = np.isin(loads.backups.keys, odd)
    pairs = loads.backups.keys[some].tolist(), loads.backups.instances[some].tolist()
    for key, backup in zip(*pairs, strict=True):
        present[key].append(backup)
    for key in odd[np.argsort(-cost[odd], kind="stable")].tolist():
        home, backups, kept = int(homes[key]), present[key], plain[key].tolist()
        while True:
            used = Counter(instance % domains for instance in (home, *backups))
            doubled = [backup for backup in backups if used[backup % domains] > 1]
            if len(backups) < wanted[key]:
                others = _others({home, *backups}, n, domains)
                new = min(others, key=lambda instance: (level[instance], instance))
                level[new] += cost[key]
                backups.append(new)
            elif len(backups) > wanted[key] or (doubled and len(used) < domains):
                gone = max(
                    doubled or backups,
                    key=lambda instance: (instance not in kept, level[instance], instance),
                )
                level[gone] -= cost[key]
                backups.remove(gone)
            else:
                break
        holders[key] = (home, *backups)
    return holders


def _together(loads: Loads, homes: Ints, domains: int) -> Bools:
    """(K,) whether two copies of a key fail together although they need not."""
    if domains == loads.n_instances:
        return np.zeros(len(homes), bool)
    keys, backups = loads.backups.keys, loads.backups.instances
    places = [np.arange(len(homes)) * domains + homes % domains, keys * domains + backups % domains]
    used = np.bincount(distinct(np.concatenate(places)) // domains, minlength=len(homes))
    return np.asarray(used < np.minimum(1 + _present(loads), domains))


def _present(loads: Loads) -> Ints:
    """(K,) how many backups each key has."""
    return np.bincount(loads.backups.keys, minlength=len(loads.hashes))


def _others(taken: set[int], instances: int, domains: int) -> list[int]:
    """Instances that have no copy, in failure domains that have none if there are any."""
    others = [instance for instance in range(instances) if instance not in taken]
    shut = {instance % domains for instance in taken}
    return [instance for instance in others if instance % domains not in shut] or others
