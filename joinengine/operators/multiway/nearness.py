"""The windows of a multiway join: how near in event time the tuples of a result must be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from joinengine.model.durations import describe
from joinengine.model.keys import Side
from joinengine.model.lateness import Delays
from joinengine.model.windows import INT_MAX, INT_MIN, Times, plus_held


@dataclass(frozen=True, slots=True)
class Bound:
    """lower <= time of `right` - time of `left` <= upper, in microseconds."""

    left: Side
    right: Side
    lower_us: int
    upper_us: int


@dataclass(frozen=True)
class Nearness:
    """The windows of a chain of joins, pair by pair; `bounds` connect all sides.

    `times`: per side the event-time column. `delays_us`, `idle_after_us`, `ahead_us`: as in
    `Within`, per side.
    """

    times: tuple[tuple[str, ...], ...]
    bounds: tuple[Bound, ...]
    delays_us: Delays
    idle_after_us: int | None = None
    ahead_us: int | None = None

    @cached_property
    def most_us(self) -> tuple[tuple[int, ...], ...]:
        """[i][j]: how much later than a tuple of side i a tuple of side j may be at most (us).

        The bounds of pairs on a path from i to j add up; the shortest path counts.
        """
        n = len(self.times)
        most = [[0 if i == j else INT_MAX for j in range(n)] for i in range(n)]
        for bound in self.bounds:
            there, back = most[bound.left], most[bound.right]
            there[bound.right] = min(there[bound.right], bound.upper_us)
            back[bound.left] = min(back[bound.left], -bound.lower_us)
        for by, i, j in product(range(n), repeat=3):
            if INT_MAX not in (most[i][by], most[by][j]):
                most[i][j] = min(most[i][j], most[i][by] + most[by][j])
        return tuple(map(tuple, most))

    @property
    def span_us(self) -> int:
        """The greatest distance in event time of two tuples of one result."""
        return max(0, *(max(row) for row in self.most_us))

    def last_needed_us(self, side: Side) -> int:
        """How much later than a tuple of `side` another may be that still meets it (us)."""
        others = self.most_us[side]
        return max(most for other, most in enumerate(others) if other != side)

    def last_partners(self, side: Side, times: Times) -> Times:
        """(n,) times of `side` -> (n,) the latest time of a tuple that meets each."""
        return plus_held(times, self.last_needed_us(side))[0]

    def near(self, times: Mapping[Side, Times], side: Side) -> tuple[Times, Times]:
        """Per side, (n,) times -> (n,) first and (n,) last time of `side` that is near all."""
        n = len(next(iter(times.values())))
        first, last = np.full(n, INT_MIN), np.full(n, INT_MAX)
        for other, of_other in times.items():
            earliest, none = plus_held(of_other, -self.most_us[side][other])
            latest, none_either = plus_held(of_other, self.most_us[other][side])
            # Beyond 64-bit times there are no partners.
            last[none & (earliest == INT_MAX)] = INT_MIN
            last[none_either & (latest == INT_MIN)] = INT_MIN
            first, last = np.maximum(first, earliest), np.minimum(last, latest)
        return first, last

    def between(self, side: Side, times: Times, other: Side) -> tuple[int, int]:
        """The first and the last time of `other` that is near any of `times` of `side`."""
        first, last = self.near({side: times}, other)
        return int(first.min()), int(last.max())

    def lag_us(self, sides: Collection[Side]) -> int:
        """How far the latest time of `sides` in a result may lag behind the watermark (us).

        One tuple of the result, of any side, has arrived in the batch on time.
        """
        every = range(len(self.times))
        return max(0, *(min(self.most_us[side][new] for side in sides) for new in every))

    @property
    def text(self) -> str:
        """The bounds in words."""
        return " and ".join(
            f"{describe(bound.lower_us)} <= {self.times[bound.right][0]} - "
            f"{self.times[bound.left][0]} <= {describe(bound.upper_us)}"
            for bound in self.bounds
        )
