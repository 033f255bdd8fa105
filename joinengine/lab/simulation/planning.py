"""Planners on synthetic loads: balance and migration cost of thousands of intervals.

The decisions are the engine's own: the same statistics, planners and tables. Only the tuples are
missing. Imbalance is greatest over mean load, less 1; migration cost is state that moves over all
state. State is the tuples of the last `window` intervals.

Deliveries are work of the instance that gets them, for planners and candidate layouts alike. Under
`join` a tuple goes to every instance that may hold a partner, its own home included: the homes of a
split key, the candidates of a key, all instances under `shuffle`. Under `aggregate` there is no
other stream, and a tuple goes only to the instance that stores it. An interval is routed by the
layout that was planned before it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

import numpy as np

from joinengine.balancing.compact import records
from joinengine.balancing.llfd import whole_homes
from joinengine.balancing.loads import Loads, gather_loads
from joinengine.balancing.reasons import Balance, Cause, Counted, reason_of
from joinengine.balancing.statistics import Floats, Interval, Work, skew
from joinengine.kernels.hashing import Words
from joinengine.lab.simulation.workload import KeyStream
from joinengine.layouts.auto import Auto
from joinengine.layouts.key_based import Hash, KeyBased, Planned
from joinengine.layouts.layout import Layout
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import U_ONE, Mode
from joinengine.model.named import one_of
from joinengine.routing.base_functions import Base
from joinengine.routing.moves import plan_moves, replaced
from joinengine.routing.table import RoutingTable

#: A task's report in numbers of 8 bytes. For a key: its hash, tuples and state. For a record of
#: like keys: five of its six dimensions, and the number of its keys. For the task itself: its load.
NUMBER_BYTES = 8
KEY_NUMBERS, RECORD_NUMBERS, TASK_NUMBERS = 3, 5, 1
#: If the planner has no degree of its own, records are rounded by 2^4.
DEGREE = 4


class Served(StrEnum):
    """The operator that tuples are delivered for."""

    JOIN = "join"
    AGGREGATE = "aggregate"


class Other(StrEnum):
    """The keys of the other stream of a join, which brings the same number of tuples.

    `same`: each key as often as this stream; then splitting costs most. `even`: all keys equally
    often; then a hot key can be divided on its side and copied on the other.
    """

    SAME = "same"
    EVEN = "even"


@dataclass(frozen=True)
class Sizes:
    """`instances` and `intervals` of a run; `window`: for how many intervals a tuple stays state.

    `work_s`: seconds of work for a delivery. `operator`: which deliveries there are. `told`:
    whether each re-plan also has its reason. `other`: the other side of a join.
    """

    instances: int
    intervals: int
    window: int
    work_s: float = 0.0
    operator: Served = Served.JOIN
    told: bool = False
    other: Other = Other.SAME

    def __post_init__(self) -> None:
        object.__setattr__(self, "operator", one_of(Served, self.operator, "operator"))
        object.__setattr__(self, "other", one_of(Other, self.other, "other"))


def replay(choice: Planned | Hash, stream: KeyStream, sizes: Sizes) -> dict[str, Any]:
    """The figures of one planner over the intervals of `stream`, at most `sizes.intervals`."""
    layout = choice.start(sizes.instances)
    assert isinstance(layout, KeyBased)
    recent = deque[tuple[Words, Floats]](maxlen=sizes.window)
    history = deque[Interval](maxlen=getattr(choice, "intervals", 1))
    rows, loads, reasons = list[dict[str, Any]](), None, dict[int, str]()
    for counted in islice(stream.intervals(layout.base), sizes.intervals):
        recent.append(counted)
        interval = counts_of(recent, sizes)
        if isinstance(choice, Auto):
            interval = _with_deliveries(interval, sizes.instances)
        history.append(interval)
        loads = choice.gather(layout.base, layout.table, [interval])
        table, row = _step(choice, history, layout, loads, sizes)
        if sizes.told and table is not layout.table and isinstance(choice, Planned):
            after = choice.gather(layout.base, table, [interval]).per_instance()
            reasons[len(rows)] = _reason(choice, interval, layout, (loads, after), table)
        layout = KeyBased(layout.base, table)
        rows.append(row)
    if loads is None:
        raise InvalidRequest("the stream has no keys; give a stream with rows")
    compact = _compact_bytes(loads, getattr(choice, "degree", None) or DEGREE)
    report = {"planner": choice.label, "instances": sizes.instances, "intervals": rows}
    report |= _summary(rows, compact, sizes.work_s)
    return report | ({"reasons": reasons} if sizes.told else {})


def counts_of(recent: Sequence[tuple[Words, Floats]], sizes: Sizes) -> Interval:
    """The newest interval, with the state of all recent ones."""
    hashes, counts = recent[-1]
    if all(others is hashes for others, _ in recent):
        state = np.sum([some for _, some in recent], axis=0)
    else:
        known, at = np.unique(np.concatenate([some for some, _ in recent]), return_inverse=True)
        state = np.bincount(at, np.concatenate([some for _, some in recent]))
        arrived = np.zeros(len(known))
        arrived[np.searchsorted(known, hashes)] = counts
        hashes, counts = known, arrived
    both, kept = (_sides(amounts, sizes) for amounts in (counts, state))
    return Interval(hashes, both, kept, np.zeros(sizes.instances))


def _with_deliveries(interval: Interval, instances: int) -> Interval:
    """The interval with its work, if only deliveries cost: a second each.

    `auto` needs it, since it weighs what a mode saves against the copies that it makes.
    """
    nothing, done = np.zeros_like(interval.arrived), np.zeros((5, instances))
    done[:3] = interval.arrived.sum() / instances
    costs = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    work = Work(
        interval.arrived, nothing, nothing, done, np.zeros_like(done), costs, hosts=instances
    )
    state = np.repeat(interval.held.sum(axis=1, keepdims=True) / instances, instances, axis=1)
    return interval._replace(work=work, stored=np.zeros((2, instances)), state=state)


def _sides(counts: Floats, sizes: Sizes) -> Floats:
    """(2, K) the tuples of both sides, as many as the stream has: an aggregate's are of one."""
    if sizes.operator is Served.AGGREGATE:
        return np.vstack([counts, np.zeros_like(counts)])
    even = sizes.other is Other.EVEN and len(counts)
    return np.vstack([counts, np.full(len(counts), counts.mean()) if even else counts]) / 2


