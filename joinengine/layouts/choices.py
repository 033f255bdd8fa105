"""Choice layouts: each key has a few candidate instances, and a tuple is stored at the emptiest.

How: candidates of a key are independent hashes of it. `pkg` gives every key `choices` of them;
`d-choices` gives the keys of the head as many as they need, `w-choices` all instances. A tuple
is stored at one candidate and probes all of them, so that pairs meet.

The papers' operators count tuple by tuple. Here a task fills the candidates of a key *level*: it
starts from the loads in the manifest, takes keys in the order of their hashes, and places all
tuples of a key at once; heavy keys one by one, light keys some thousands at a time.

Law: a stored tuple is at a candidate of its key, and no later layout leaves out a candidate that
holds any of the key's state. Once a key has cooled, its tuples are stored at `choices` candidates
again; they probe the others until the state there has expired. A task learns the loads of other
tasks a batch later. Cost: one sort of the words, and d messages per tuple.
Source: Nasir et al., ICDE 2015 (pkg) and ICDE 2016 (d-choices, w-choices). Ours: the head comes
from exact counts, which tasks make anyway, not from SpaceSaving; a tuple probes all candidates (the
papers only aggregate); loads and the head follow work if it is weighed, but tuples within a batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from joinengine.balancing.reasons import Balance, Cause, Cost, Reason
from joinengine.balancing.statistics import Floats, Interval, loads_of, parts_of
from joinengine.kernels.hashing import Words, key_hash
from joinengine.kernels.probing import Ints, expand_ranges, group_keys
from joinengine.layouts.candidates import (
    candidates,
    check_choices,
    covering,
    drawn_for,
    each_once,
    head_places,
    least_degree,
)
from joinengine.layouts.layout import Layout, LayoutChoice, Plan, Router
from joinengine.layouts.layout_settings import COUNT, Range, setting
from joinengine.model.conditions import Condition
from joinengine.model.keys import Side
from joinengine.routing.routes import BOTH, MAX_INSTANCES, PROBE, STORE, Deliveries, Instances

#: Keys are levelled in groups of at most this part of an instance's share; heavier keys alone.
GROUP_PART = 1 / 16
MOST_GROUPS = 1024
#: The head: keys with more than this part of an instance's fair share of all tuples (ICDE 2016).
HEAD_PART = 0.2


@dataclass(frozen=True, slots=True)
class ChoiceRouter(Router):
    """The state of a task: `loads` (N,), with its own tuples so far, and the keys of the head.

    `listed` (H,) key hashes, ascending; the places of head key h are
    head_places[head_bounds[h]:head_bounds[h + 1]], and the first head_stores[h] of them store.
    """

    instances: int = field()  # field(): else the protocol's property would be the default
    choices: int
    loads: Floats
    listed: Words = field()  # field(): else the protocol's property would be the default
    head_places: Instances
    head_bounds: Ints
    head_stores: Ints

    @override
    def route(self, side: Side, words: Words) -> Deliveries:
        """Each tuple goes to one candidate to be stored, to the others to probe."""
        order = np.argsort(words)
        needles = group_keys(words[order])
        counts = np.diff(needles.starts)
        places, bounds, stores = self._places(needles.hashes)
        shares = self._levelled(places, bounds[:-1], stores, counts)
        # Tuples of a key in the order of u: the first go to its first place, and so on.
        chosen, keys = np.empty_like(order), np.empty_like(order)
        chosen[order] = np.repeat(np.arange(len(places)), shares)
        keys[order] = np.repeat(np.arange(len(counts)), counts)
        degrees = np.diff(bounds)[keys]
        entries = expand_ranges(bounds[keys], degrees)
        rows = np.repeat(np.arange(len(words)), degrees)
        flags = np.where(entries == chosen[rows], BOTH, PROBE)
        return Deliveries(rows, places[entries], flags)

    @override
    def homes(self, side: Side, words: Words, holders: Instances) -> Deliveries:
        """A tuple at one of its candidates stays; any other goes to its first candidate."""
        hashes, keys = np.unique(key_hash(words), return_inverse=True)
        places, bounds, _ = self._places(hashes)
        # Keys and instances that belong together, as one sorted set of pairs.
        pairs = np.repeat(np.arange(len(hashes)), np.diff(bounds)) * self.instances + places
        inside = holders < self.instances
        stays = inside & np.isin(keys * self.instances + holders, pairs)
        rows = np.arange(len(words))
        stored = np.where(stays, holders, places[bounds[:-1]][keys])
        return Deliveries(rows, stored, np.full(len(rows), STORE))

    def _places(self, hashes: Words) -> tuple[Instances, Ints, Ints]:
        """(K,) key hashes -> their places, the bounds (K + 1,) of these, and how many store (K,).

        Key k has places[bounds[k]:bounds[k + 1]], without repetition; the first stores[k] store.
        """
        drawn = candidates(hashes, self.choices, self.instances)
        first = np.ones(drawn.shape, bool)
        for choice in range(1, self.choices):
            first[:, choice] = (drawn[:, :choice] != drawn[:, choice : choice + 1]).all(axis=1)
        counts = first.sum(axis=1)
        stores = counts.copy()
        head = np.flatnonzero(np.isin(hashes, self.listed))
        ours = np.searchsorted(self.listed, hashes[head])
        counts[head] = self.head_bounds[ours + 1] - self.head_bounds[ours]
        stores[head] = self.head_stores[ours]
        bounds = np.concatenate([[0], np.cumsum(counts)])
        places = np.empty(bounds[-1], np.uint16)
        tail = np.ones(len(hashes), bool)
        tail[head] = False
        places[expand_ranges(bounds[:-1][tail], counts[tail])] = drawn[tail][first[tail]]
        places[expand_ranges(bounds[head], counts[head])] = self.head_places[
            expand_ranges(self.head_bounds[ours], counts[head])
        ]
        return places, bounds, stores

    def _levelled(self, places: Instances, firsts: Ints, stores: Ints, counts: Ints) -> Ints:
        """(P,) how many tuples of each key go to each of its places."""
        level = self.loads.copy()
        shares = np.zeros(len(places), np.int64)
        group = max(counts.sum() / self.instances * GROUP_PART, counts.sum() / MOST_GROUPS)
        heavy = counts > group
        for key in np.flatnonzero(heavy).tolist():
            ours = slice(firsts[key], firsts[key] + stores[key])
            shares[ours] = fill(level[places[ours]], int(counts[key]))
            level[places[ours]] += shares[ours]
        light = np.flatnonzero(~heavy)
        if len(light):
            groups = (np.cumsum(counts[light]) // max(group, 1)).astype(np.int64)
            for some in np.split(light, np.flatnonzero(np.diff(groups)) + 1):
                entries = _emptiest(level, places, firsts[some], stores[some])
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
    # Above 2^53 a few tuples are less than a step of a float, so that many may be missing.
    each, rest = divmod(tuples - int(shares.sum()), part)
    shares[order[:part]] += each
    shares[order[:rest]] += 1
    return shares


def _emptiest(level: Floats, places: Instances, lower: Ints, degrees: Ints) -> Ints:
    """(k,) ranges of `places` -> the entry of each that is emptiest, the first of equals."""
    entries = expand_ranges(lower, degrees)
    firsts = np.cumsum(degrees) - degrees
    levels = level[places[entries]]
    least = np.repeat(np.minimum.reduceat(levels, firsts), degrees)
    emptiest = np.flatnonzero(levels == least)
    owner = np.repeat(np.arange(len(lower)), degrees)[emptiest]
    first = np.concatenate([[True], owner[1:] != owner[:-1]])
    chosen: Ints = entries[emptiest[first]]
    return chosen


class Degree(NamedTuple):
    """A key of the head: how many candidates its tuples probe, and how many may store them.

    `stored` 0: the key has cooled, and is stored as keys outside the head are.
    """

    hash_: int
    probed: int
    stored: int


@dataclass(frozen=True, slots=True)
class CandidateBased(Layout):
    """The layout state: the loads that a task starts from, and the degrees of the head's keys."""

    instances: int = field()  # field(): else the protocol's property would be the default
    choices: int
    loads: tuple[float, ...]
    degrees: tuple[Degree, ...] = ()

    @override
    def router(self) -> ChoiceRouter:
        parts, stores = list[Instances](), list[int]()
        for hash_, probed, stored in self.degrees:
            if stored:
                first = head_places(hash_, stored, self.instances)
            else:
                first = each_once(drawn_for(hash_, self.choices, self.instances))
            both = np.concatenate([first, head_places(hash_, probed, self.instances)])
            parts.append(each_once(both))
            stores.append(len(first))
        return ChoiceRouter(
            self.instances,
            self.choices,
            np.array(self.loads),
            np.array([hash_ for hash_, *_ in self.degrees], np.uint64),
            np.concatenate([np.empty(0, np.uint16), *parts]),
            np.cumsum([0, *(len(part) for part in parts)]),
            np.array(stores, np.int64),
        )

    @override
    def to_json(self) -> dict[str, Any]:
        return {
            "instances": self.instances,
            "choices": self.choices,
            "loads": self.loads,
            "degrees": self.degrees,
        }


