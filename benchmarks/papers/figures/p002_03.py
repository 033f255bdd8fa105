"""Fang et al., JOS 2017, figure 3: the time to process all data over its skew."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.papers.cluster import seconds_of
from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding, spread_of, spreads_of
from benchmarks.papers.tpch_joins import METHODS, QUERY_NAMES, compared, join
from joinengine.lab.queries.named_query import Options

SKEWS, NODES, SCALE, BATCHES = (0.0, 0.5, 1.0, 1.5), 16, 0.03, 4
#: Method -> skew -> seconds that were measured, and 10^9 comparisons without an index.
Times = Mapping[str, Mapping[float, tuple[float, float]]]
KINDS = ("measured", "without an index")


def make(say: Callable[[str], None]) -> Made:
    """Process all data of both queries, under each skew and method."""
    panels, findings = list[Panel](), list[Finding]()
    for letter, query in QUERY_NAMES.items():
        found = dict[str, dict[float, tuple[float, float]]]()
        for z in SKEWS:
            say(f"{query}, z = {z:g}")
            options = Options(scale=SCALE, zipf=z, instances=NODES)
            for method in METHODS:
                records = join(query, method, options, BATCHES, measures=True)
                times = sum(seconds_of(records)), compared(records) / 1e9
                found.setdefault(method, {})[z] = times
        axes = "processor seconds of the busiest node", "10^9 comparisons of the busiest node"
        for kind, (suffix, what) in enumerate(zip(("", "-no-index"), axes, strict=True)):
            series = {
                method: [times[kind] for times in by_z.values()] for method, by_z in found.items()
            }
            log = "y" if kind else ""
            panels.append(Panel.over(letter + suffix, "Zipf z", what, SKEWS, series, log))
            findings += _findings(f"figure 3{letter}", found, kind)
    return Made(panels, findings)


def _findings(place: str, found: Times, kind: int) -> list[Finding]:
    at = {method: {z: times[kind] for z, times in by_z.items()} for method, by_z in found.items()}
    here = spreads_of({method: by_z.values() for method, by_z in at.items()})
    low = [z for z in SKEWS if z <= 0.5]
    others = ("Dynamic", "Bi", "Bi_6")
    flat = list(at["Dynamic"].values())
    statements = (
        (
            "at low skew MNRT and QMMP take least; rule: both below all others at z = 0 and 0.5",
            all(
                max(at["MNRT"][z], at["QMMP"][z]) < min(at[other][z] for other in others)
                for z in low
            ),
        ),
        (
            "QMMP suffers from its splits as skew grows; rule: more than MNRT at z = 1 and 1.5",
            all(at["QMMP"][z] > at["MNRT"][z] for z in (1.0, 1.5)),
        ),
        (
            "Bi_6 grows with skew, and is worse than MNRT, QMMP and Dynamic at z = 1.5; rule: so",
            at["Bi_6"][1.5]
            > max(at["Bi_6"][0.0], *(at[x][1.5] for x in ("MNRT", "QMMP", "Dynamic"))),
        ),
        (
            "Bi, which sends every tuple to a whole side, is slower than MNRT and QMMP; rule: at "
            "each z",
            all(at["Bi"][z] > max(at["MNRT"][z], at["QMMP"][z]) for z in SKEWS),
        ),
        (
            "Dynamic does not depend on skew; rule: within 15 % of its mean",
            all(abs(one * len(flat) / sum(flat) - 1) <= 0.15 for one in flat),
        ),
    )
    return [
        Finding(
            place,
            f"{stated} ({KINDS[kind]})",
            f"{KINDS[kind]}: {here}" if number == 0 else "as above",
            holds,
            _reading(kind) if number == 0 else _READINGS.get(number, ""),
            timed=kind == 0,
        )
        for number, (stated, holds) in enumerate(statements)
    ]


#: Of the statement on QMMP, and of that on Bi.
_READINGS = {
    1: "QMMP splits more keys, but a hot key is divided on its large side, and only the few tuples "
    "of the other side are copied",
    3: "a node of Bi stores each tuple once, so it holds as little under any skew",
}


def _reading(kind: int) -> str:
    if kind:
        return (
            f"10^9 comparisons for z = {spread_of(SKEWS, 'g')}; the paper's nodes have no "
            "index, so a tuple costs as much as a node holds"
        )
    return (
        f"seconds for z = {spread_of(SKEWS, 'g')}; nodes find partners by sorted runs here, "
        "and a batch has a cost of its own that skew and layout do not change"
    )


FIGURE = Figure(
    "002-3",
    "Time to process all data",
    f"TPC-H of {SCALE:g} GB (the paper: 12 GB), {NODES} nodes, full history, at full speed in "
    f"{BATCHES} batches; a: EQ5, b: B_NCI. Time of the busiest node in each batch. No-index: a "
    "model in which a node compares what it receives with all that it holds",
    3.0,
    make,
)
