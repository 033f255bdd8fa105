"""Choice layouts: each key has a few candidate instances, and a tuple is stored at the emptiest.

How: candidates of a key are independent hashes of it. `pkg` gives every key `choices` of them;
`d-choices` gives the keys of the head as many as they need, `w-choices` all instances. A tuple
is stored at one candidate and probes all of them, so that pairs meet.

Where the papers' operators count tuple by tuple, a task here fills the candidates of a key *level*:
from the loads that the manifest holds, keys in the order of their hashes, all tuples of a key at
once; heavy keys one by one, light ones some thousands at a time.

Law: a stored tuple is at a candidate of its key, and no later layout has fewer candidates for the
key while its state lives. Loads of tasks are seen at the next batch, not before.
Cost: one sort of the words, and d messages a tuple.
Source: Nasir et al., ICDE 2015 (pkg) and ICDE 2016 (d-choices, w-choices). Ours: the head comes
from exact counts of the heaviest keys, which the tasks have anyway, instead of a SpaceSaving
summary; "store at one, probe all", since the papers serve aggregation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from joinengine.balancing.statistics import Floats, Interval
from joinengine.kernels.hashing import Words, key_hash, mix
from joinengine.kernels.probing import Ints, expand_ranges, group_keys
from joinengine.layouts.base import Layout, LayoutChoice, Plan
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Placement, Side
from joinengine.routing.routes import BOTH, PROBE, STORE, Deliveries, Instances
from joinengine.routing.table import RoutingTable

#: Keys are levelled in groups of so large a part of an instance's share; heavier keys alone.
GROUP_PART = 1 / 16
MOST_GROUPS = 1024
#: The head: keys with more than this part of an instance's fair share of all tuples (ICDE 2016).
HEAD_PART = 0.2
#: How close d-choices comes to level (ICDE 2016, epsilon).
EPSILON = 1e-4


def candidates(hashes: Words, choices: int, instances: int) -> Instances:
    """(n,) key hashes -> (n, choices) instances; two of a key may be the same, as in the paper.

    >>> candidates(np.array([5], np.uint64), 2, 10).shape
    (1, 2)
    """
    numbers = (np.arange(1, choices + 1, dtype=np.uint64) << np.uint64(48))[None, :]
    return (mix(hashes[:, None] ^ numbers) % np.uint64(instances)).astype(np.uint16)


@dataclass(frozen=True)
class ChoiceRouter:
    """What a task knows: `loads` (N,) of its own so far, and the keys of the head.

    `listed` (H,) key hashes, ascending; the places of head key h are
    head_places[head_bounds[h]:head_bounds[h + 1]].
    """

    instances: int
    choices: int
    loads: Floats
    listed: Words
    head_places: Instances
    head_bounds: Ints

    def route(self, side: Side, words: Words) -> Deliveries:
        """To one candidate to be stored, to the others to probe."""
        order = np.argsort(words)
        needles = group_keys(words[order])
        counts = np.diff(needles.starts)
        places, bounds = self._places(needles.hashes)
        shares = self._levelled(places, bounds, counts)
        # Tuples of a key in the order of u: the first go to its first place, and so on.
        chosen, keys = np.empty_like(order), np.empty_like(order)
        chosen[order] = np.repeat(np.arange(len(places)), shares)
        keys[order] = np.repeat(np.arange(len(counts)), counts)
        degrees = np.diff(bounds)[keys]
        entries = expand_ranges(bounds[keys], degrees)
        rows = np.repeat(np.arange(len(words)), degrees)
        flags = np.where(entries == chosen[rows], BOTH, PROBE)
        return Deliveries(rows, places[entries], flags)

    def homes(self, side: Side, words: Words, holders: Instances) -> Deliveries:
        """Where tuples are stored: they stay at a candidate, others go to their first."""
        hashes, keys = np.unique(key_hash(words), return_inverse=True)
        places, bounds = self._places(hashes)
        # Keys and instances that belong together, as one sorted set of pairs.
        pairs = np.repeat(np.arange(len(hashes)), np.diff(bounds)) * self.instances + places
        inside = holders < self.instances
        stays = inside & np.isin(keys * self.instances + holders, pairs)
        rows = np.arange(len(words))
        stored = np.where(stays, holders, places[bounds[:-1]][keys])
        return Deliveries(rows, stored, np.full(len(rows), STORE))

    def _places(self, hashes: Words) -> tuple[Instances, Ints]:
        """The places of (K,) keys, each once: places[bounds[k]:bounds[k + 1]]."""
        drawn = candidates(hashes, self.choices, self.instances)
        first = np.ones(drawn.shape, bool)
        for choice in range(1, self.choices):
            first[:, choice] = (drawn[:, :choice] != drawn[:, choice : choice + 1]).all(axis=1)
        counts = first.sum(axis=1)
        head = np.flatnonzero(np.isin(hashes, self.listed))
        ours = np.searchsorted(self.listed, hashes[head])
        counts[head] = self.head_bounds[ours + 1] - self.head_bounds[ours]
        bounds = np.concatenate([[0], np.cumsum(counts)])
        places = np.empty(bounds[-1], np.uint16)
        tail = np.ones(len(hashes), bool)
        tail[head] = False
        places[expand_ranges(bounds[:-1][tail], counts[tail])] = drawn[tail][first[tail]]
        places[expand_ranges(bounds[head], counts[head])] = self.head_places[
            expand_ranges(self.head_bounds[ours], counts[head])
        ]
        return places, bounds

    def _levelled(self, places: Instances, bounds: Ints, counts: Ints) -> Ints:
        """(P,) how many tuples of each key go to each of its places."""
        level = self.loads.copy()
        shares = np.zeros(len(places), np.int64)
        group = max(counts.sum() / self.instances * GROUP_PART, counts.sum() / MOST_GROUPS)
        heavy = counts > group
        for key in np.flatnonzero(heavy).tolist():
            ours = slice(bounds[key], bounds[key + 1])
            shares[ours] = fill(level[places[ours]], int(counts[key]))
            level[places[ours]] += shares[ours]
        light = np.flatnonzero(~heavy)
        if len(light):
            groups = (np.cumsum(counts[light]) // max(group, 1)).astype(np.int64)
            for some in np.split(light, np.flatnonzero(np.diff(groups)) + 1):
                entries = _emptiest(level, places, bounds, some)
                shares[entries] = counts[some]
                level += np.bincount(places[entries], counts[some], len(level))
        return shares


def fill(level: Floats, tuples: int) -> Ints:
    """(d,) how many of `tuples` each place takes so that the lowest rise together.

    >>> fill(np.array([5.0, 1.0, 3.0]), 6).tolist()
    [0, 4, 2]
    """
    order = np.argsort(level, kind="stable")
    filled = np.arange(1, len(level) + 1)
    tops = (np.cumsum(level[order]) + tuples) / filled  # the level if only the first i take part
    part = int(np.flatnonzero(tops >= level[order])[-1]) + 1
    exact = np.zeros(len(level))
    exact[order[:part]] = tops[part - 1] - level[order[:part]]
    shares = np.floor(exact).astype(np.int64)
    missing = tuples - int(shares.sum())
    shares[order[np.arange(missing) % part]] += 1
    return shares


def _emptiest(level: Floats, places: Instances, bounds: Ints, keys: Ints) -> Ints:
    """(k,) the entry of `places` that is emptiest for each of `keys`, the first of equals."""
    degrees = bounds[keys + 1] - bounds[keys]
    entries = expand_ranges(bounds[keys], degrees)
    firsts = np.cumsum(degrees) - degrees
    levels = level[places[entries]]
    least = np.repeat(np.minimum.reduceat(levels, firsts), degrees)
    found = np.flatnonzero(levels == least)
    owner = np.repeat(np.arange(len(keys)), degrees)[found]
    first = np.concatenate([[True], owner[1:] != owner[:-1]])
    chosen: Ints = entries[found[first]]
    return chosen


@dataclass(frozen=True)
class Choices:
    """The layout state: the loads that a task starts from, and the degrees of the head's keys."""

    instances: int
    choices: int
    loads: tuple[float, ...]
    degrees: tuple[tuple[int, int], ...] = ()
    table: RoutingTable = field(default_factory=RoutingTable)

    def router(self) -> ChoiceRouter:
        """What tasks need to route."""
        hashes = np.array([hash_ for hash_, _ in self.degrees], np.uint64)
        parts = [
            _head_places(hashes[i : i + 1], degree, self.instances)
            for i, (_, degree) in enumerate(self.degrees)
        ]
        return ChoiceRouter(
            self.instances,
            self.choices,
            np.array(self.loads),
            hashes,
            np.concatenate([np.empty(0, np.uint16), *parts]),
            np.cumsum([0, *(len(part) for part in parts)]),
        )

    def place(self, hash_: int) -> Placement | None:
        """Loads decide among the candidates."""
        return None

    def to_json(self) -> dict[str, Any]:
        """The state as plain values."""
        return {
            "instances": self.instances,
            "choices": self.choices,
            "loads": self.loads,
            "degrees": self.degrees,
        }