@dataclass(frozen=True)
class Pkg(LayoutChoice):
    """The same number of candidates for every key."""

    choices: int = setting(
        2,
        "how many candidates a key has (not above instances)",
        "Nasir 2015",
        within=Range(1, MAX_INSTANCES),
    )
    intervals: int = setting(
        4, "over how many of the last intervals the load is taken", within=COUNT
    )

    name: ClassVar[str] = "pkg"
    source: ClassVar[str] = "Nasir et al., ICDE 2015"
    summary: ClassVar[str] = (
        "partial key grouping: each key has two instances; a row is stored at the one with less "
        "load; in a join it probes both"
    )
    keeps_keys_whole: ClassVar[bool] = False
    parts_equal_rows: ClassVar[bool] = True

    @override
    def check(self, condition: Condition, instances: int) -> None:
        super().check(condition, instances)
        if self.choices != Pkg.choices:  # the default serves a single instance, too
            check_choices(self.name, self.choices, instances)

    @override
    def start(self, instances: int) -> CandidateBased:
        """No loads yet."""
        return CandidateBased(instances, self.choices, (0.0,) * instances)

    @override
    def restore(self, state: dict[str, Any]) -> CandidateBased:
        return CandidateBased(
            state["instances"],
            state["choices"],
            tuple(state["loads"]),
            # Earlier versions stored at all places that they probed.
            tuple(Degree(*row, *row[1:][: 3 - len(row)]) for row in state["degrees"]),
        )

    @property
    @override
    def history_intervals(self) -> int:
        """As many intervals as the load is taken over."""
        return self.intervals

    @override
    def plan(self, layout: Layout, history: Sequence[Interval], wanted: int = 0) -> Plan | None:
        """The loads that the next batch starts from; nothing moves."""
        assert isinstance(layout, CandidateBased)
        levels = loads_of(history)
        # Each task levels only its own part of the arrivals.
        loads = (levels - levels.min()) / max(history[-1].tasks, 1)
        seen = replace(layout, loads=tuple(loads.tolist()), degrees=self.head(layout, history))
        cause = Cause.LOADS if seen.degrees == layout.degrees else Cause.HEAD
        return Plan(seen, Reason(cause, Balance.of(levels), cost=Cost()))

    def head(self, layout: CandidateBased, history: Sequence[Interval]) -> tuple[Degree, ...]:
        """The keys with more candidates, and how many."""
        return ()

    @override
    def resized(self, layout: Layout, instances: int) -> CandidateBased:
        """Candidates are drawn anew."""
        return self.start(instances)

    @override
    def grow(self, layout: Layout, held: Sequence[int]) -> CandidateBased:
        """One instance more."""
        return self.start(layout.instances + 1)


