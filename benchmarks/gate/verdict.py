"""Whether a version is slower than another: ratios of medians, and what noise they have."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import NamedTuple

#: A ratio above it is a loss of speed, if the noise does not explain it.
LIMIT = 1.10
#: Fewer rounds say too little about the noise: beside much other work, three have agreed by chance.
FEWEST = 5


class Compared(NamedTuple):
    """A measure of two versions, in seconds of processor time.

    `ratio`: of the medians, now over base. `spread`: half the distance between the quartiles of the
    ratios of single rounds.
    """

    measure: str
    base_s: float
    now_s: float
    ratio: float
    spread: float

    @property
    def is_slower(self) -> bool:
        """Whether the ratio is above the limit by more than the noise."""
        return self.ratio - self.spread > LIMIT

    @property
    def words(self) -> str:
        """The verdict for the table."""
        if self.is_slower:
            return "SLOWER"
        return "above the limit, within the noise" if self.ratio > LIMIT else "ok"


def compared(measure: str, base: Sequence[float], now: Sequence[float]) -> Compared:
    """Seconds of rounds that alternated, at least FEWEST of each; the rounds are in their order.

    >>> found = compared("sort", [1.0, 1.0, 1.0], [1.2, 1.3, 1.2])
    >>> found.ratio, round(found.spread, 3), found.words
    (1.2, 0.025, 'SLOWER')
    """
    rounds = [one / other for one, other in zip(now, base, strict=True)]
    low, _, high = quantiles(rounds, n=4, method="inclusive")
    base_s, now_s = median(base), median(now)
    return Compared(measure, base_s, now_s, now_s / base_s, (high - low) / 2)