def _head_places(hash_: Words, degree: int, instances: int) -> Instances:
    """The places of a key with `degree` candidates: all instances where it has that many."""
    if degree >= instances:
        return np.arange(instances, dtype=np.uint16)
    drawn = candidates(hash_, degree, instances)[0]
    places: Instances = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
    return places


@dataclass(frozen=True)
class Pkg(LayoutChoice):
    """`choices` candidates for every key; loads are those of the last `intervals` intervals."""

    choices: int = 2
    intervals: int = 4

    name: ClassVar[str] = "pkg"
    source: ClassVar[str] = "Nasir et al., ICDE 2015"
    summary: ClassVar[str] = "two candidates a key; store at the emptier, probe both"
    keeps_keys_whole: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.choices < 1:
            raise InvalidRequest(f"{self.name}: choices {self.choices} must be at least 1")
        if self.intervals < 1:
            raise InvalidRequest(f"{self.name}: intervals {self.intervals} must be at least 1")

    def start(self, instances: int) -> Choices:
        """No loads yet."""
        return Choices(instances, self.choices, (0.0,) * instances)

    def restore(self, state: dict[str, Any]) -> Choices:
        """The layout that `Choices.to_json` wrote."""
        return Choices(
            state["instances"],
            state["choices"],
            tuple(state["loads"]),
            tuple((hash_, degree) for hash_, degree in state["degrees"]),
        )

    @property
    def history_intervals(self) -> int:
        """As many as the load is taken over."""
        return self.intervals

    def plan(self, layout: Layout, history: Sequence[Interval]) -> Plan | None:
        """The loads that the next batch starts from; nothing moves."""
        assert isinstance(layout, Choices)
        stored = np.sum([interval.stored.sum(axis=0) for interval in history], axis=0)
        # Each task levels its own part of what comes.
        loads = (stored - stored.min()) / max(history[-1].tasks, 1)
        seen = replace(layout, loads=tuple(loads.tolist()), degrees=self.head(layout, history))
        return Plan(seen, is_replan=False)

    def head(self, layout: Choices, history: Sequence[Interval]) -> tuple[tuple[int, int], ...]:
        """The keys with more candidates, and how many."""
        return ()

    def resize(self, layout: Layout, instances: int) -> Choices:
        """Candidates are drawn anew."""
        return self.start(instances)

    def grow(self, layout: Layout, held: Sequence[int]) -> Choices:
        """One instance more."""
        return self.start(layout.instances + 1)


