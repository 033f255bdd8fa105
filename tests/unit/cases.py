"""Loads of whole keys, before and after a plan."""

from __future__ import annotations

import numpy as np

from joinengine.balancing import mixed
from joinengine.balancing.llfd import whole_homes
from joinengine.balancing.loads import Loads


def loads_of(cost, base, homes=None, held=None, instances=2):
    """Whole keys: `cost` (K,), base homes (K,), present homes (K,), state (K,)."""
    cost, base = np.array(cost, float), np.array(base)
    homes = base if homes is None else np.array(homes)
    n = len(cost)
    return Loads(
        hashes=np.arange(n, dtype=np.uint64),
        homes=base,
        spread=cost,
        fixed=np.zeros(n),
        held=cost if held is None else np.array(held, float),
        held_fixed=np.zeros(n),
        copied=np.zeros(n, bool),
        split_sides=np.zeros(n, np.int64),
        keys=np.arange(n),
        instances=homes,
        shares=np.ones(n),
        rest=np.zeros(instances),
    )


def after(loads, changes):
    homes, _ = whole_homes(loads)
    homes = homes.copy()
    for key, shares in changes.items():
        ((homes[key], share),) = shares.items()
        assert share == 1.0
    return homes


def table_size(loads, homes):
    return int((homes != loads.homes).sum())


def level(loads, homes):
    return np.bincount(homes, loads.spread, minlength=loads.n_instances)


def zipf_loads(seed, n_keys=5000, instances=15, z=0.85, rounds=6):
    """Zipf loads whose heavy keys change every interval, under a table that MinMig has kept."""
    rng = np.random.default_rng(seed)
    cost = np.round(1e6 * np.arange(1, n_keys + 1) ** -z)
    base = rng.integers(0, instances, n_keys)
    loads = loads_of(cost, base, instances=instances)
    for _ in range(rounds):
        homes = after(loads, mixed.plan_minmig(loads, 0.02))
        some = np.concatenate([np.arange(20), rng.integers(20, n_keys, 80)])
        swapped = loads.spread.copy()
        swapped[some] = rng.permutation(swapped[some])
        loads = loads_of(swapped, base, homes, 4 * loads.spread + swapped, instances)
    return loads


def moved(loads, homes):
    return float(loads.held[homes != whole_homes(loads)[0]].sum())
