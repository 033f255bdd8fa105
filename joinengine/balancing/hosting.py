"""Plans over tasks instead of instances: a batch waits for the busiest task.

Why: the instances of one task work one after another. To level them saves no time, and each home
more of a divided key costs copies or searches. So few tasks need few homes, however many instances
they host.

How: the loads of tasks are loads like those of instances, so every planner takes them
(`over_tasks`). What it says of tasks is then said of instances (`at_instances`): a key that has a
home at a task keeps it, and else takes the emptiest of the task's instances.

Law: no plan over tasks has more work in all than the same shares at more homes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Floats


def has_several(loads: Loads) -> bool:
    """Whether some task hosts several instances."""
    return 0 < loads.hosts < loads.n_instances


def over_tasks(loads: Loads) -> Loads:
    """The loads of T tasks, as if each was one instance; there must be no backups.

    What a key pays for several homes at one task is load that cannot be moved: a plan that leaves
    the key alone leaves these homes.
    """
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
        rest=(np.bincount(tasks, loads.rest, n_tasks) + more).astype(float),
        level=np.zeros(0),
    )


def at_instances(changed: NewShares, loads: Loads) -> NewShares:
    """Key number -> task -> share, as instance -> share; `loads` are those of the instances.

    Keys that have the same shares at tasks as before are left out.
    """
    level, found = loads.as_planned(), NewShares()
    for key, shares in changed.items():
        ours = loads.keys == key
        present = dict(
            zip(loads.instances[ours].tolist(), loads.shares[ours].tolist(), strict=True)
        )
        if shares == _by_task(present, loads):
            continue
        found[key] = {_home(present, task, loads, level): part for task, part in shares.items()}
        for home, part in found[key].items():
            level[home] += part * loads.spread[key] + loads.fixed[key]
    return found


def _home(present: dict[int, float], task: int, loads: Loads, level: Floats) -> int:
    """The instance of a task at which a key has most now, or else the emptiest one."""
    at_task = np.flatnonzero(loads.tasks == task).tolist()
    held = [one for one in at_task if one in present]
    if held:
        return max(held, key=lambda one: present[one])
    return min(at_task, key=lambda one: float(level[one]))


def _by_task(present: dict[int, float], loads: Loads) -> dict[int, float]:
    found = dict[int, float]()
    for instance, share in present.items():
        task = int(loads.tasks[instance])
        found[task] = found.get(task, 0.0) + share
    return found