@dataclass(frozen=True)
class _WithHead(Pkg):
    """The keys of the head get more candidates, and keep them while the layout lives."""

    @property
    def counts_keys(self) -> bool:
        """To find the head."""
        return True

    def head(self, layout: Choices, history: Sequence[Interval]) -> tuple[tuple[int, int], ...]:
        """Keys with more than HEAD_PART / N of the tuples."""
        total = float(np.sum([interval.stored.sum() for interval in history]))
        counts = dict[int, float]()
        for interval in history:
            arrived = interval.arrived.sum(axis=0)
            for hash_, count in zip(interval.hashes.tolist(), arrived.tolist(), strict=True):
                counts[hash_] = counts.get(hash_, 0.0) + count
        head = {h: n / total for h, n in counts.items() if n * layout.instances > HEAD_PART * total}
        degree = self.degree(sorted(head.values(), reverse=True), layout.instances)
        degrees = dict(layout.degrees)
        for hash_ in head:
            degrees[hash_] = max(degree, degrees.get(hash_, 0))
        return tuple(sorted(degrees.items()))

    def degree(self, head: Sequence[float], instances: int) -> int:
        """How many candidates the keys of the head get; `head`: their parts, descending."""
        raise NotImplementedError


@dataclass(frozen=True)
class WChoices(_WithHead):
    """Keys of the head may go anywhere."""

    name: ClassVar[str] = "w-choices"
    source: ClassVar[str] = "Nasir et al., ICDE 2016"
    summary: ClassVar[str] = "as pkg; the heaviest keys may go to any instance"
    keeps_keys_whole: ClassVar[bool] = False

    def degree(self, head: Sequence[float], instances: int) -> int:
        """All."""
        return instances


@dataclass(frozen=True)
class DChoices(_WithHead):
    """Keys of the head get as few candidates as let the loads be level."""

    name: ClassVar[str] = "d-choices"
    source: ClassVar[str] = "Nasir et al., ICDE 2016"
    summary: ClassVar[str] = "as pkg; the heaviest keys get as many candidates as they need"
    keeps_keys_whole: ClassVar[bool] = False

    def degree(self, head: Sequence[float], instances: int) -> int:
        """The least d for which each prefix of the head fits on its candidates."""
        return least_degree(head, instances)


def least_degree(head: Sequence[float], instances: int) -> int:
    """The least d with which no prefix of the head is more than its candidates' fair share.

    What other keys are expected to bring to the same candidates counts too.

    >>> least_degree([0.5], 10), least_degree([0.05], 10)
    (10, 2)
    """
    n, tail = instances, 1.0 - sum(head)
    prefix = np.cumsum(head)
    sizes = np.arange(1, len(head) + 1)
    degree = max(2, math.ceil(max(head, default=0.0) * n))
    while degree < n and len(head):
        covered = 1 - ((n - 1) / n) ** (sizes * degree)
        drawn = prefix + covered**degree * (prefix[-1] - prefix) + covered**2 * tail
        if (drawn <= covered + EPSILON).all():
            return degree
        degree += 1
    return min(degree, n)
