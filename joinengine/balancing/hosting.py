"""Plans over tasks instead of instances: a batch waits for the busiest task.

Why: the instances of one task work one after another. Levelling them saves no time, and each
additional home of a divided key costs copies or searches. So few tasks need few homes, however many
instances they host.

How: the loads of tasks have the form of loads of instances, so every planner takes them
(`over_tasks`). `at_instances` then turns shares at tasks into shares at instances: a key that has a
home at a task keeps it; otherwise it gets the emptiest of the task's instances.

Law: no plan over tasks has more work in all than the same shares at more homes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Floats, Ints
from joinengine.balancing.workspace import DUST


def has_several(loads: Loads) -> bool:
    """Whether some task hosts several instances."""
    return 0 < loads.hosts < loads.n_instances


def over_tasks(loads: Loads) -> Loads:
    """The loads of T tasks, as if each was one instance; there must be no backups.

    The cost of a key's further homes at one task counts as load that cannot be moved: a plan that
    leaves the key alone keeps these homes.
    """
    assert not len(loads.backups.keys)
    n_tasks, tasks = loads.hosts, loads.tasks
    pairs = loads.keys * n_tasks + tasks[loads.instances]
    distinct, of_fragment, homes = np.unique(pairs, return_inverse=True, return_counts=True)
    keys, instances = distinct // n_tasks, distinct % n_tasks
    more = np.bincount(instances, (homes - 1) * loads.fixed[keys], n_tasks)
    return replace(
        loads,
        homes=tasks[loads.homes],
        keys=keys,
        instances=instances,
        shares=np.bincount(of_fragment, loads.shares, len(distinct)).astype(float),
        rest=loads.at_tasks(loads.rest) + more,
        level=np.zeros(0),
    )


def at_instances(changed: NewShares, loads: Loads) -> NewShares:
    """Key -> task -> share, turned into key -> instance -> share; `loads` are of instances.

    Keys that have the same shares at tasks as before are left out.
    """
    level, tasks, divided = loads.as_planned(), loads.tasks, NewShares()
    for key, shares in changed.items():
        ours = loads.keys == key
        homes, parts = loads.instances[ours], loads.shares[ours]
        wanted = np.bincount([*shares], [*shares.values()], loads.hosts)
        if np.allclose(wanted, np.bincount(tasks[homes], parts, loads.hosts), atol=DUST):
            continue
        divided[key] = {
            _home(homes, parts, np.flatnonzero(tasks == task), level): share
            for task, share in shares.items()
        }
        for home, share in divided[key].items():
            level[home] += share * loads.spread[key] + loads.fixed[key]
    return divided


def _home(homes: Ints, parts: Floats, hosted: Ints, level: Floats) -> int:
    """Of the instances that a task hosts, the one with most of a key, or else the emptiest."""
    is_hosted = np.isin(homes, hosted)
    if is_hosted.any():
        return int(homes[is_hosted][parts[is_hosted].argmax()])
    return int(hosted[level[hosted].argmin()])
