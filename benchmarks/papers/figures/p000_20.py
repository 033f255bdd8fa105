"""Figure 20: the table of MinMig over beta."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.papers.figure import Figure, Made
from benchmarks.papers.finding import Finding
from benchmarks.papers.intervals import (
    Curve,
    Curves,
    Setup,
    curves,
    falls,
    field,
    listed,
    panel,
    plan_minmig,
)

BETAS = tuple(np.arange(10, 21) / 10)
SEEDS = range(1, 21)
#: The default of the paper, and the tolerance of a rule.
CHOSEN, NEAR = 1.5, 0.02
PARAMETERS = (
    "10,000 keys, Zipf 0.85, f = 1, 15 tasks, theta = 0.08, w = 5, consistent hashing, mean of 10 "
    "adjustments. Means of 20 runs"
)


def over_beta(show: Callable[[str], None]) -> Curves:
    """MinMig for each beta."""
    along: Sequence[Setup] = [Setup(beta=beta, intervals=10) for beta in BETAS]
    return curves({"MinMig": plan_minmig}, {"": along}, show, SEEDS)


def make(show: Callable[[str], None]) -> Made:
    entries = field(over_beta(show), "entries")
    means = Curve(entries["MinMig"].runs).mean
    before = [size for beta, size in zip(BETAS, means, strict=True) if beta <= CHOSEN]
    after = [size for beta, size in zip(BETAS, means, strict=True) if beta >= CHOSEN]
    told = f"{listed(BETAS, means, '.0f')} entries (beta)"
    return Made(
        [panel("", ("beta", "entries of MinMig's table"), BETAS, entries)],
        [
            Finding(
                "figure 20",
                "the greater beta, the smaller the table; rule: up to beta = 1.5 no step up by "
                "more than 2 %, and at 1.5 a tenth less than at 1",
                told,
                falls(before, NEAR) and before[-1] <= 0.9 * before[0],
            ),
            Finding(
                "figure 20",
                "beyond some beta (lost) the table stays as it is; rule: from 1.5 to 2 within 5 % "
                "of their mean",
                told,
                bool(np.ptp(after) <= 0.1 * np.mean(after)),
            ),
        ],
    )


FIGURE = Figure("000-20", "Entries of MinMig's table over beta", PARAMETERS, 0.3, make)
