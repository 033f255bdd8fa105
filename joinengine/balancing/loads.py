"""The loads that planners get: what each key costs its homes, and what cannot be moved.

Load: the expected work of the next batch, or tuples, as the papers have it. Work is stated in
tuples too: as many as would cost the same, at the mean cost of a tuple of the operator. So
tolerances and allowances for noise mean the same under both.

A key's load has a part that can be divided among its homes (`spread`) and a part that every home
pays (`fixed`). Under COPIED the split side and the pairs are divided, and each home receives,
stores and probes with the other side; under SPLIT the pairs and the storing are divided, and each
home receives and probes with all. In tuples, which count what is *stored*, nothing is fixed under
SPLIT.

Expected loads follow the last intervals, as far back as these agree (balancing.agreement).

Source: Fang et al. (JOS 2017) balance the tuples held; here loads are those of the last intervals,
so that a planner follows a shift although all history is held. Simois (ICDCS 2019) and FastJoin
(IPDPS 2019) take the work of a key as the product of its sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from joinengine.balancing.statistics import Bools, Floats, Interval, Ints, Work
from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import distinct, rows_among
from joinengine.model.keys import Side
from joinengine.routing.base_functions import Base
from joinengine.routing.holdings import backups_of, fragments_of
from joinengine.routing.table import RoutingTable

#: The smaller side is copied if the larger one is at least this many times as large. Over
#: the life of the state, copying costs X + D*Y messages and (D - 1)*Y copies, probing all homes
#: D*(X + Y) messages: equal at X = Y. The margin keeps a key from flapping between the two.
COPY_MARGIN = 2.0
#: The pairs of a key with this many tuples are expected to recur by half.
FEW_TUPLES = 2.0
#: The fields of Loads that are (K,).
_OF_KEYS = "hashes", "homes", "spread", "fixed", "held", "held_fixed", "copied", "split_sides"


class Parts(NamedTuple):
    """The parts of the load of each key.

    `whole` (2, K): the cost of a side's tuples at a home that stores all of them. `carried` (2, K):
    at a home that stores none. `pairs` (K,): the cost of the pairs compared and made, at any home.
    """

    whole: Floats
    carried: Floats
    pairs: Floats

    def of(self, keys: Bools) -> Parts:
        """The parts of some keys."""
        return Parts(self.whole[:, keys], self.carried[:, keys], self.pairs[keys])


class Backups(NamedTuple):
    """Key `keys[b]` has a backup at `instances[b]`; `load` (K,): what a backup of a key costs."""

    keys: Ints
    instances: Ints
    load: Floats


_NO_PARTS = Parts(np.zeros((2, 0)), np.zeros((2, 0)), np.zeros(0))
_NO_BACKUPS = Backups(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


@dataclass(frozen=True)
class Loads:
    """A planner's input: K keys over N instances. All loads are tuples, or work stated in tuples.

    `hashes` (K,) ascending; `homes` (K,) base homes; `spread` and `fixed` (K,) as above; `held`
    (K,) tuples of the state, of which every home has the `held_fixed` (K,); `copied` (K,) and
    `split_sides` (K,) how a key would be split.
    Fragment f is the share `shares[f]` of key `keys[f]` at `instances[f]`; the fragments of one
    key sum to 1 and are adjacent. `rest` (N,): the load that cannot be moved. `hosts`: how many
    tasks host the instances; 0: each has its own. `turn`: the fixed work of each task in a batch,
    which is in no load of an instance. `row`: what it costs to move a tuple. `level` (N,): loads
    under the present modes of divided keys, which may differ from the modes that planners would
    choose now; empty: they do not. `left_only`: only left tuples may be divided, and right ones are
    then copied.
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
    backups: Backups = _NO_BACKUPS
    parts: Parts = _NO_PARTS
    hosts: int = 0
    turn: float = 0.0
    row: float = 1.0
    level: Floats = field(default_factory=lambda: np.zeros(0))
    left_only: bool = False

    @property
    def n_instances(self) -> int:
        """N, the number of instances."""
        return len(self.rest)

    @property
    def tasks(self) -> Ints:
        """(N,) the task that hosts each instance; a task works for its instances in turn."""
        return np.arange(self.n_instances) % (self.hosts or self.n_instances)

    def at_tasks(self, level: Floats) -> Floats:
        """(N,) loads of instances -> (T,) loads of tasks; a batch waits for the busiest task."""
        return np.bincount(self.tasks, level).astype(float)

    def per_instance(self) -> Floats:
        """(N,) the load of each instance under the present fragments and backups."""
        return self.level.copy() if len(self.level) else self.as_planned()

    def as_planned(self) -> Floats:
        """(N,) the load of each instance if divided keys had the modes that planners choose."""
        return self._with(self.spread, self.fixed)

    def _with(self, spread: Floats, fixed: Floats) -> Floats:
        n = self.n_instances
        weights = self.shares * spread[self.keys] + fixed[self.keys]
        moved = np.bincount(self.instances, weights, minlength=n)
        keys, instances, load = self.backups
        if not len(keys):
            return np.asarray(self.rest + moved)
        copied = np.bincount(instances, load[keys], minlength=n)
        return np.asarray(self.rest + moved + copied)

    def heavy(self, least: float, table: RoutingTable) -> Loads:
        """The loads, in which keys below `least` count as immovable unless the table lists them."""
        heavy = self.spread + self.fixed >= least
        heavy[table.columns.rows_in(self.hashes)[1]] = True
        ours, backed = heavy[self.keys], heavy[self.backups.keys]
        movable, fixed = self._of(ours, backed), self._of(~ours, ~backed)
        numbers, backups = np.cumsum(heavy) - 1, movable.backups
        return replace(
            movable,
            **{name: getattr(self, name)[heavy] for name in _OF_KEYS},
            parts=self.parts.of(heavy),
            keys=numbers[movable.keys],
            backups=Backups(numbers[backups.keys], backups.instances, backups.load[heavy]),
            rest=fixed.as_planned(),
        )

    def _of(self, fragments: Bools, backups: Bools) -> Loads:
        """The loads with these fragments and backups alone."""
        return replace(
            self,
            keys=self.keys[fragments],
            instances=self.instances[fragments],
            shares=self.shares[fragments],
            backups=Backups(
                self.backups.keys[backups], self.backups.instances[backups], self.backups.load
            ),
        )

    def under(self, fixed: Floats) -> Loads:
        """The loads if each home of a key pays `fixed` (K,) at present."""
        return replace(self, level=self._with(self.spread + self.fixed - fixed, fixed))


