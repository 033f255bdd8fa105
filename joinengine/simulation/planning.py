"""Planners on synthetic loads: what each of hundreds of intervals would have cost.

The decisions are the engine's own: the same statistics, planners and tables. Only the tuples are
missing. Balance is greatest over mean load less 1; migration cost is state that moves over all
state, where the state is that of the last `window` intervals.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import Any

import numpy as np

from joinengine.balancing.statistics import (
    Floats,
    Interval,
    Loads,
    build_table,
    gather_loads,
    skew,
)
from joinengine.layouts.key_based import Hash, KeyBased, Planned
from joinengine.model.keys import U_ONE, Mode
from joinengine.routing.base import BASES
from joinengine.routing.table import RoutingTable
from joinengine.simulation.workload import Workload

#: A key's record in a task's report: hash, tuples, state.
REPORT_BYTES = 24


def replay(
    choice: Planned | Hash, workload: Workload, instances: int, intervals: int, window: int
) -> dict[str, Any]:
    """The figures of one planner over `intervals` intervals."""
    layout = KeyBased(BASES[choice.base](instances))
    recent, none = deque[Floats](maxlen=window), np.zeros(instances)
    rows = list[dict[str, Any]]()
    for hashes, counts in islice(workload.intervals(layout.base), intervals):
        recent.append(counts)
        state = np.sum(recent, axis=0)
        # Both streams bring the same, which is when splitting costs most.
        interval = Interval(
            hashes, np.vstack([counts, counts]) / 2, np.vstack([state, state]) / 2, none
        )
        table, row = _step(choice, interval, layout)
        layout = KeyBased(layout.base, table)
        rows.append(row)
    return {"planner": choice.label, "intervals": rows} | _summary(rows)


def _step(
    choice: Planned | Hash, interval: Interval, layout: KeyBased
) -> tuple[RoutingTable, dict[str, Any]]:
    """The table after one interval, and what it took."""
    table, base = layout.table, layout.base
    loads = gather_loads([interval], table, base)
    before = loads.per_instance()
    start = time.perf_counter()
    new = table
    if isinstance(choice, Planned) and choice.is_due(before):
        planned = build_table(table, loads, choice.changes(loads))
        if choice.pays(before, gather_loads([interval], planned, base).per_instance()):
            new = planned
    plan_s = time.perf_counter() - start
    after = before if new is table else gather_loads([interval], new, base).per_instance()
    moved_keys, moved_rows = _moved(table, new, loads)
    split = [p for p in new.placements.values() if len(p.homes) > 1]
    return new, {
        "imbalance_before": skew(before) - 1,
        "imbalance_after": skew(after) - 1,
        "deviation_after": float(after.std() / after.mean()) if after.mean() else 0.0,
        "replanned": new is not table,
        "plan_s": plan_s,
        "table_size": len(new.placements),
        "moved_keys": moved_keys,
        "moved_rows": moved_rows,
        "migration_cost": moved_rows / float(loads.held.sum()),
        "split_keys": len(split),
        "probe_copies": _probe_copies(new, interval),
        "report_bytes": REPORT_BYTES * len(interval.hashes),
    }


def _moved(old: RoutingTable, new: RoutingTable, loads: Loads) -> tuple[int, float]:
    """Keys whose homes or shares change, and the state that is copied for it."""
    keys, rows = 0, 0.0
    for hash_ in old.placements.keys() | new.placements.keys():
        before, after = old.placements.get(hash_), new.placements.get(hash_)
        if before == after:
            continue
        column = int(np.searchsorted(loads.hashes, np.uint64(hash_)))
        home = int(loads.homes[column])
        was, will = ({home: 1.0} if p is None else _shares(p.fragments) for p in (before, after))
        gained = sum(max(0.0, share - was.get(i, 0.0)) for i, share in will.items())
        keys += gained > 0
        rows += gained * float(loads.held[column])
    return keys, rows


def _shares(fragments: Any) -> dict[int, float]:
    shares = dict[int, float]()
    for f in fragments:
        shares[f.instance] = shares.get(f.instance, 0.0) + (f.u_upper - f.u_lower) / U_ONE
    return shares


def _probe_copies(table: RoutingTable, interval: Interval) -> float:
    """Messages beyond one a tuple: a split key's tuples probe all its homes."""
    copies = 0.0
    for hash_, placement in table.placements.items():
        column = int(np.searchsorted(interval.hashes, np.uint64(hash_)))
        arrived = interval.arrived[:, column]
        many = len(placement.homes) - 1
        if placement.mode is Mode.SPLIT:
            copies += many * float(arrived.sum())
        elif placement.mode is Mode.COPIED:
            copies += many * float(arrived[placement.split_side.other])
    return copies


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the intervals; sums where a mean says nothing."""
    means = {
        name: float(np.mean([row[name] for row in rows]))
        for name in rows[0]
        if name not in ("replanned",)
    }
    return {"mean": means, "replans": sum(row["replanned"] for row in rows)}
