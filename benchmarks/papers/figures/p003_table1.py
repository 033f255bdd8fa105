"""Zacheilas et al., DAIS 2016, table 1: texts, first stories and deviations of five methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding
from benchmarks.papers.stories import METHODS, PARAMETERS, told

#: As the table has them; false alarms are 7,563 - 6,546 of 7,563 events.
TEXTS = {"DLB-L": 2.941, "DLB-H": 2.899, "LPTF": 2.042, "PKG": 2.927, "KG": 2.727}
DEVIATIONS = {"DLB-L": 18.34, "DLB-H": 23.43, "LPTF": 14.53, "PKG": 8.6, "KG": 44.53}
FALSE_PART = 0.134


def make(say: Callable[[str], None]) -> Made:
    """Run the five methods over the whole stream."""
    runs = {}
    for name in METHODS:
        say(name)
        runs[name] = told(name)
    texts = {name: one.processed / 1e6 for name, one in runs.items()}
    deviations = {name: one.mean_deviation() for name, one in runs.items()}
    events = {name: one.events for name, one in runs.items()}
    found = (
        ("texts", "texts processed in 40 minutes (millions)", texts),
        ("events", "first-story events", events),
        ("deviation", "mean deviation of the engines' loads (%)", deviations),
    )
    panels = [
        Panel.over(name, "method", what, values, {"here": [float(v) for v in values.values()]})
        for name, what, values in found
    ]
    return Made(panels, [_texts(texts), *_events(events), _deviations(deviations)])


def _texts(texts: dict[str, float]) -> Finding:
    return Finding(
        "table 1",
        f"millions of texts: {_listed(TEXTS, '.2f')}; rule: in the table's order, or within 1 %",
        _listed(texts, ".2f"),
        _in_order(texts, sorted(TEXTS, key=TEXTS.__getitem__), 0.01),
        "the work of a text is set so that key grouping processes what it does in the paper",
    )


def _events(events: dict[str, int]) -> list[Finding]:
    false = 1 - events["KG"] / events["PKG"]
    return [
        Finding(
            "table 1",
            "DLB-L, DLB-H and LPTF find the same first stories as key grouping; rule: as many",
            _listed(events, ",d"),
            events["DLB-L"] == events["DLB-H"] == events["LPTF"] == events["KG"] > 0,
        ),
        Finding(
            "table 1",
            "of PKG's events 13.4 % are false alarms; rule: from half to twice as many",
            f"{100 * false:.1f} % of {events['PKG']:,}",
            FALSE_PART / 2 <= false <= 2 * FALSE_PART,
            "an engine that sees half of a key's texts finds the first in its half; how many these "
            "are depends on how often a story comes",
        ),
    ]


def _deviations(deviations: dict[str, float]) -> Finding:
    return Finding(
        "table 1",
        f"mean deviation of the loads: {_listed(DEVIATIONS, '.1f')} %; rule: in the table's order",
        f"{_listed(deviations, '.1f')} %",
        _in_order(deviations, sorted(DEVIATIONS, key=DEVIATIONS.__getitem__), 0.0),
        "the stream's skew is set so that key grouping deviates as in the paper",
    )


def _in_order(values: dict[str, float], names: Sequence[str], tolerance: float) -> bool:
    """Whether values ascend in the order of `names`, but for a part of them."""
    ordered = [values[name] for name in names]
    return all(a <= b * (1 + tolerance) for a, b in pairwise(ordered))


def _listed(values: dict[str, float] | dict[str, int], form: str) -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())


FIGURE = Figure(
    "003-table1",
    "Texts, first stories and deviations of five methods",
    f"{PARAMETERS}. Generated texts in their order, all of them; their skew is chosen so that key "
    "grouping deviates by 45 %",
    2.0,
    make,
)