class _Sums(NamedTuple):
    """The loads of (K,) keys in some intervals, and (N,) the `rest` that cannot be moved.

    `row` and `turn` as in Loads; `backup` (K,): the cost of a backup of each key.
    """

    parts: Parts
    rest: Floats
    backup: Floats
    row: float = 1.0
    turn: float = 0.0


def gather_loads(
    history: Sequence[Interval],
    table: RoutingTable,
    base: Base,
    backup_work: float = 0.0,
    *,
    left_only: bool = False,
) -> Loads:
    """The loads of the intervals in `history`, newest last, as they would be under `table`.

    A planner may move the keys of `table` and the keys with arrivals. State is the state after the
    newest interval; a key that this interval does not report has no state. Loads are work if the
    newest interval has any, and then earlier intervals without work are left out. `backup_work`: if
    loads are tuples, the load of a backup as a part of its key's load; if they are work, it is
    known. `left_only`: as in `Loads`.
    """
    newest = history[-1]
    if newest.work is not None:
        history = [interval for interval in history if interval.work is not None]
    hashes = _movable(history, table)
    arrived, held = _counted(history, hashes)
    split_sides, copied = np.zeros(len(hashes), np.int64), np.ones(len(hashes), bool)
    if not left_only:
        split_sides, copied = _how_to_split(hashes, arrived + held, table)
    if newest.work is None:
        sums = _in_tuples(history, hashes, arrived, backup_work)
    else:
        sums = _in_work(history, hashes)
    columns = np.arange(len(hashes))
    whole, pairs = sums.parts.whole, sums.parts.pairs
    larger, smaller = (whole[some, columns] for some in (split_sides, 1 - split_sides))
    carried = sums.parts.carried.sum(axis=0)
    fixed = np.where(copied, smaller, carried)
    keys, instances, shares = fragments_of(hashes, table, base)
    loads = Loads(
        hashes=hashes,
        homes=base.homes(hashes).astype(np.int64),
        spread=larger + smaller + pairs - fixed,
        fixed=fixed,
        held=held.sum(axis=0),
        held_fixed=np.where(copied, held[1 - split_sides, columns], 0.0),
        copied=copied,
        split_sides=split_sides,
        keys=keys,
        instances=instances,
        shares=shares,
        rest=sums.rest,
        backups=Backups(*backups_of(hashes, table, base), sums.backup),
        parts=sums.parts,
        hosts=0 if newest.work is None else newest.work.hosts,
        turn=sums.turn,
        row=sums.row,
        left_only=left_only,
    )
    return loads.under(fixed_now(loads, table))


def _movable(history: Sequence[Interval], table: RoutingTable) -> Words:
    listed = table.columns.hashes
    return distinct(np.concatenate([listed, *(interval.loaded for interval in history)]))


