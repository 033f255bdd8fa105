"""Synthetic loads: how many tuples each key brings in each interval, or which key each message has.

Source: Zipf with fluctuation f: Fang et al., 2016, section 5; LN1 and LN2: Nasir et al., ICDE 2015,
section 5.1. Ours: the swaps that make f are directed, since random ones do not end for some f, and
made under the base function, so that all planners see the same stream; an f that cannot be reached
is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joinengine.balancing.statistics import Floats, Ints
from joinengine.kernels.hashing import Words, mix
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import U_BITS
from joinengine.routing.base import Base

#: Parameters (mu, sigma) of the log-normal streams.
LOGNORMAL = {"ln1": (1.789, 2.366), "ln2": (2.245, 1.133)}


@dataclass(frozen=True)
class Workload:
    """Loads of `keys` keys: Zipf(`zipf`), or a log-normal stream `shape` of LOGNORMAL.

    `rows` tuples an interval; `fluctuation` f: from one interval to the next the load of some
    instance changes by f means; `drift`: part of the keys whose loads are dealt anew.
    """

    keys: int = 10_000
    zipf: float = 0.85
    rows: int = 1_000_000
    fluctuation: float = 0.0
    drift: float = 0.0
    shape: str = "zipf"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("keys", "rows"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name}: {getattr(self, name)} must be at least 1")
        for name in ("zipf", "fluctuation"):
            if not getattr(self, name) >= 0:
                raise InvalidRequest(f"{name}: {getattr(self, name)} must be 0 or more")
        if not 0 <= self.drift <= 1:
            raise InvalidRequest(f"drift: {self.drift} must be from 0 to 1")
        if self.shape != "zipf" and self.shape not in LOGNORMAL:
            known = ", ".join(["zipf", *LOGNORMAL])
            raise InvalidRequest(f"shape: {self.shape!r} is unknown; choose one of {known}")

    def rng(self) -> np.random.Generator:
        """A generator of its own."""
        return np.random.default_rng(self.seed)

    def hashes(self, n_keys: int) -> Words:
        """(K,) key hashes, ascending."""
        numbers = np.arange(n_keys, dtype=np.uint64) + np.uint64(self.seed << 32)
        found: Words = np.unique(mix(numbers) >> np.uint64(U_BITS))
        return found

    def counts(self) -> Floats:
        """(K,) expected tuples of each key in an interval, heaviest first."""
        if self.shape == "zipf":
            weights = np.arange(1, self.keys + 1) ** -self.zipf
            return np.asarray(weights / weights.sum() * self.rows)
        _, found = np.unique(self.messages(self.rows), return_counts=True)
        return np.sort(found)[::-1].astype(float)

    def messages(self, n: int) -> Ints:
        """(n,) the key of each message."""
        rng = self.rng()
        if self.shape == "zipf":
            cumulated = np.cumsum(np.arange(1, self.keys + 1) ** -self.zipf)
            drawn: Ints = np.searchsorted(cumulated, rng.random(n) * cumulated[-1])
            return drawn
        mu, sigma = LOGNORMAL[self.shape]
        return np.round(np.exp(rng.normal(mu, sigma, n))).astype(np.int64)

    def intervals(self, base: Base) -> Iterator[tuple[Words, Floats]]:
        """Key hashes (K,) and their tuples (K,), interval by interval, without end."""
        rng = self.rng()
        loads = self.counts()
        hashes = self.hashes(len(loads))
        loads = rng.permutation(loads[: len(hashes)])
        homes = base.homes(hashes).astype(np.int64)
        while True:
            yield hashes, loads
            if self.drift:
                some = rng.permutation(len(loads))[: round(self.drift * len(loads))]
                loads = loads.copy()
                loads[some] = rng.permutation(loads[some])
            if self.fluctuation:
                loads = fluctuate(loads, homes, base.instances, self.fluctuation, rng)


def fluctuate(
    loads: Floats, homes: Ints, instances: int, f: float, rng: np.random.Generator
) -> Floats:
    """Swap loads of keys between one instance and the others until its load differs by f means.

    Raises InvalidRequest where no swaps do that.
    """
    wanted = f * loads.sum() / instances
    most = 0.0
    for instance in rng.permutation(instances).tolist():
        here = rng.permutation(np.flatnonzero(homes == instance))
        there = rng.permutation(np.flatnonzero(homes != instance))
        sign = 1 if rng.random() < 0.5 else -1
        for direction in (sign, -sign):
            for ordered in (False, True):
                mine, theirs = here, there
                if ordered:
                    mine = here[np.argsort(direction * loads[here], kind="stable")]
                    theirs = there[np.argsort(-direction * loads[there], kind="stable")]
                n = min(len(mine), len(theirs))
                gain = direction * (loads[theirs[:n]] - loads[mine[:n]])
                helps = np.flatnonzero(gain > 0)
                gained = np.cumsum(gain[helps])
                if len(gained) and gained[-1] >= wanted:
                    chosen = helps[: int(np.searchsorted(gained, wanted)) + 1]
                    swapped = loads.copy()
                    swapped[mine[chosen]] = loads[theirs[chosen]]
                    swapped[theirs[chosen]] = loads[mine[chosen]]
                    return swapped
                most = max(most, float(gained[-1]) if len(gained) else 0.0)
    raise InvalidRequest(
        f"fluctuation: {f} cannot be reached with these keys on {instances} instances; "
        f"{most * instances / loads.sum():.2f} can"
    )


def sources_of(messages: NDArray[np.int64], sources: int, *, by_key: bool) -> Ints:
    """(n,) the source of each message: in turn, or by a second key that goes with the first."""
    if not by_key:
        return np.arange(len(messages)) % sources
    other = mix(messages.astype(np.uint64) // np.uint64(3) + np.uint64(17))
    return (other % np.uint64(sources)).astype(np.int64)
