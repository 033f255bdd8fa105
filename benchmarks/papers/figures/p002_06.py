"""Fang et al., JOS 2017, figure 6: tuples that a node receives, over the skew."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding, spread_of, spreads_of
from benchmarks.papers.tpch_joins import METHODS, QUERY_NAMES, join, received
from joinengine.lab.queries.named_query import Options

SKEWS, NODES, SCALE, BATCHES = (0.0, 0.25, 0.5, 0.75, 1.0), 16, 0.02, 12
#: 3 minutes of 30.
WINDOW_US, SPAN_US = 180_000_000, 1_800_000_000
Received = Mapping[str, Mapping[float, float]]


def make(say: Callable[[str], None]) -> Made:
    """Join within windows, under each skew and method."""
    panels, found = list[Panel](), dict[str, dict[str, dict[float, float]]]()
    for letter, query in QUERY_NAMES.items():
        here = found[letter] = {}
        for z in SKEWS:
            say(f"{query}, z = {z:g}")
            options = Options(
                scale=SCALE, zipf=z, instances=NODES, window_us=WINDOW_US, span_us=SPAN_US
            )
            for method in METHODS:
                records = join(query, method, options, BATCHES)
                here.setdefault(method, {})[z] = received(records)
        series = {method: list(by_z.values()) for method, by_z in here.items()}
        what = "mean tuples received by a node"
        panels.append(Panel.over(letter, "Zipf z", what, SKEWS, series))
    return Made(panels, [*_both(found), *_grow(found)])


def _both(found: Mapping[str, Received]) -> list[Finding]:
    rows = list[Finding]()
    for letter, here in found.items():
        place = f"figure 6{letter}"
        numbers = spreads_of({method: by_z.values() for method, by_z in here.items()}, ".1f", 1e-3)
        listed = f"{numbers} thousand tuples for z = {spread_of(SKEWS, 'g')}"
        for method in ("Dynamic", "Bi"):
            rows.append(
                Finding(
                    place,
                    f"what a node of {method} receives does not depend on skew; rule: within 5 % "
                    "of its mean",
                    listed if method == "Dynamic" else "as above",
                    _is_flat(list(here[method].values())),
                )
            )
        rows += [
            Finding(
                place,
                "a node of MNRT receives little; rule: less than of Dynamic and of Bi at each z",
                "as above",
                all(here["MNRT"][z] < min(here["Dynamic"][z], here["Bi"][z]) for z in SKEWS),
                "under the band of B_NCI a tuple also probes the neighbours of its key, at other "
                "nodes; Dynamic fits its grid to the small side, and copies little",
            ),
            Finding(
                place,
                "a node of QMMP receives more than one of MNRT; rule: at each z",
                "as above",
                all(here["QMMP"][z] > here["MNRT"][z] for z in SKEWS),
                "QMMP splits three to five times as many keys; but a hot key is divided on its "
                "large side, and only the few tuples of the other side are copied",
            ),
        ]
    return rows


def _grow(found: Mapping[str, Received]) -> list[Finding]:
    rows = list[Finding]()
    for letter, here in found.items():
        six = list(here["Bi_6"].values())
        rows.append(
            Finding(
                f"figure 6{letter}",
                "a node of Bi_6 receives few tuples at low skew, and more as skew grows; rule: "
                "fewer than of Dynamic at z = 0, and over 10 % more at z = 1 than at 0",
                f"Bi_6 {spread_of([n / 1e3 for n in six], '.1f')} thousand tuples",
                six[0] < here["Dynamic"][0.0] and six[-1] > 1.1 * six[0],
                "a tuple goes to one node of its side and to the nodes of one subgroup: on average "
                "as many, whatever its key; what grows is the load of the hot key's subgroup",
            )
        )
    return rows


def _is_flat(values: list[float]) -> bool:
    mean = sum(values) / len(values)
    return all(abs(one / mean - 1) <= 0.05 for one in values)


FIGURE = Figure(
    "002-6",
    "Tuples that a node receives",
    f"TPC-H of {SCALE:g} GB (the paper: 64 GB) over 30 minutes, window 180 s, {NODES} nodes, "
    f"{BATCHES} batches; a: EQ5, b: B_NCI. All joins together, mean over nodes. In TPC-H a Zipf "
    "exponent of 1 gives the largest supplier, nation and region 10, 26 and 44 % of the tuples",
    2.5,
    make,
)