@dataclass(frozen=True)
class _WithHead(Pkg):
    """The keys of the head get more candidates, and keep those that hold any of their state."""

    @property
    @override
    def counts_keys(self) -> bool:
        """To find the head."""
        return True

    @override
    def head(self, layout: CandidateBased, history: Sequence[Interval]) -> tuple[Degree, ...]:
        """Keys with more than HEAD_PART / N of tuples, or of work, and those that have cooled."""
        n = layout.instances
        total = float(np.sum([interval.stored.sum() for interval in history]))
        counts = dict[int, float]()
        for interval in history:
            loads = parts_of(interval) * interval.stored.sum()
            for hash_, load in zip(interval.hashes.tolist(), loads.tolist(), strict=True):
                counts[hash_] = counts.get(hash_, 0.0) + load
        head = {h: tuples / total for h, tuples in counts.items() if tuples * n > HEAD_PART * total}
        degree = max(self.degree(sorted(head.values(), reverse=True), n), layout.choices)
        degrees = [Degree(hash_, degree, degree) for hash_ in head]
        keys, holders = history[-1].holders
        order = np.argsort(keys, kind="stable")
        bounds = np.searchsorted(keys[order], np.arange(len(history[-1].hashes) + 1))
        for hash_, *_ in layout.degrees:
            column = int(np.searchsorted(history[-1].hashes, np.uint64(hash_)))
            known = column < len(history[-1].hashes) and history[-1].hashes[column] == hash_
            held = holders[order[bounds[column] : bounds[column + 1]] if known else order[:0]]
            wide = covering(hash_, held, layout.choices, n)
            if hash_ in head:
                degrees.append(Degree(hash_, max(wide, degree), degree))
            elif wide > layout.choices:
                degrees.append(Degree(hash_, wide, 0))
        return tuple(sorted({entry.hash_: entry for entry in degrees}.values()))

    @abstractmethod
    def degree(self, head: Sequence[float], instances: int) -> int:
        """How many candidates the keys of the head get; `head`: their parts, descending."""


@dataclass(frozen=True)
class WChoices(_WithHead):
    """Keys of the head may go anywhere."""

    name: ClassVar[str] = "w-choices"
    source: ClassVar[str] = "Nasir et al., ICDE 2016"
    summary: ClassVar[str] = "as pkg; the heaviest keys may go to any instance"
    keeps_keys_whole: ClassVar[bool] = False

    @override
    def degree(self, head: Sequence[float], instances: int) -> int:
        return instances


@dataclass(frozen=True)
class DChoices(_WithHead):
    """Keys of the head get as few candidates as let the loads be level."""

    d: int | None = setting(
        None,
        "candidates of the heaviest keys; none: as few as level the loads",
        "Nasir 2016",
        within=Range(1, MAX_INSTANCES),
    )

    name: ClassVar[str] = "d-choices"
    source: ClassVar[str] = "Nasir et al., ICDE 2016"
    summary: ClassVar[str] = "as pkg; the heaviest keys get as many candidates as they need"
    keeps_keys_whole: ClassVar[bool] = False

    @override
    def degree(self, head: Sequence[float], instances: int) -> int:
        """`d`, or the least for which each prefix of the head fits on its candidates."""
        return least_degree(head, instances) if self.d is None else min(self.d, instances)
