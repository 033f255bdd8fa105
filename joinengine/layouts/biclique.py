"""The join-biclique: some instances store the left side only, the others the right side only.

How: a tuple is stored once, at an instance of its own side, and probes the instances of the other
side. `bi` ignores keys: u decides where a tuple is stored, and it probes the whole other side.
`bi-k` has k subgroups per side: the key hash decides the subgroup and u the instance in it; a tuple
probes only the subgroup of the same number on the other side.

Law: a stored tuple never has a copy; growing moves nothing, since tuples probe the new instances
and still probe the old ones. Cost: 1 + n_other / k messages per tuple.
Source: Lin et al., SIGMOD 2015 (BiStream, ContRand); Bi and Bi_6 in Fang et al., JOS 2017. Ours:
the sizes of the sides level the state, among the sizes at which the busiest instance works at most
1.25 times what it would at best. The sides are sized again once the state or the work exceeds 1.25
times the best. After growth, emptier instances get larger shares of new tuples.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from joinengine.balancing.reasons import Balance, Cause, Cost, Reason
from joinengine.balancing.statistics import Interval
from joinengine.kernels.hashing import Words, key_hash, u_of
from joinengine.kernels.probing import expand_ranges
from joinengine.layouts.layout import Layout, LayoutChoice, Plan, Router
from joinengine.layouts.layout_settings import TOLERANCE, Range, changed_settings, setting
from joinengine.model.keys import PAIR, U_BITS, U_ONE, Side
from joinengine.routing.routes import MAX_INSTANCES, PROBE, STORE, Deliveries, Instances

#: A member of a subgroup: its instance, and the least u that it stores.
Member = tuple[int, int]
#: Per side, per subgroup, the members by ascending u.
Subgroups = tuple[tuple[tuple[Member, ...], ...], tuple[tuple[Member, ...], ...]]


@dataclass(frozen=True, slots=True)
class BicliqueRouter(Router):
    """The subgroups of both sides as arrays.

    Member j of a side begins at word starts[j] = subgroup << U_BITS | u and is members[j]; bounds
    (k + 1,) cut the members into subgroups.
    """

    instances: int = field()  # field(): else the protocol's property would be the default
    starts: tuple[Words, Words]
    members: tuple[NDArray[np.uint16], NDArray[np.uint16]]
    bounds: tuple[NDArray[np.int64], NDArray[np.int64]]

    @override
    def route(self, side: Side, words: Words) -> Deliveries:
        """A tuple goes to one instance of its side, and to the whole subgroup of the other side."""
        groups = self._groups(words)
        bounds, members = self.bounds[side.other], self.members[side.other]
        probed = bounds[groups + 1] - bounds[groups]
        rows = np.repeat(np.arange(len(words)), probed + 1)
        own = np.cumsum(probed + 1) - (probed + 1)
        instances = np.empty(len(rows), np.uint16)
        flags = np.full(len(rows), PROBE)
        instances[own] = self._homes(side, words, groups)
        flags[own] = STORE
        instances[expand_ranges(own + 1, probed)] = members[expand_ranges(bounds[groups], probed)]
        return Deliveries(rows, instances, flags)

    @override
    def homes(self, side: Side, words: Words, holders: Instances) -> Deliveries:
        """A tuple at an instance of its subgroup stays; any other goes where its u says."""
        groups = self._groups(words)
        theirs = np.full(MAX_INSTANCES, -1)
        sizes = np.diff(self.bounds[side])
        theirs[self.members[side]] = np.repeat(np.arange(len(sizes)), sizes)
        homes = np.where(theirs[holders] == groups, holders, self._homes(side, words, groups))
        rows = np.arange(len(words))
        return Deliveries(rows, homes, np.full(len(rows), STORE))

    def _groups(self, words: Words) -> NDArray[np.int64]:
        k = len(self.bounds[0]) - 1
        return (key_hash(words) % np.uint64(k)).astype(np.int64)

    def _homes(self, side: Side, words: Words, groups: NDArray[np.int64]) -> NDArray[np.uint16]:
        places = groups.astype(np.uint64) << np.uint64(U_BITS) | u_of(words)
        homes: NDArray[np.uint16] = self.members[side][
            np.searchsorted(self.starts[side], places, side="right") - 1
        ]
        return homes


@dataclass(frozen=True, slots=True)
class Biclique(Layout):
    """The layout state."""

    groups: Subgroups

    @property
    @override
    def instances(self) -> int:
        return sum(len(group) for side in self.groups for group in side)

    @override
    def router(self) -> BicliqueRouter:
        """The subgroups as arrays."""
        starts, members, bounds = [], [], []
        for side in self.groups:
            starts.append([g << U_BITS | low for g, group in enumerate(side) for _, low in group])
            members.append([instance for group in side for instance, _ in group])
            bounds.append(list(accumulate((len(group) for group in side), initial=0)))
        return BicliqueRouter(
            self.instances,
            (np.array(starts[0], np.uint64), np.array(starts[1], np.uint64)),
            (np.array(members[0], np.uint16), np.array(members[1], np.uint16)),
            (np.array(bounds[0]), np.array(bounds[1])),
        )

    def units(self, side: Side) -> list[int]:
        """The instances of one side."""
        return [instance for group in self.groups[side] for instance, _ in group]

    @override
    def to_json(self) -> dict[str, Any]:
        return {"groups": self.groups}


def even(instances: Sequence[int], shares: Sequence[float] | None = None) -> tuple[Member, ...]:
    """Members with these shares of u; None: equal shares.

    >>> even([3, 5])
    ((3, 0), (5, 8388608))
    """
    weights = np.ones(len(instances)) if shares is None else np.asarray(shares, float)
    edges = np.concatenate([[0.0], np.cumsum(weights)[:-1]]) / weights.sum() * U_ONE
    return tuple(zip(instances, np.round(edges).astype(int).tolist(), strict=True))


#: What the settings of `bi` and `bi-k` mean.
_TOLERANCE = "how many times the best sizes' load the present sizes of the sides may have"
_RESIZE = "whether instances change sides as the streams' sizes change", "ours; false: Lin 2015"


class _Biclique(LayoutChoice):
    """The base of `bi` and `bi-k`."""

    tolerance: float
    resize: bool

    @abstractmethod
    def subgroups(self, instances: int) -> int:
        """The number of subgroups a side for `instances` instances."""

    @override
    def least_instances(self, instances: int) -> int:
        """Two for each subgroup."""
        return 2 * self.subgroups(instances)

    @override
    def start(self, instances: int) -> Biclique:
        """Half of the instances to each side."""
        return sized(instances, instances // 2, self.subgroups(instances))

    @override
    def restore(self, state: dict[str, Any]) -> Biclique:
        left, right = (
            tuple(tuple((i, low) for i, low in group) for group in side) for side in state["groups"]
        )
        return Biclique((left, right))

    @property
    @override
    def history_intervals(self) -> int:
        """The sizes of the streams after the last one are enough."""
        return 1 if self.resize else 0

    @override
    def plan(self, layout: Layout, history: Sequence[Interval], wanted: int = 0) -> Plan | None:
        """Other sizes of the sides, if the instances of one side store or work too much."""
        assert isinstance(layout, Biclique)
        newest, n = history[-1], layout.instances
        least = len(layout.groups[0])  # the number of subgroups stays while the layout grows
        if not newest.state.sum():
            return None
        state, work = stored(newest, n), worked(newest, n, least)
        enough = self.tolerance * min(work[size].greatest for size in range(least, n - least + 1))
        level = [size for size in range(least, n - least + 1) if work[size].greatest <= enough]
        now, best = len(layout.units(Side.LEFT)), min(level, key=lambda size: state[size].greatest)
        loads = state if now in level else work
        if loads is state and state[now].greatest <= self.tolerance * state[best].greatest:
            return None
        after = _shifted(layout, best)
        cost = Cost(moved=_leaving(layout, after, newest.state))
        shapes = in_words(layout), in_words(after)
        reason = Reason(Cause.SHAPE, loads[now], loads[best], cost, shapes=shapes)
        return Plan(after, reason, rehome=True)

    @override
    def resized(self, layout: Layout, instances: int) -> Biclique:
        """Add instances one by one to the smallest subgroup; if there are fewer, start anew."""
        assert isinstance(layout, Biclique)
        if instances < layout.instances:
            return self.start(instances)
        groups = _members(layout)
        sizes = [len(layout.units(side)) for side in PAIR]
        for instance in range(layout.instances, instances):
            side = Side.LEFT if sizes[0] <= sizes[1] else Side.RIGHT
            min(groups[side], key=len).append(instance)
            sizes[side] += 1
        return _regrouped(layout, groups)

    @override
    def grow(self, layout: Layout, held: Sequence[int]) -> Biclique:
        """One more instance in the subgroup of the fullest instance; nothing moves."""
        assert isinstance(layout, Biclique)
        fullest = int(np.argmax(held))
        for side in PAIR:
            for number, group in enumerate(layout.groups[side]):
                if fullest in (instance for instance, _ in group):
                    return _joined(layout, side, number, np.array(held, float))
        return layout


def sized(instances: int, left: int, k: int) -> Biclique:
    """`left` instances for the left side, in k subgroups a side."""
    lefts, rights = np.arange(left), np.arange(left, instances)
    return Biclique(
        (
            tuple(even(lefts[g::k].tolist()) for g in range(k)),
            tuple(even(rights[g::k].tolist()) for g in range(k)),
        )
    )


def in_words(layout: Biclique) -> str:
    """The sizes of the sides in words, for the reason of a plan."""
    left, right = (len(layout.units(side)) for side in PAIR)
    return f"{left} left and {right} right instances"


def stored(interval: Interval, instances: int) -> dict[int, Balance]:
    """Number of left instances -> the greatest and the mean state of an instance, in tuples."""
    left, right = interval.state.sum(axis=1).tolist()
    mean = (left + right) / instances
    return {
        size: Balance(max(left / size, right / (instances - size)), mean)
        for size in range(1, instances)
    }


def worked(interval: Interval, instances: int, subgroups: int) -> dict[int, Balance]:
    """The same for work, in tuples of equal cost; all 0 if work is not weighed.

    An instance stores its part of a side, is probed by all tuples of the other side's subgroup, and
    finds its part of the pairs. The sides are taken to bring tuples in the ratio of their state, so
    that one odd batch changes nothing.
    """
    sizes = range(1, instances)
    if interval.work is None or not interval.stored.sum():
        return dict.fromkeys(sizes, Balance(0.0, 0.0))
    left, right = interval.state.sum(axis=1).tolist()
    routed, stored, probed, candidate, result = interval.work.costs.tolist()
    each, done = routed + stored + probed, interval.work.done.sum(axis=1)
    # The window decides which side's tuples find the pairs: half each, if it is wide.
    half = float(candidate * done[3] + result * done[4]) / 2
    half *= (left + right) / float(interval.stored.sum())
    balances = dict[int, Balance]()
    for size in sizes:
        at_left = (left * (routed + stored) + half) / size
        at_right = (right * (routed + stored) + half) / (instances - size)
        at_left += right * (routed + probed) / subgroups
        at_right += left * (routed + probed) / subgroups
        total = at_left * size + at_right * (instances - size)
        balances[size] = Balance(max(at_left, at_right) / each, total / instances / each)
    return balances


def _members(layout: Biclique) -> list[list[list[int]]]:
    """The instances of each subgroup of each side."""
    return [[[instance for instance, _ in group] for group in side] for side in layout.groups]


def _regrouped(layout: Biclique, groups: list[list[list[int]]]) -> Biclique:
    """The layout with these instances in its subgroups; subgroups that change get equal shares."""
    left, right = (
        tuple(
            group if {instance for instance, _ in group} == set(members) else even(sorted(members))
            for group, members in zip(layout.groups[side], groups[side], strict=True)
        )
        for side in PAIR
    )
    return Biclique((left, right))


def _shifted(layout: Biclique, left: int) -> Biclique:
    """The layout with `left` instances for the left side; those that keep their side stay."""
    groups, more = _members(layout), left - len(layout.units(Side.LEFT))
    giver = Side.RIGHT if more > 0 else Side.LEFT
    for _ in range(abs(more)):
        largest = max(groups[giver], key=len)
        instance = largest.pop(0 if giver is Side.RIGHT else -1)
        min(groups[giver.other], key=len).append(instance)
    return _regrouped(layout, groups)


def _leaving(before: Biclique, after: Biclique, state: NDArray[np.float64]) -> float:
    """How many tuples of (2, N) `state` are at instances that leave their subgroup."""
    members = [
        {
            (side, number, instance)
            for side in PAIR
            for number, group in enumerate(layout.groups[side])
            for instance, _ in group
        }
        for layout in (before, after)
    ]
    return float(sum(state[side, instance] for side, _, instance in members[0] - members[1]))


def _joined(layout: Biclique, side: Side, number: int, held: NDArray[np.float64]) -> Biclique:
    """The layout with a new instance in one subgroup; emptier members get larger shares."""
    group = layout.groups[side][number]
    instances = [instance for instance, _ in group] + [layout.instances]
    room = held[instances[:-1]].max() * 1.01 - np.append(held[instances[:-1]], 0)
    groups = list(layout.groups[side])
    groups[number] = even(instances, room + 0.01 * room.sum())
    sides = list(layout.groups)
    sides[side] = tuple(groups)
    return Biclique((sides[0], sides[1]))


@dataclass(frozen=True)
class Bi(_Biclique):
    """Store anywhere on the own side, probe all of the other."""

    tolerance: float = setting(1.25, _TOLERANCE, within=TOLERANCE)
    resize: bool = setting(True, *_RESIZE)

    name: ClassVar[str] = "bi"
    source: ClassVar[str] = "Lin et al., SIGMOD 2015"
    summary: ClassVar[str] = "join-biclique: store once, probe all of the other side"
    serves_theta: ClassVar[bool] = True
    serves_aggregates: ClassVar[bool] = False
    keeps_keys_whole: ClassVar[bool] = False

    @override
    def subgroups(self, instances: int) -> int:
        return 1


@dataclass(frozen=True)
class BiK(_Biclique):
    """Each side has subgroups of instances; a key hash chooses one."""

    subgroup_count: int | None = setting(
        None,
        "how many subgroups a side has; none: a quarter of the instances. bi-6 sets 6",
        "Lin 2015; bi-6: Fang 2017; a quarter: ours",
        within=Range(1, MAX_INSTANCES // 2),  # each subgroup has an instance per side
    )
    tolerance: float = setting(1.25, _TOLERANCE, within=TOLERANCE)
    resize: bool = setting(True, *_RESIZE)

    name: ClassVar[str] = "bi-k"
    source: ClassVar[str] = "Lin et al., SIGMOD 2015 (ContRand)"
    summary: ClassVar[str] = "join-biclique with k subgroups a side, chosen by key hash"
    serves_aggregates: ClassVar[bool] = False
    keeps_keys_whole: ClassVar[bool] = False

    @override
    def subgroups(self, instances: int) -> int:
        return self.subgroup_count or max(1, instances // 4)

    @property
    @override
    def label(self) -> str:
        """`bi-6` for six subgroups."""
        name = self.name if self.subgroup_count is None else f"bi-{self.subgroup_count}"
        return name + changed_settings(self, but=["subgroup_count"])
