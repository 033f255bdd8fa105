"""Foreign keys redrawn from an exact Zipf distribution over the parent's keys.

Each draw is a function of (seed, column, row number): it is the same for any number of workers, any
piece of a table, and every version of numpy.
Source: Fang et al., JOS 2017, section 5.1.2 (foreign keys follow Zipf(z) over the primary keys).
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import mix
from joinengine.model.errors import InvalidRequest

#: child column -> (parent table, parent column)
FOREIGN_KEYS = {
    "l_orderkey": ("orders", "o_orderkey"),
    "l_suppkey": ("supplier", "s_suppkey"),
    "o_custkey": ("customer", "c_custkey"),
    "c_nationkey": ("nation", "n_nationkey"),
    "s_nationkey": ("nation", "n_nationkey"),
    "n_regionkey": ("region", "r_regionkey"),
}


def uniform(seed: int, name: str, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n,) row numbers -> (n,) numbers in [0, 1) that depend on seed, name and row alone."""
    start = mix(np.array([seed % (1 << 64), zlib.crc32(name.encode())], np.uint64))
    bits = mix(rows.astype(np.uint64) ^ mix(start[:1] ^ start[1:])[0])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def shuffled(seed: int, name: str, n: int) -> NDArray[np.int64]:
    """A permutation of 0..n-1 that depends on seed and name alone."""
    return np.argsort(uniform(seed, name, np.arange(n)), kind="stable").astype(np.int64)


def check_zipf(z: float) -> None:
    """Raise InvalidRequest if `z` is not an exponent of a Zipf distribution: 0 or more."""
    if not 0 <= z < math.inf:
        raise InvalidRequest(f"zipf: expected an exponent of 0 or more, found {z}; 0 is uniform")


def zipf_probabilities(n: int, z: float) -> NDArray[np.float64]:
    """(n,) probability of each rank: rank^-z over the sum of all; z = 0 is uniform.

    Raises InvalidRequest if z is negative.
    """
    check_zipf(z)
    weights = np.arange(1, n + 1, dtype=np.float64) ** -z
    return np.asarray(weights / weights.sum())


def cumulative_zipf(n: int, z: float) -> NDArray[np.float64]:
    """(n,) the probability of each rank and those before it together; the last is 1."""
    cumulative = np.cumsum(zipf_probabilities(n, z))
    return np.asarray(cumulative / cumulative[-1])


def ranks_of(cumulative: NDArray[np.float64], drawn: NDArray[np.float64]) -> NDArray[np.int64]:
    """(n,) numbers in [0, 1) -> (n,) ranks, from 0, with the frequencies of `cumulative`."""
    ranks = np.searchsorted(cumulative, drawn, side="right")
    return np.minimum(ranks, len(cumulative) - 1)


@dataclass(frozen=True)
class ZipfKeys:
    """Draws from `keys` with Zipf(z) frequencies; the seed decides which keys are hot."""

    keys: NDArray[np.int64]
    cumulative: NDArray[np.float64]
    column: str
    seed: int

    @classmethod
    def over(cls, parents: NDArray[np.int64], z: float, column: str, seed: int) -> ZipfKeys:
        """Draws over the parent's keys, whose ranks the seed permutes."""
        order = shuffled(seed, f"{column}: ranks", len(parents))
        return cls(parents[order], cumulative_zipf(len(parents), z), column, seed)

    def draw(
        self, rows: NDArray[np.int64], phases: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """(n,) row numbers -> (n,) keys; in each of `phases` (n,) other keys are hot."""
        ranks, n = ranks_of(self.cumulative, uniform(self.seed, self.column, rows)), len(self.keys)
        if phases is not None:
            # A phase turns the ranks by 0.382 of their number, so that few keys are hot twice.
            ranks = (ranks + phases * max(1, round(n * 0.382))) % n
        return self.keys[ranks]
