"""The hottest keys of an operator in one batch: tuples, placement, and what the placement saves.

Why: load skew says that some instance has more than its share. A user wants to know which key is
the cause, where joinengine placed it, and whether that helped. The saving cannot be measured, since
the batch ran once. It is modelled: the deliveries of the batch are compared with those that the
base function would have caused. Deliveries include probe copies, so the comparison charges a
divided key for being probed for at all its homes.

Cost: some array operations over the keys that the tasks reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joinengine.balancing.statistics import Floats, Interval
from joinengine.layouts.layout import Layout
from joinengine.model.keys import PAIR, U_ONE, Mode, Placement, Side
from joinengine.wire.reports import OperatorReport, work_of

#: The number of keys that a record keeps.
MOST_KEPT = 12


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key in one batch.

    `rows`: its tuples in the batch, each counted once; a lower bound if the key is light. `share`:
    its part of all tuples that the operator stored in the batch. `text`: its value; None: not
    known. `placement`: where its tuples were sent; None: the layout does not place by key.
    `listed`: the routing table has the key. `saved_rows`: how many more tuples the busiest instance
    would have received with the key whole at its base home; None: not modelled, as in `Heat`.
    `state_share`: its part of all tuples that the operator holds after the batch; None: the layout
    does not count them.
    """

    hash_: int
    text: str | None
    rows: float
    share: float
    placement: Placement | None
    listed: bool
    saved_rows: float | None
    state_share: float | None = None


@dataclass(frozen=True, slots=True)
class Heat:
    """The hottest keys, hottest first, and how the operator's tuples are spread.

    `tuples`: the tuples that the operator stored in the batch, each once. `greatest`: deliveries to
    the busiest instance. `under_hash`: the same, modelled with all keys whole at their base homes;
    None: the layout counts no keys, or tuples probe several cells of a band.
    """

    keys: tuple[HotKey, ...] = ()
    tuples: float = 0.0
    greatest: int = 0
    under_hash: float | None = None


def heat_of(reports: Sequence[OperatorReport], layout: Layout, interval: Interval | None) -> Heat:
    """The heat of a batch that was routed under `layout`.

    `interval`: the counts of the batch for the planner; None: no counts, or do not model.
    """
    work = work_of(reports, layout.instances)
    copies = defaultdict[int, list[int]](lambda: [0, 0])
    texts = dict[int, str]()
    for report in reports:
        for hash_, rows, text in report.hot:
            copies[hash_] = [a + b for a, b in zip(copies[hash_], rows, strict=True)]
            if text is not None:
                texts[hash_] = text
    placed = _placed(layout, copies)
    brought = {
        hash_: _tuples(layout, placed[hash_], rows) if hash_ in placed else [*map(float, rows)]
        for hash_, rows in copies.items()
    }
    total = _total(layout, (work.stored - work.backed).astype(float), placed, copies, brought)
    loads = work.received.sum(axis=0).astype(float)
    base = layout.base_function if interval is not None else None

    def described(hash_: int) -> HotKey:
        rows, placement, saved = brought[hash_], layout.place(hash_), None
        if base is not None and placement is not None:
            home = int(base.homes(np.array([hash_], np.uint64))[0])
            saved = _saved(loads, placement, rows, home)
        share = sum(rows) / total if total else 0.0
        listed = hash_ in layout.table.placements
        facts = hash_, texts.get(hash_), sum(rows), share, placement, listed, saved
        return HotKey(*facts, _held(hash_, interval))

    hottest = sorted(brought, key=lambda hash_: (-sum(brought[hash_]), hash_))[:MOST_KEPT]
    model = None
    if base is not None and interval is not None:
        homes = base.homes(interval.hashes).astype(np.int64)
        whole = np.bincount(homes, interval.arrived.sum(axis=0), layout.instances)
        model = float((interval.rest + whole).max(initial=0))
    return Heat(tuple(map(described, hottest)), total, int(loads.max(initial=0)), model)


def _held(hash_: int, interval: Interval | None) -> float | None:
    """The share of the state that a key has; None: it was not counted."""
    if interval is None or not interval.state.any():
        return None
    at = int(np.searchsorted(interval.hashes, np.uint64(hash_)))
    if at == len(interval.hashes) or interval.hashes[at] != hash_:
        return None
    return float(interval.held[:, at].sum() / interval.state.sum())


def _placed(layout: Layout, hashes: Iterable[int]) -> dict[int, Placement | None]:
    """The placements of keys. Under a base function, only those in the routing table."""
    if layout.base_function is None:
        return {hash_: layout.place(hash_) for hash_ in hashes}
    listed = layout.table.placements
    return {hash_: listed[hash_] for hash_ in hashes if hash_ in listed}


def _tuples(layout: Layout, placement: Placement | None, copies: Sequence[int]) -> list[float]:
    """Per side, the tuples of a key, each once, from the number of stored copies."""
    return [
        count / _copies_each(layout, placement, side)
        for side, count in zip(PAIR, copies, strict=True)
    ]


def _copies_each(layout: Layout, placement: Placement | None, side: Side) -> int:
    """How many instances store each tuple of a key on one side."""
    if placement is None:
        return layout.copies(side)
    match placement.mode:
        case Mode.WHOLE | Mode.SPLIT:
            return 1
        case Mode.COPIED:
            return 1 if side is placement.split_side else len(placement.homes)
        case Mode.GRID:
            return placement.columns if side is Side.LEFT else placement.rows


def _total(
    layout: Layout,
    stored: Floats,
    placed: Mapping[int, Placement | None],
    copies: Mapping[int, Sequence[int]],
    brought: Mapping[int, Sequence[float]],
) -> float:
    """All tuples that were stored, each once, as far as can be told from the reported keys."""
    if any(placement is None for placement in placed.values()):
        return sum(float(stored[side].sum()) / layout.copies(side) for side in PAIR)
    extra = sum(sum(copies[hash_]) - sum(rows) for hash_, rows in brought.items())
    return float(stored.sum()) - extra


def _saved(loads: Floats, placement: Placement, rows: Sequence[float], home: int) -> float:
    """How many more tuples the busiest instance would have if the key were whole at `home`."""
    without = loads.copy()
    shares = defaultdict[int, float](float)
    for fragment in placement.fragments:
        shares[fragment.instance] += (fragment.u_upper - fragment.u_lower) / U_ONE
    for instance, share in shares.items():
        for side, count in zip(PAIR, rows, strict=True):
            without[instance] -= _part(placement, side, share) * count
    for instance in placement.backups:
        without[instance] -= sum(rows)
    without[home] += sum(rows)
    return max(0.0, float(without.max() - loads.max()))


def _part(placement: Placement, side: Side, share: float) -> float:
    """The part of a key's tuples on a side that reaches an instance with `share` of the key."""
    match placement.mode:
        case Mode.WHOLE | Mode.SPLIT:  # each tuple probes all homes
            return 1.0
        case Mode.COPIED:
            return share if side is placement.split_side else 1.0
        case Mode.GRID:
            return 1 / (placement.rows if side is Side.LEFT else placement.columns)
