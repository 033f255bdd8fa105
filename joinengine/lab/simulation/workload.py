"""Loads: how many tuples each key brings in each interval, or which key each message has.

Loads are synthetic here (`Workload`); those of the user's own files are in `simulation.key_files`.

Source: Zipf with fluctuation f: Fang et al., 2016, section 5; LN1 and LN2: Nasir et al., ICDE 2015,
section 5.1; exponents in turn: Zacheilas et al., DAIS 2016, section 5. Ours: the swaps that make f
are directed, since random swaps do not end for some f, and are made under the base function, so
that all planners see the same stream; an f that cannot be reached is refused.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from typing_extensions import override

from joinengine.balancing.statistics import Floats, Ints
from joinengine.kernels.hashing import Words, mix
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import U_BITS
from joinengine.model.named import one_of
from joinengine.routing.base_functions import Base


class Shape(StrEnum):
    """How the loads of keys are distributed."""

    ZIPF = "zipf"
    LN1 = "ln1"
    LN2 = "ln2"


#: Parameters (mu, sigma) of the log-normal streams.
LOGNORMAL = {Shape.LN1: (1.789, 2.366), Shape.LN2: (2.245, 1.133)}


class KeyStream(Protocol):
    """The loads that planners and candidate layouts get."""

    @abstractmethod
    def intervals(self, base: Base) -> Iterator[tuple[Words, Floats]]:
        """Key hashes (K,), ascending, and their tuples (K,), interval by interval."""

    @abstractmethod
    def total(self, intervals: int) -> float:
        """The tuples of the first `intervals`."""


@dataclass(frozen=True)
class Workload(KeyStream):
    """Loads of `keys` keys: Zipf(`zipf`), or a log-normal stream `shape` of LOGNORMAL.

    `rows` tuples an interval; `fluctuation` f: from one interval to the next the load of some
    instance changes by f means; `drift`: the part of the keys whose loads are dealt anew. `phases`:
    (exponent, intervals) in turn, instead of `zipf`.
    """

    keys: int = 10_000
    zipf: float = 0.85
    rows: int = 1_000_000
    fluctuation: float = 0.0
    drift: float = 0.0
    shape: Shape = Shape.ZIPF
    seed: int = 0
    phases: tuple[tuple[float, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("keys", "rows"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name}: expected at least 1, found {getattr(self, name)}")
        for name in ("zipf", "fluctuation"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidRequest(f"{name}: expected 0 or more, found {getattr(self, name)}")
        for exponent, intervals in self.phases:
            if not (0 <= exponent < math.inf and intervals >= 1):
                raise InvalidRequest(
                    f"zipf: expected an exponent of 0 or more and at least 1 interval, found "
                    f"{exponent:g}:{intervals}"
                )
        if not 0 <= self.drift <= 1:
            raise InvalidRequest(f"drift: must be from 0 to 1, found {self.drift}")
        object.__setattr__(self, "shape", one_of(Shape, self.shape, "shape"))

    def rng(self) -> np.random.Generator:
        """A new generator with the workload's seed."""
        return np.random.default_rng(self.seed)

    def hashes(self, n_keys: int) -> Words:
        """(K,) key hashes, ascending."""
        numbers = np.arange(n_keys, dtype=np.uint64) + np.uint64(self.seed << 32)
        hashes: Words = np.unique(mix(numbers) >> np.uint64(U_BITS))
        return hashes

    def exponent(self, interval: int) -> float:
        """The exponent of an interval."""
        if not self.phases:
            return self.zipf
        at = interval % sum(length for _, length in self.phases)
        ends = np.cumsum([length for _, length in self.phases])
        return self.phases[int(np.searchsorted(ends, at, side="right"))][0]

    def counts(self, interval: int = 0) -> Floats:
        """(K,) expected tuples of each key in an interval, heaviest first."""
        if self.shape is Shape.ZIPF:
            weights = np.arange(1, self.keys + 1) ** -self.exponent(interval)
            return np.asarray(weights / weights.sum() * self.rows)
        _, counts = np.unique(self.messages(self.rows), return_counts=True)
        return np.sort(counts)[::-1].astype(float)

    def messages(self, n: int) -> Ints:
        """(n,) the rank of each message's key, drawn independently; ranks keep their weights."""
        rng = self.rng()
        if self.shape is not Shape.ZIPF:
            mu, sigma = LOGNORMAL[self.shape]
            return np.round(np.exp(rng.normal(mu, sigma, n))).astype(np.int64)
        drawn = list[Ints]()
        step = self.rows if self.phases else max(n, 1)
        for interval, first in enumerate(range(0, n, step)):
            cumulated = np.cumsum(np.arange(1, self.keys + 1) ** -self.exponent(interval))
            places = rng.random(min(step, n - first)) * cumulated[-1]
            drawn.append(np.searchsorted(cumulated, places))
        return np.concatenate([np.empty(0, np.int64), *drawn])

    @override
    def total(self, intervals: int) -> float:
        return float(self.rows * intervals)

    @override
    def intervals(self, base: Base) -> Iterator[tuple[Words, Floats]]:
        """Key hashes (K,) and their tuples (K,), interval by interval, without end."""
        rng = self.rng()
        loads = self.counts()
        hashes = self.hashes(len(loads))
        ranks = rng.permutation(len(hashes))
        homes = base.homes(hashes).astype(np.int64)
        interval = 0
        while True:
            yield hashes, loads[ranks]
            interval += 1
            if self.exponent(interval) != self.exponent(interval - 1):
                loads = self.counts(interval)
            if self.drift:
                some = rng.permutation(len(ranks))[: round(self.drift * len(ranks))]
                ranks[some] = rng.permutation(ranks[some])
            if self.fluctuation:
                order = fluctuate(loads[ranks], homes, base.instances, self.fluctuation, rng)
                ranks = ranks[order]