def _counted(history: Sequence[Interval], hashes: Words) -> tuple[Floats, Floats]:
    """(2, K) tuples per side and key that arrived, and (2, K) held after the last interval."""
    arrived, held = np.zeros((2, 2, len(hashes)))
    for interval in history:
        some = interval.arrived.any(axis=0)  # `hashes` has all keys with arrivals
        arrived[:, np.searchsorted(hashes, interval.hashes[some])] += interval.arrived[:, some]
    known, places = rows_among(history[-1].hashes, hashes)
    held[:, places] = history[-1].held[:, known]
    return arrived, held


def _in_tuples(
    history: Sequence[Interval], hashes: Words, arrived: Floats, backup_work: float
) -> _Sums:
    """Loads are the tuples that are stored."""
    backed = [backup_work * interval.backed for interval in history if len(interval.backed)]
    rest = np.sum([*(interval.rest for interval in history), *backed], axis=0)
    nothing = np.zeros((2, len(hashes)))
    parts = Parts(arrived, nothing, nothing[0])
    return _Sums(parts, rest, backup_work * arrived.sum(axis=0))


def _in_work(history: Sequence[Interval], hashes: Words) -> _Sums:
    """Loads are work, at the prices of the newest interval."""
    newest = history[-1].work
    assert newest is not None
    routed_s, stored_s, probed_s, candidate_s, result_s = newest.costs
    arrived, probed, pairs_s = np.zeros((3, 2, len(hashes)))
    seconds, total_s, tuples = np.zeros(history[-1].stored.shape[1]), 0.0, 0.0
    for interval in history:
        work = interval.work
        assert work is not None
        rows, places = rows_among(interval.hashes, hashes)
        arrived[:, places] += interval.arrived[:, rows]
        probed[:, places] += work.probed[:, rows]
        spent = candidate_s * work.candidates + result_s * work.results
        pairs_s[:, places] += spent[:, rows]
        seconds += newest.costs @ work.others
        total_s += float((newest.costs @ work.done).sum())
        tuples += float(work.done[1].sum())
    # A tuple is routed to an instance once, even if it probes several cells there.
    routed = np.maximum(probed * _routed_each(history), arrived)
    carried = routed_s * routed + probed_s * probed
    whole = carried + stored_s * arrived
    if not probed.any():  # as in an aggregation, whose tuples go where they are stored
        carried = np.zeros_like(carried)
    # One tuple may meet all that waited for it, which predicts nothing: few tuples say little.
    pairs_s *= probed / (probed + FEW_TUPLES)
    unit = tuples / total_s if total_s > 0 else 0.0
    row = unit * (routed_s + stored_s)
    parts = Parts(unit * whole, unit * carried, unit * pairs_s.sum(axis=0))
    turns = len(history) * unit * newest.turn_s
    return _Sums(parts, unit * seconds, row * arrived.sum(axis=0), row, turns)


def _routed_each(history: Sequence[Interval]) -> float:
    """Tuples routed per tuple that probes; below 1 under a band, where a tuple probes cells."""
    works: list[Work] = [interval.work for interval in history if interval.work is not None]
    routed, probed = (sum(float(work.done[row].sum()) for work in works) for row in (0, 2))
    return min(routed / probed, 1.0) if probed else 1.0


def fixed_now(loads: Loads, table: RoutingTable) -> Floats:
    """(K,) what each home of a key pays under the key's mode in the table.

    Each cell of a grid pays for the left tuples of its row and the right tuples of its column.
    """
    fixed, columns = loads.fixed.copy(), table.columns
    rows, places = columns.rows_in(loads.hashes)
    homes = np.diff(columns.bounds)[rows]
    rows, places, homes = (some[homes > 1] for some in (rows, places, homes))
    whole = loads.parts.whole[:, places]
    sides = 1 - columns.split_sides[rows]
    copied, carried = whole[sides, np.arange(len(places))], loads.parts.carried[:, places]
    fixed[places] = np.where(columns.copied[rows], copied, carried.sum(axis=0))
    wide = columns.grid_columns[rows]
    some = np.flatnonzero(wide)
    lines, wide = homes[some] // wide[some], wide[some]
    fixed[places[some]] = whole[Side.LEFT, some] / lines + whole[Side.RIGHT, some] / wide
    return fixed


def _how_to_split(hashes: Words, sizes: Floats, table: RoutingTable) -> tuple[Ints, Bools]:
    """Per key the side to be divided, and whether to copy the other one."""
    split_sides = (sizes[Side.RIGHT] > sizes[Side.LEFT]).astype(np.int64)
    rows, places = table.columns.rows_in(hashes)
    some = table.columns.copied[rows]  # the split side stays until the other is clearly larger
    ours, places = table.columns.split_sides[rows[some]], places[some]
    stays = sizes[1 - ours, places] < COPY_MARGIN * sizes[ours, places]
    split_sides[places[stays]] = ours[stays]
    columns = np.arange(len(hashes))
    larger, smaller = sizes[split_sides, columns], sizes[1 - split_sides, columns]
    return split_sides, larger >= COPY_MARGIN * smaller
