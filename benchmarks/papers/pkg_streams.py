"""Streams for the figures of Nasir et al., ICDE 2015, and how candidate layouts divide them.

Sections, figures and tables are numbered as in the extended text, Partial Key Grouping:
Load-Balanced Partitioning of Distributed Streams. Its real data sets are not available. Stand-ins
have the same part of the top key and as many messages for each key that comes; otherwise they are
Zipf's. LN1, LN2 and ZF are drawn as the paper says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from joinengine.balancing.statistics import Floats, Ints
from joinengine.lab.simulation.candidate_layouts import Setting, play
from joinengine.lab.simulation.workload import LOGNORMAL, Shape, Workload, sources_of

#: Messages of a stream in most figures.
MESSAGES = 200_000
WORKERS = (5, 10, 50, 100)
#: Draws of the hash functions, over which noise is averaged.
SEEDS = (0, 1, 2)
#: A system is balanced if I / m is below this; the paper calls it binary.
BALANCED = 1e-3
#: Tickers change their popularity from week to week by a factor whose logarithm has this deviation.
DRIFT, WEEKS = 0.6, 4


@dataclass(frozen=True)
class DataSet:
    """A row of table I: the part of the top key is p1, and `minute` is a minute's messages."""

    messages: int
    keys: int
    p1: float
    minute: int = 0

    @property
    def per_key(self) -> float:
        """Messages for each key that comes."""
        return self.messages / self.keys


DATA_SETS = {
    "WP": DataSet(22_000_000, 2_900_000, 0.0932, 22_000_000 // (24 * 60)),
    "TW": DataSet(1_200_000_000, 31_000_000, 0.0267, 1_200_000_000 // (31 * 24 * 60)),
    "CT": DataSet(690_000, 2_900, 0.0329, 690_000 // (30 * 24 * 60)),
    "LJ": DataSet(69_000_000, 4_900_000, 0.0029),
    "SL1": DataSet(905_000, 77_000, 0.0328),
    "SL2": DataSet(948_000, 82_000, 0.0311),
    "LN1": DataSet(10_000_000, 16_000, 0.1471),
    "LN2": DataSet(10_000_000, 1_100, 0.0701),
}
STAND_INS = (
    "stand-ins with the paper's part of the top key and messages per key (LN as in the paper)"
)


@cache
def stream(name: str, n: int = MESSAGES) -> Ints:
    """(n,) the keys of a stream like a data set of the paper; key 0 is the top key."""
    if name.lower() in [shape.value for shape in LOGNORMAL]:
        return Workload(shape=Shape(name.lower()), seed=7).messages(n)
    data = DATA_SETS[name]
    keys, z = _fitted(data.p1, n / data.per_key, n)
    if name != "CT":
        return Workload(keys=keys, zipf=z, seed=7).messages(n)
    return np.concatenate(
        [one[n * week // WEEKS : n * (week + 1) // WEEKS] for week, one in _weeks(keys, z, n)]
    )


def _weeks(keys: int, z: float, n: int) -> Iterable[tuple[int, Ints]]:
    """Each week, and a stream with its popularities; the top ticker keeps its own."""
    rng = np.random.default_rng(7)
    for week in range(WEEKS):
        p = np.arange(1, keys + 1.0) ** -z * np.exp(DRIFT * rng.standard_normal(keys))
        p[0] = p[1:].sum() / ((np.arange(1, keys + 1.0) ** -z).sum() - 1)
        yield week, np.searchsorted(np.cumsum(p / p.sum()), rng.random(n))


def _fitted(p1: float, wanted: float, n: int) -> tuple[int, float]:
    """The number of keys and the exponent with which n messages have `wanted` keys, and p1."""

    def exponent(keys: int) -> float:
        ranks = np.arange(1, keys + 1.0)
        return _root(lambda z: 1 / (ranks**-z).sum() - p1, 0.0, 4.0, 30)

    def seen(log_keys: float) -> float:
        ranks = np.arange(1, round(np.exp(log_keys)) + 1.0)
        p = ranks ** -exponent(len(ranks))
        return float((1 - (1 - p / p.sum()) ** n).sum())

    keys = round(np.exp(_root(lambda at: seen(at) - wanted, np.log(wanted), np.log(n * 10), 12)))
    return keys, exponent(keys)


def _root(rising: Callable[[float], float], low: float, high: float, halvings: int) -> float:
    """Where a rising function is 0, by bisection."""
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def rehashed(keys: Ints, seed: int) -> Ints:
    """The same stream with other candidates of each key."""
    return keys + (seed << 40)


def one_source(keys: Ints) -> Ints:
    """(n,) all messages from source 0."""
    return np.zeros(len(keys), np.int64)


def imbalances(method: str, keys: Ints, setting: Setting, *, by_key: bool = False) -> Floats:
    """(seeds,) the mean of I(t) over time, as a part of all messages, for each draw of hashes."""
    sources = sources_of(len(keys), setting.sources, by_key=by_key)
    return np.array(
        [
            np.mean(play(method, rehashed(keys, seed), sources, setting)["imbalance"]) / len(keys)
            for seed in SEEDS
        ]
    )


def final_imbalance(method: str, keys: Ints, setting: Setting) -> float:
    """I(m) / m, messages from one source."""
    return float(play(method, keys, one_source(keys), setting)["relative_imbalance"])
