"""Intervals as planners see them, without a query."""

from __future__ import annotations

import numpy as np

from joinengine.balancing.statistics import Interval, Work
from joinengine.model.keys import Side

COSTS = np.array([1.2e-7, 9e-8, 7e-8, 1.3e-8, 2e-8])
OTHERS = 400


def counted(heavy, instances, *, tuples=50.0, pairs=500.0, hosts=0, state=1.0, keys=OTHERS):
    """An interval: `heavy` is key -> (left, right, pairs) among others that are alike.

    Counts are as if each key lay whole at its base home.
    """
    hashes = np.arange(1, keys + 1, dtype=np.uint64) * 977
    arrived = np.full((2, keys), tuples)
    candidates = np.zeros((2, keys))
    candidates[0] = pairs
    for key, (left, right, made) in heavy.items():
        arrived[:, key], candidates[0, key] = (left, right), made
    homes = (hashes % instances).astype(int)

    def at_homes(values):
        return np.bincount(homes, values, minlength=instances)

    done = np.array([at_homes(one) for one in [*[arrived.sum(axis=0)] * 3, *candidates]])
    work = Work(arrived, candidates, 0 * candidates, done, np.zeros((5, instances)), COSTS, hosts)
    stored = np.array([at_homes(side) for side in arrived])
    return Interval(
        hashes, arrived, state * arrived, np.zeros(instances), stored, state * stored, work=work
    )


def traffic(left, right, pairs, instances, layout):
    rows = np.array([left * layout.copies(Side.LEFT), right * layout.copies(Side.RIGHT)])
    stored = np.repeat(rows[:, None] / instances, instances, axis=1)
    done = np.zeros((5, instances))
    done[3] = pairs / instances
    none, empty = np.zeros(0, np.uint64), np.zeros((2, 0))
    work = Work(empty, empty, empty, done, done, COSTS, 0)
    return Interval(none, empty, empty, np.zeros(instances), stored, stored, work=work)
