"""Figure 21: migration of MinMig over beta."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.papers.figure import Figure, Made
from benchmarks.papers.figures.p000_20 import BETAS, NEAR, PARAMETERS, over_beta
from benchmarks.papers.finding import Finding
from benchmarks.papers.intervals import falls, field, listed, panel


def make(show: Callable[[str], None]) -> Made:
    moved = field(over_beta(show), "moved", 100)
    means = moved["MinMig"].mean
    return Made(
        [panel("", ("beta", "migrated state, %"), BETAS, moved)],
        [
            Finding(
                "figure 21",
                "the greater beta, the more state migrates; rule: no step down by more than 2 %, "
                "and at 2 more than at 1",
                f"{listed(BETAS, means, '.3f')} % (beta)",
                falls(means[::-1], NEAR) and means[-1] > means[0],
            )
        ],
    )


FIGURE = Figure("000-21", "Migration of MinMig over beta", PARAMETERS, 0.3, make)
