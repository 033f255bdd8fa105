"""The counts that tasks report, and the loads that planners get.

Why: a planner sees numbers, never tuples. Per instance, side and interval a task reports exact
counts for the keys that could unbalance it, and one sum for all other keys.

Which keys: those with more than 1/H of the tuples that an instance stored from either side (so at
most 2 H = 8192 of them), and those in the routing table. Keys lighter than that cannot unbalance an
instance: were all its keys so light, hashing would leave it within 1/sqrt(H) = 1.6 % of the mean.
For keys that earlier intervals of the history reported, the held tuples are counted too, so that
the newest interval knows the state of every key that a planner may move (`counting`).

Load: the tuples of the last `intervals` intervals that a key causes to be *stored*, copies
included. A key's load has a part that can be divided among homes (`spread`) and a part that every
home pays (`fixed`): under COPIED the split side is divided and the other side is stored at each
home; under SPLIT all of it is divided. Fang et al. (JOS 2017) balance the tuples held. Here loads
are those of the last intervals, so that a planner follows a shift although all history is held.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import distinct, expand_ranges, numbered, rows_among
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement, Side
from joinengine.routing.base import Backed, Base
from joinengine.routing.table import RoutingTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Key number -> instance -> share, for the keys that a plan places anew.
NewShares = dict[int, dict[int, float]]

#: A key is reported if it has more than one part in this many of an instance's tuples of a side.
HEAVY_PART = 4096
#: The smaller side is copied if the larger one is at least this many times as large. Over
#: the life of the state, copying costs X + D*Y messages and (D - 1)*Y copies, probing all homes
#: D*(X + Y) messages: equal at X = Y. The margin keeps a key from flapping between the two.
COPY_MARGIN = 2.0


class KeyCounts(NamedTuple):
    """Counts of single keys, one row per (instance, side, key).

    `backups`: how many the predicates of service levels give a key (0: none names it); or no row.
    """

    instances: Ints
    sides: Ints
    hashes: Words
    stored: Ints
    held: Ints
    backups: Ints = np.zeros(0, np.int64)

    @classmethod
    def empty(cls) -> KeyCounts:
        """No key."""
        none = np.empty(0, np.int64)
        return cls(none, none, np.empty(0, np.uint64), none, none)

    @classmethod
    def concat(cls, parts: Sequence[KeyCounts]) -> KeyCounts:
        """All rows of `parts`."""
        if not parts:
            return cls.empty()
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Interval(NamedTuple):
    """The counts of one operator in one interval.

    (K,) keys; (2, K) their arrivals and (2, K) their tuples in the state after it, per side and
    each tuple once; (N,) the rest that each instance stored. Copies count in (2, N) `stored` in the
    interval and (2, N) `state` after it. `tasks`: how many tasks routed them. `holders` (2, P):
    keys, as columns, and instances that hold any of them. Backups do not count in `rest`; `backed`
    (N,): those that each instance stored, of keys that are not reported; empty: there are none.
    `named` (K,): the backups that predicates of service levels give; 0, or empty: they name none.
    `whole`: all heavy keys are there; otherwise the heaviest of them (`counting.MOST_LIGHT`).
    """

    hashes: Words
    arrived: Floats
    held: Floats
    rest: Floats
    stored: Floats = np.zeros((2, 0))
    state: Floats = np.zeros((2, 0))
    tasks: int = 1
    holders: Ints = np.zeros((2, 0), np.int64)
    backed: Floats = np.zeros(0)
    named: Ints = np.zeros(0, np.int64)
    whole: bool = True

    @property
    def loaded(self) -> Words:
        """The keys with arrivals; the other keys were reported for their state alone."""
        return self.hashes[self.arrived.any(axis=0)]

    def to_bytes(self) -> bytes:
        """The counts as bytes that `from_bytes` reads."""
        buffer = io.BytesIO()
        np.savez(buffer, **self._asdict())
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Interval:
        """The inverse of `to_bytes`."""
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            fields = {name: arrays[name] for name in cls._fields if name in arrays}
        whole = bool(fields.get("whole", True))  # as all were in earlier versions
        return cls(**fields | {"tasks": int(fields["tasks"]), "whole": whole})


@dataclass(frozen=True)
class Loads:
    """A planner's input: K keys over N instances. All loads count tuples.

    `hashes` (K,) ascending; `homes` (K,) base homes; `spread` and `fixed` (K,) as above; `held`
    (K,) tuples of the state, of which every home has the `held_fixed` (K,); `copied` (K,) and
    `split_sides` (K,) how a key would be split.
    Fragment f is the share `shares[f]` of key `keys[f]` at `instances[f]`; the fragments of one
    key sum to 1 and stand together. `rest` (N,) cannot be moved. Key `backup_keys[b]` has a backup
    at `backup_instances[b]`, which loads it by `backup_work` of what the key loads its home.
    """

    hashes: Words
    homes: Ints
    spread: Floats
    fixed: Floats
    held: Floats
    held_fixed: Floats
    copied: Bools
    split_sides: Ints
    keys: Ints
    instances: Ints
    shares: Floats
    rest: Floats
    backup_keys: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    backup_instances: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    backup_work: float = 0.0

    @property
    def n_instances(self) -> int:
        """N, the number of instances."""
        return len(self.rest)

    def per_instance(self) -> Floats:
        """(N,) the load of each instance under the present fragments and backups."""
        n = self.n_instances
        weights = self.shares * self.spread[self.keys] + self.fixed[self.keys]
        moved = np.bincount(self.instances, weights, minlength=n)
        backups = self.backup_work * (self.spread + self.fixed)[self.backup_keys]
        copied = np.bincount(self.backup_instances, backups, minlength=n)
        return np.asarray(self.rest + moved + copied)


def skew(loads: Floats | Ints) -> float:
    """Largest over mean; 1.0 if there is no load.

    >>> skew(np.array([2.0, 4.0]))
    1.3333333333333333
    """
    total = float(np.sum(loads))
    return float(np.max(loads)) * len(loads) / total if total else 1.0


def summarise(
    counts: KeyCounts,
    stored: Ints,
    state: Ints,
    table: RoutingTable,
    tasks: int,
    backed: tuple[Ints, Base] | None = None,
) -> Interval:
    """The reports of one interval, made under `table`; `stored`, `state` (2, N) as in `Interval`.

    `backed`: how many of the stored are backups (2, N), and the base function; None: no key has
    any. The result does not depend on the homes of a key, so intervals under different tables add
    up.
    """
    hashes, where = known = numbered(counts.hashes)
    n = stored.shape[1]
    places = counts.sides * n + counts.instances
    reported = np.bincount(places, counts.stored, minlength=2 * n).reshape(2, n)
    arrived = _per_key(counts, counts.stored.astype(float), known, table, copies=False)
    at_homes, rest = stored, np.zeros(0)
    if backed is not None:
        at_homes = stored - backed[0]
        keys, instances = _backups(hashes, table, backed[1])
        ours = np.bincount(instances, arrived.sum(axis=0)[keys], minlength=stored.shape[1])
        rest = np.maximum(backed[0].sum(axis=0) - ours, 0)
    return Interval(
        hashes,
        arrived,
        _per_key(counts, counts.held.astype(float), known, table, copies=backed is not None),
        np.maximum(at_homes - reported, 0).sum(axis=0),
        stored.astype(float),
        state.astype(float),
        tasks,
        _holders(counts, where, n),
        rest,
        _named(counts, where, len(hashes)),
    )


def gather_loads(
    history: Sequence[Interval], table: RoutingTable, base: Base, backup_work: float = 0.0
) -> Loads:
    """The loads of the intervals in `history`, newest last, as they would be under `table`.

    A planner may move the keys of `table` and those with arrivals. State is that after the newest
    interval; a key that it does not report has no state. `backup_work` as in Loads.
    """
    listed = table.columns.hashes
    hashes = distinct(np.concatenate([listed, *(interval.loaded for interval in history)]))
    arrived = np.zeros((2, len(hashes)))
    held = np.zeros((2, len(hashes)))
    for interval in history:
        some = interval.arrived.any(axis=0)  # `hashes` has all keys with arrivals
        arrived[:, np.searchsorted(hashes, interval.hashes[some])] += interval.arrived[:, some]
    known, places = rows_among(history[-1].hashes, hashes)
    held[:, places] = history[-1].held[:, known]
    split_sides, copied = _how_to_split(hashes, arrived + held, table)
    columns = np.arange(len(hashes))
    larger, smaller = arrived[split_sides, columns], arrived[1 - split_sides, columns]
    keys, homes, shares = _fragments(hashes, table, base)
    backup_keys, backup_instances = _backups(hashes, table, base)
    backed = [backup_work * interval.backed for interval in history if len(interval.backed)]
    return Loads(
        hashes=hashes,
        homes=base.homes(hashes).astype(np.int64),
        spread=np.where(copied, larger, larger + smaller),
        fixed=np.where(copied, smaller, 0.0),
        held=held.sum(axis=0),
        held_fixed=np.where(copied, held[1 - split_sides, columns], 0.0),
        copied=copied,
        split_sides=split_sides,
        keys=keys,
        instances=homes,
        shares=shares,
        rest=np.sum([*(interval.rest for interval in history), *backed], axis=0),
        backup_keys=backup_keys,
        backup_instances=backup_instances,
        backup_work=backup_work,
    )


def _named(counts: KeyCounts, where: Ints, n: int) -> Ints:
    """(K,) the backups that predicates give to each of `n` keys."""
    most, known = np.zeros(n, np.int64), len(counts.backups)
    np.maximum.at(most, where[:known], counts.backups)
    return most


def _holders(counts: KeyCounts, where: Ints, instances: int) -> Ints:
    """(2, P) keys and the instances that hold them, on any side, each pair once."""
    some = counts.held > 0
    pairs = distinct(where[some] * instances + counts.instances[some])
    return np.asarray(np.divmod(pairs, instances))


def _per_key(
    counts: KeyCounts,
    values: Floats,
    keys: tuple[Words, Ints],
    table: RoutingTable,
    *,
    copies: bool,
) -> Floats:
    """(2, K) tuples per side and key, each counted once however many instances store it.

    `keys`: (K,) keys, and the key of each count. `copies`: each instance that has tuples of a key
    has all of them.
    """
    hashes, where = keys
    n, where = len(hashes), counts.sides * len(hashes) + where
    most = np.zeros((2, n))
    np.maximum.at(most.reshape(-1), where, values)
    total: Floats = np.bincount(where, values, 2 * n).reshape(2, n).astype(float)
    if copies:
        return most
    rows, places = table.columns.rows_in(hashes)
    some = table.columns.copied[rows]
    others, places = 1 - table.columns.split_sides[rows[some]], places[some]
    total[others, places] = most[others, places]
    return total


def _how_to_split(hashes: Words, sizes: Floats, table: RoutingTable) -> tuple[Ints, Bools]:
    """Per key the side to be divided, and whether to copy the other one."""
    split_sides = (sizes[Side.RIGHT] > sizes[Side.LEFT]).astype(np.int64)
    rows, places = table.columns.rows_in(hashes)
    some = table.columns.copied[rows]  # they keep their side until the other is clearly larger
    ours, places = table.columns.split_sides[rows[some]], places[some]
    stays = sizes[1 - ours, places] < COPY_MARGIN * sizes[ours, places]
    split_sides[places[stays]] = ours[stays]
    columns = np.arange(len(hashes))
    larger, smaller = sizes[split_sides, columns], sizes[1 - split_sides, columns]
    return split_sides, larger >= COPY_MARGIN * smaller


def _listed(hashes: Words, table: RoutingTable) -> tuple[Ints, Ints, Ints]:
    """The rows of a table's columns that are among (K,) keys, their places, and other places."""
    rows, places = table.columns.rows_in(hashes)
    others = np.ones(len(hashes), bool)
    others[places] = False
    return rows, places, np.flatnonzero(others)