def _step(
    choice: Planned | Hash,
    history: Sequence[Interval],
    layout: KeyBased,
    loads: Loads,
    sizes: Sizes,
) -> tuple[RoutingTable, dict[str, Any]]:
    """The routing table after the newest interval of `history`, and the interval's figures."""
    interval = history[-1]
    table, base = layout.table, layout.base
    before = loads.per_instance()
    start = time.perf_counter()
    new = table
    is_due = isinstance(choice, Planned) and choice.is_due(before)
    if isinstance(choice, Auto):  # decides by itself what pays
        plan = choice.plan(layout, history)
        new = table if plan is None else _table_of(plan.layout)
    elif isinstance(choice, Planned) and is_due:
        planned = choice.planned(base, table, loads)
        if choice.pays(before, choice.gather(base, planned, [interval]).per_instance()):
            new = planned
    plan_s = time.perf_counter() - start
    after = before if new is table else choice.gather(base, new, [interval]).per_instance()
    moved_keys, moved_rows = _moved(table, new, base, loads)
    split = int((np.diff(new.columns.bounds) > 1).sum())
    met = before
    if interval.work is not None or len(table.columns.backups):
        tuples = interval._replace(work=None)
        met = gather_loads([tuples], table, base, backup_work=1.0).per_instance()
    probes = np.zeros(base.instances)
    if sizes.operator is Served.JOIN:
        probes = probe_copies(new, interval, base.instances)
        met = met + (probes if new is table else probe_copies(table, interval, base.instances))
    raw = NUMBER_BYTES * KEY_NUMBERS * len(interval.hashes)
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
        "split_keys": split,
        "probe_copies": float(probes.sum()),
        **delivered(float(interval.arrived.sum()), met),
        "report_bytes": raw,
        "two_stage_bytes": NUMBER_BYTES * TASK_NUMBERS * base.instances + is_due * raw,
    }


