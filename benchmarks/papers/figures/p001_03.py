"""Figure 3 of Nasir et al., ICDE 2015: the five most frequent tickers, week by week."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding
from benchmarks.papers.pkg_streams import DATA_SETS, DRIFT, WEEKS, stream

TOP = 5


def make(say: Callable[[str], None]) -> Made:
    """Messages of the tickers that are most frequent over all weeks."""
    say("CT")
    keys = stream("CT", DATA_SETS["CT"].messages)
    counts = np.array([np.bincount(week, minlength=10_000) for week in np.array_split(keys, WEEKS)])
    top = np.argsort(-counts.sum(axis=0))[:TOP].tolist()
    orders = {tuple(np.argsort(-week)[:TOP].tolist()) for week in counts}
    return Made(
        [
            Panel.over(
                "",
                "week",
                "messages",
                range(1, WEEKS + 1),
                {f"ticker {at}": counts[:, key].tolist() for at, key in enumerate(top, start=1)},
            )
        ],
        [
            Finding(
                "figure 3",
                "the most frequent tickers change from week to week",
                f"{len(orders)} different top fives in {WEEKS} weeks",
                None,
                "a stand-in changes as it was told to; figure 5 needs this stream",
            )
        ],
    )


FIGURE = Figure(
    "001-3",
    "Frequency of the top five tickers in CT",
    f"a stand-in for CT with its 690,000 messages, 2,900 keys and p1; popularities change each "
    f"week by log-normal factors of deviation {DRIFT}, but that of the top ticker",
    0.2,
    make,
)