def _fragments(hashes: Words, table: RoutingTable, base: Base) -> tuple[Ints, Ints, Floats]:
    columns, (rows, places, others) = table.columns, _listed(hashes, table)
    counts = np.diff(columns.bounds)[rows]
    entries = expand_ranges(columns.bounds[rows], counts)
    return (
        np.concatenate([np.repeat(places, counts), others]),
        np.concatenate([columns.homes[entries], base.homes(hashes[others])]),
        np.concatenate([columns.shares[entries], np.ones(len(others))]),
    )


def _backups(hashes: Words, table: RoutingTable, base: Base) -> tuple[Ints, Ints]:
    """The pairs of (K,) keys and instances of their backups; a key's pairs stand together."""
    if not isinstance(base, Backed):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    plain = base.holders(hashes)[:, 1:].astype(np.int64)
    columns, (rows, places, others) = table.columns, _listed(hashes, table)
    counts = np.diff(columns.backup_bounds)[rows]
    listed = columns.backups[expand_ranges(columns.backup_bounds[rows], counts)]
    keys = np.concatenate([np.repeat(others, plain.shape[1]), np.repeat(places, counts)])
    return keys, np.concatenate([plain[others].ravel(), listed])


def build_table(table: RoutingTable, loads: Loads, changed: NewShares) -> RoutingTable:
    """`table` with the keys of `changed` (key number -> instance -> share) placed anew.

    Ranges of u stay where they are as far as the new shares allow, so that little state moves.
    """
    placements = dict(table.placements)
    for key, shares in changed.items():
        hash_ = int(loads.hashes[key])
        old = table.placements.get(hash_) or Placement.whole(int(loads.homes[key]))
        if len(shares) == 1:
            (home,) = shares
            if home == loads.homes[key]:
                placements.pop(hash_, None)
            else:
                placements[hash_] = Placement.whole(home)
            continue
        mode = Mode.COPIED if loads.copied[key] else Mode.SPLIT
        fragments = reshare(old.fragments, shares)
        placements[hash_] = Placement(mode, fragments, Side(int(loads.split_sides[key])))
    return RoutingTable(placements)