def _table_of(layout: Layout) -> RoutingTable:
    assert isinstance(layout, KeyBased)
    return layout.table


def _reason(
    choice: Planned,
    interval: Interval,
    layout: KeyBased,
    loads: tuple[Loads, Floats],
    new: RoutingTable,
) -> str:
    """Why the plan of one interval was made; `loads`: those of keys, and (N,) those expected."""
    before, after = loads
    level = before.per_instance()
    changed = replaced(layout.table, new, layout.base)
    counted = Counted(before, interval, choice.limit(level))
    balances = Balance.of(level), Balance.of(after)
    return str(reason_of(Cause.OVERLOAD, balances, changed, plan_moves(changed), counted))


def delivered(rows: float, received: Floats) -> dict[str, float]:
    """The figures of an interval; `received` (N,): tuples that each instance received."""
    return {"rows": rows, "deliveries": float(received.sum()), "busiest": float(received.max())}


def judged(intervals: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The intervals by which layouts are compared: in the first, no planner has seen a load."""
    return intervals[1:] or intervals


def modelled_rate(intervals: Sequence[dict[str, Any]], work_s: float) -> float | None:
    """Tuples a second if each delivery costs `work_s` seconds; None: deliveries cost nothing.

    An interval takes as long as its busiest instance.
    """
    met = judged(intervals)
    rows, busiest = (sum(figures[name] for figures in met) for name in ("rows", "busiest"))
    return rows / (busiest * work_s) if work_s and busiest else None


def _compact_bytes(loads: Loads, degree: int) -> int:
    homes, _ = whole_homes(loads)
    compact = records(loads, homes, loads.held, degree)
    return NUMBER_BYTES * RECORD_NUMBERS * len(compact.counts)


def _moved(old: RoutingTable, new: RoutingTable, base: Base, loads: Loads) -> tuple[int, float]:
    """The number of keys whose homes or shares change, and the tuples of state that move."""
    keys, rows = 0, 0.0
    for hash_, before, after in replaced(old, new, base):
        column = int(np.searchsorted(loads.hashes, np.uint64(hash_)))
        was, will = (_shares(p.fragments) | dict.fromkeys(p.backups, 1.0) for p in (before, after))
        gained = sum(max(0.0, share - was.get(i, 0.0)) for i, share in will.items())
        keys += gained > 0
        if column < len(loads.hashes) and int(loads.hashes[column]) == hash_:  # else it holds none
            rows += gained * float(loads.held[column])
    return keys, rows


def _shares(fragments: Any) -> dict[int, float]:
    shares = dict[int, float]()
    for f in fragments:
        shares[f.instance] = shares.get(f.instance, 0.0) + (f.u_upper - f.u_lower) / U_ONE
    return shares


def probe_copies(table: RoutingTable, interval: Interval, instances: int) -> Floats:
    """(N,) deliveries that only probe: a split key's tuples probe all its homes."""
    copies = np.zeros(instances)
    for hash_, placement in table.placements.items():
        if placement.mode is not Mode.SPLIT:
            continue
        column = int(np.searchsorted(interval.hashes, np.uint64(hash_)))
        if column < len(interval.hashes) and interval.hashes[column] == hash_:
            arrived = float(interval.arrived[:, column].sum())
            for instance, share in _shares(placement.fragments).items():
                copies[instance] += arrived * (1 - share)
    return copies


def _summary(rows: list[dict[str, Any]], compact_bytes: int, work_s: float) -> dict[str, Any]:
    """Means over the intervals, and means over the re-plans."""
    replans = [row for row in rows if row["replanned"]]
    statistics = {
        "raw": _mean(rows, "report_bytes"),
        "compact": compact_bytes,
        "two_stage": _mean(rows, "two_stage_bytes"),
    }
    return {
        "mean": {name: _mean(rows, name) for name in rows[0] if name != "replanned"},
        "replans": len(replans),
        "per_replan": {name: _mean(replans, name) for name in ("moved_keys", "moved_rows")},
        "statistics_bytes": statistics,
        "modelled_rows_per_s": modelled_rate(rows, work_s),
    }


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return float(np.mean(values)) if values else None