def fluctuate(
    loads: Floats, homes: Ints, instances: int, f: float, rng: np.random.Generator
) -> Ints:
    """(K,) the key whose load each key gets, so that some instance's load changes by f means.

    Keys of that instance swap loads with keys of the others.

    Raises InvalidRequest if no swaps reach f.
    """
    wanted = f * loads.sum() / instances
    most = 0.0
    for instance in rng.permutation(instances).tolist():
        keys_here = rng.permutation(np.flatnonzero(homes == instance))
        there = rng.permutation(np.flatnonzero(homes != instance))
        sign = 1 if rng.random() < 0.5 else -1
        for direction in (sign, -sign):
            for ordered in (False, True):
                mine, theirs = keys_here, there
                if ordered:
                    mine = keys_here[np.argsort(direction * loads[keys_here], kind="stable")]
                    theirs = there[np.argsort(-direction * loads[there], kind="stable")]
                n = min(len(mine), len(theirs))
                gain = direction * (loads[theirs[:n]] - loads[mine[:n]])
                helps = np.flatnonzero(gain > 0)
                gained = np.cumsum(gain[helps])
                if len(gained) and gained[-1] >= wanted:
                    chosen = helps[: int(np.searchsorted(gained, wanted)) + 1]
                    order = np.arange(len(loads))
                    order[mine[chosen]], order[theirs[chosen]] = theirs[chosen], mine[chosen]
                    return order
                most = max(most, float(gained[-1]) if len(gained) else 0.0)
    raise InvalidRequest(
        f"fluctuation: expected at most {most * instances / loads.sum():.2f} for these keys on "
        f"{instances} instances, found {f}"
    )


def drawn(hashes: Words, counts: Floats, n: int, rng: np.random.Generator) -> Ints:
    """(n,) the keys of n tuples, in random order; each key has its share, to within a tuple.

    If `counts` (K,) are whole and sum to n, the shares are exact.
    """
    ends = np.cumsum(counts)
    places = (np.arange(n) + rng.random()) * (ends[-1] / max(n, 1))
    at = np.minimum(np.searchsorted(ends, places, side="right"), len(hashes) - 1)
    return rng.permutation(hashes[at].astype(np.int64))


def sources_of(n: int, sources: int, *, by_key: bool, seed: int = 0) -> Ints:
    """(n,) the source of each message: in turn, or by a skewed second key that each message has.

    In Nasir et al. (ICDE 2015, Q3), messages are edges of a graph: the vertex that an edge leaves
    decides its source, and the vertex that it enters decides its worker.
    """
    if not by_key:
        return np.arange(n) % sources
    second = Workload(zipf=1.0, seed=(seed + 1) % 2**32).messages(n).astype(np.uint64)
    return (mix(second + np.uint64(17)) % np.uint64(sources)).astype(np.int64)