def reshare(old: Sequence[Fragment], shares: dict[int, float]) -> tuple[Fragment, ...]:
    """Ranges of u in the proportions of `shares`, overlapping `old` as far as they can.

    >>> half = (Fragment(0, 0, U_ONE),)
    >>> [f.u_lower / U_ONE for f in reshare(half, {0: 0.75, 1: 0.25})]
    [0.0, 0.75]
    """
    edges = np.round(np.cumsum([0.0, *shares.values()]) / sum(shares.values()) * U_ONE)
    quota = {i: int(n) for i, n in zip(shares, np.diff(edges), strict=True) if n > 0}
    cut, free = list[Fragment](), list[tuple[int, int]]()
    for fragment in old:
        kept = min(quota.get(fragment.instance, 0), fragment.u_upper - fragment.u_lower)
        middle = fragment.u_lower + kept
        if kept:
            quota[fragment.instance] -= kept
            cut.append(Fragment(fragment.instance, fragment.u_lower, middle))
        if middle < fragment.u_upper:
            free.append((middle, fragment.u_upper))
    wanting = [(instance, units) for instance, units in quota.items() if units]
    for lower, upper in free:
        start = lower
        while start < upper:
            instance, units = wanting.pop()
            stop = min(upper, start + units)
            cut.append(Fragment(instance, start, stop))
            if stop - start < units:
                wanting.append((instance, units - (stop - start)))
            start = stop
    return _joined(sorted(cut, key=lambda f: f.u_lower))


def _joined(fragments: list[Fragment]) -> tuple[Fragment, ...]:
    joined = list[Fragment]()
    for fragment in fragments:
        if joined and joined[-1].instance == fragment.instance:
            joined[-1] = Fragment(fragment.instance, joined[-1].u_lower, fragment.u_upper)
        else:
            joined.append(fragment)
    return tuple(joined)
