"""Simulates candidate layouts message by message, as the papers do: how level they keep loads.

I(t) = greatest - mean load after t messages, in messages. Every source estimates the loads from the
messages that it has sent itself (`local`), knows all loads (`global`), or learns them every
`probe_every` messages (`probed`). Candidates are independent hashes of the key, so two of them may
be the same instance.

Cost: about a microsecond a message: a Python loop, since each choice depends on the last.
Source: Nasir et al., ICDE 2015, sections 3 and 5; ICDE 2016 (d-choices, w-choices).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from joinengine.balancing.statistics import Floats, Ints
from joinengine.lab.simulation.planning import Served, delivered, modelled_rate
from joinengine.layouts.candidates import candidates, least_degree
from joinengine.layouts.choices import HEAD_PART
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import one_of

#: How often I(t) is sampled in a stream.
SAMPLES = 100
#: Counters of a SpaceSaving summary, and messages between two looks at the head.
SUMMARY_SIZE = 100
HEAD_EVERY = 10_000


class Estimate(StrEnum):
    """How a source knows loads: by its own tuples, by all tuples, or by its own and probes."""

    LOCAL = "local"
    GLOBAL = "global"
    PROBED = "probed"


@dataclass(frozen=True)
class Setting:
    """`instances` workers, and `sources` that choose among `choices` candidates of each key.

    `estimate`: how sources know the loads. `work_s`: seconds of work for a delivery. `operator`:
    which deliveries there are.
    """

    instances: int
    sources: int = 1
    estimate: Estimate = Estimate.LOCAL
    probe_every: int = 100_000
    choices: int = 2
    work_s: float = 0.0
    operator: Served = Served.JOIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "operator", one_of(Served, self.operator, "operator"))
        object.__setattr__(self, "estimate", one_of(Estimate, self.estimate, "estimate"))
        for name in ("instances", "sources", "probe_every", "choices"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name}: expected at least 1, found {getattr(self, name)}")


class Chooser(NamedTuple):
    """`choose`: (message's key, loads as the source sees them) -> instance that stores it.

    `reach`: key -> the instances that a join has to probe for it; None: those that hold the key.
    `varies`: what a key reaches changes with the stream.
    """

    choose: Callable[[int, list[int]], int]
    reach: Callable[[int], tuple[int, ...]] | None = None
    varies: bool = False


class SpaceSaving:
    """The heaviest keys of a stream in `size` counters (Metwally et al., ICDT 2005).

    A key without a counter takes over the least counter. So counts are never too low, and too high
    by at most that counter.
    """

    def __init__(self, size: int = SUMMARY_SIZE) -> None:
        self._size = size
        self.counts: dict[int, int] = {}
        self.seen = 0
        #: The keys of each count, so that the least one is at hand; no count is without keys.
        self._keys = defaultdict[int, dict[int, None]](dict)
        self._least = 1

    def add(self, key: int) -> None:
        """Count one message."""
        self.seen += 1
        count = self.counts.get(key)
        if count is None and len(self.counts) < self._size:
            count, self._least = 0, 1
        else:
            if count is None:
                count = self._least
                del self.counts[next(iter(self._keys[count]))]
                del self._keys[count][next(iter(self._keys[count]))]
            else:
                del self._keys[count][key]
            if not self._keys[count]:
                del self._keys[count]
                # The key that leaves the least count goes to the next one.
                self._least += count == self._least
        self.counts[key] = count + 1
        self._keys[count + 1][key] = None

    def heavy(self, part: float) -> dict[int, float]:
        """The keys with more than `part` of the messages, and their parts."""
        return {k: n / self.seen for k, n in self.counts.items() if n > part * self.seen}


def _drawn(keys: Ints, choices: int, instances: int) -> dict[int, tuple[int, ...]]:
    """Each key's candidates."""
    distinct = np.unique(keys)
    drawn = candidates(distinct.astype(np.uint64), choices, instances).tolist()
    return dict(zip(distinct.tolist(), map(tuple, drawn), strict=True))


def _by_hash(keys: Ints, setting: Setting) -> Chooser:
    homes = _drawn(keys, 1, setting.instances)
    return Chooser(lambda key, loads: homes[key][0])


def _pkg(keys: Ints, setting: Setting) -> Chooser:
    places = _drawn(keys, setting.choices, setting.instances)
    return Chooser(lambda key, loads: min(places[key], key=loads.__getitem__), places.__getitem__)


def _potc(keys: Ints, setting: Setting) -> Chooser:
    """A key stays at the candidate that is emptiest when the key first comes."""
    places, homes = _drawn(keys, setting.choices, setting.instances), dict[int, int]()

    def choose(key: int, loads: list[int]) -> int:
        if key not in homes:
            homes[key] = min(places[key], key=loads.__getitem__)
        return homes[key]

    return Chooser(choose)


def _on_greedy(keys: Ints, setting: Setting) -> Chooser:
    """A key stays at the instance that is the emptiest of all when the key first comes."""
    homes = dict[int, int]()

    def choose(key: int, loads: list[int]) -> int:
        if key not in homes:
            homes[key] = loads.index(min(loads))
        return homes[key]

    return Chooser(choose)


def _off_greedy(keys: Ints, setting: Setting) -> Chooser:
    """The whole stream is known: heaviest keys first, each to the emptiest instance."""
    level, homes = [0] * setting.instances, dict[int, int]()
    for key, count in Counter(keys.tolist()).most_common():
        homes[key] = level.index(min(level))
        level[homes[key]] += count
    return Chooser(lambda key, loads: homes[key])


def _shuffle(keys: Ints, setting: Setting) -> Chooser:
    turn, everyone = iter(range(1 << 62)), tuple(range(setting.instances))
    return Chooser(lambda key, loads: next(turn) % setting.instances, lambda key: everyone)


def _with_head(everywhere: bool) -> Callable[[Ints, Setting], Chooser]:
    def make(keys: Ints, setting: Setting) -> Chooser:
        n = setting.instances
        places, summary = _drawn(keys, setting.choices, n), SpaceSaving()
        head = dict[int, tuple[int, ...]]()

        def choose(key: int, loads: list[int]) -> int:
            summary.add(key)
            if summary.seen % HEAD_EVERY == 0 or summary.seen == HEAD_EVERY // 10:
                heavy = summary.heavy(HEAD_PART / n)
                degree = n if everywhere else least_degree(sorted(heavy.values())[::-1], n)
                wide = candidates(np.array(list(heavy), np.uint64), degree, n).tolist()
                head.clear()
                for heavy_key, row in zip(heavy, wide, strict=True):
                    head[heavy_key] = tuple(range(n) if degree >= n else row)
            return min(reach(key), key=loads.__getitem__)

        def reach(key: int) -> tuple[int, ...]:
            return head.get(key, places[key])

        return Chooser(choose, reach, varies=True)

    return make


METHODS: dict[str, Callable[[Ints, Setting], Chooser]] = {
    "hash": _by_hash,
    "pkg": _pkg,
    "potc": _potc,
    "on-greedy": _on_greedy,
    "off-greedy": _off_greedy,
    "d-choices": _with_head(everywhere=False),
    "w-choices": _with_head(everywhere=True),
    "shuffle": _shuffle,
}


class Decided(NamedTuple):
    """Where messages went: `homes` (m,), and the loads and probes on the way.

    `imbalance`: I(t) after each of `times` messages. `total`: messages of each instance. `reached`:
    messages of each interval by the instances that a join has to probe for them; empty: those that
    hold the key.
    """

    homes: Ints
    times: list[int]
    imbalance: list[float]
    total: list[int]
    reached: list[Counter[tuple[int, ...]]]


def decide(
    method: str, keys: Ints, sources: Ints, setting: Setting, ends: Sequence[int] = ()
) -> Decided:
    """(m,) the key and the source of each message -> the instance that each source chooses.

    `ends`: the numbers of messages after which intervals end; empty: all are one interval.
    """
    n = setting.instances
    # One chooser a source: each source finds a key's home by itself.
    choosers = [METHODS[method](keys, setting) for _ in range(setting.sources)]
    total = [0] * n
    # A single source has sent all tuples, so it always knows all loads.
    apart = setting.sources > 1 and setting.estimate is not Estimate.GLOBAL
    known = [[0] * n if apart else total for _ in choosers]
    probe_every = setting.probe_every if setting.estimate is Estimate.PROBED else len(keys) + 1
    homes, reached = list[int](), list[Counter[tuple[int, ...]]]()
    times, imbalance = list[int](), list[float]()
    look = max(1, len(keys) // SAMPLES)
    probing, at = setting.operator is Served.JOIN, 0
    for first, last in _intervals(len(keys), ends):
        reached.append(Counter())
        arrived = keys[first:last].tolist()
        for key, source in zip(arrived, sources[first:last].tolist(), strict=True):
            at += 1
            choose, reach, varies = choosers[source]
            home = choose(key, known[source])
            if varies and probing and reach is not None:
                reached[-1][reach(key)] += 1
            total[home] += 1
            homes.append(home)
            if apart:
                known[source][home] += 1
                if at % probe_every == 0:
                    known = [list(total) for _ in choosers]
            if at % look == 0:
                times.append(at)
                imbalance.append(max(total) - at / n)
        reach = choosers[0].reach
        if reach is not None and not choosers[0].varies:
            for key, count in Counter(arrived).items():
                reached[-1][reach(key)] += count
    return Decided(np.array(homes, np.int64), times, imbalance, total, reached)


def _intervals(messages: int, ends: Sequence[int]) -> list[tuple[int, int]]:
    """The first message of each interval, and the first behind it."""
    return list(pairwise([0, *(ends or [messages])]))


def play(
    method: str, keys: Ints, sources: Ints, setting: Setting, ends: Sequence[int] = ()
) -> dict[str, Any]:
    """(m,) the key and the source of each message -> figures of the loads, over time.

    `ends`: as in `decide`.
    """
    n = setting.instances
    homes, times, imbalance, total, reached = decide(method, keys, sources, setting, ends)
    pairs = set(zip(keys.tolist(), homes.tolist(), strict=True))
    cuts = _intervals(len(keys), ends)
    if setting.operator is Served.JOIN:
        received = _received([keys[first:last] for first, last in cuts], pairs, reached, n)
    else:
        received = [
            np.bincount(homes[first:last], minlength=n).astype(float) for first, last in cuts
        ]
    intervals = [
        delivered(float(last - first), loads)
        for (first, last), loads in zip(cuts, received, strict=True)
    ]
    sent = np.bincount(sources * n + homes, minlength=setting.sources * n)
    return {
        "planner": method,
        "messages": len(keys),
        "instances": n,
        "sources": setting.sources,
        "estimate": setting.estimate,
        "time": times,
        "imbalance": imbalance,
        "final_imbalance": max(total) - len(keys) / n,
        "relative_imbalance": (max(total) - len(keys) / n) / len(keys),
        "mean_relative_imbalance": float(np.mean(np.array(imbalance) / np.array(times))),
        "source_imbalances": [
            float(loads.max() - loads.mean()) for loads in sent.reshape(setting.sources, n)
        ],
        "received_per_instance": np.sum(received, axis=0).astype(int).tolist(),
        "intervals": intervals,
        "modelled_rows_per_s": modelled_rate(intervals, setting.work_s),
        "counters": len(pairs),
        "keys": len(np.unique(keys)),
        **_spread(pairs, total),
    }


def _received(
    arrived: Sequence[Ints],
    pairs: set[tuple[int, int]],
    reached: Sequence[Counter[tuple[int, ...]]],
    instances: int,
) -> list[Floats]:
    """(N,) deliveries of a join in each interval, to which the keys `arrived` came.

    They go to all instances that were `reached`, or to the key's homes.
    """
    homes = defaultdict[int, list[int]](list)
    for key, home in pairs:
        homes[key].append(home)
    received = list[Floats]()
    for keys, by_places in zip(arrived, reached, strict=True):
        loads = np.zeros(instances)
        for places, messages in by_places.items():
            loads[list(set(places))] += messages
        if not by_places:
            for key, messages in Counter(keys.tolist()).items():
                loads[homes[key]] += messages
        received.append(loads)
    return received


def _spread(pairs: set[tuple[int, int]], total: Sequence[int]) -> dict[str, Any]:
    keys_at = Counter(home for _, home in pairs)
    loads = np.array(total, float)
    return {
        "keys_per_instance": [keys_at[i] for i in range(len(total))],
        "replication": len(pairs) / max(len({key for key, _ in pairs}), 1),
        "relative_deviation": float(loads.std() / loads.mean()) if loads.mean() else 0.0,
    }
