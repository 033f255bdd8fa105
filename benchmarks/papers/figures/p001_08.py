"""Figure 8 of Nasir et al., ICDE 2015: sources that get the stream evenly, and by a skewed key."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding
from benchmarks.papers.pkg_streams import BALANCED, MESSAGES, SEEDS, STAND_INS, imbalances, stream
from joinengine.lab.simulation.candidate_layouts import Setting

SOURCES = (5, 10, 15, 20)
WORKERS = (5, 10, 50, 100)
WAYS = {"uniform": False, "skewed": True}


def make(say: Callable[[str], None]) -> Made:
    """The mean imbalance, by workers, sources and split."""
    keys = stream("LJ")
    found = dict[tuple[str, int], list[float]]()
    for w in WORKERS:
        for s in SOURCES:
            say(f"{w} workers, {s} sources")
            for way, by_key in WAYS.items():
                value = imbalances("pkg", keys, Setting(w, s), by_key=by_key).mean()
                found.setdefault((way, s), []).append(float(value))
    ratios = [
        skewed / even
        for s in SOURCES
        for even, skewed in zip(found["uniform", s], found["skewed", s], strict=True)
    ]
    most = max(value for values in found.values() for value in values)
    first, last = found["skewed", SOURCES[0]][0], found["skewed", SOURCES[-1]][-1]
    return Made(
        [
            Panel.over(
                "",
                "workers",
                "mean I(t) / m",
                WORKERS,
                {f"{way}, {s} sources": means for (way, s), means in found.items()},
                "xy",
            )
        ],
        [
            Finding(
                "figure 8",
                "sources that get messages by a skewed second key are as good as even ones",
                f"skewed over uniform: {min(ratios):.1f} to {max(ratios):.1f} in 16 cells",
                max(ratios) < 10,
                "rule: within one order of magnitude. The second key is drawn independently of the "
                "first; if it were a function of the first, all messages of a key would come from "
                "one source",
            ),
            Finding(
                "figure 8",
                "the imbalance increases slightly with sources and workers, and stays very low",
                f"skewed: {first:.0e} with 5 sources and workers, {last:.0e} with 20 and 100; at "
                f"most {most:.0e}",
                first < last and most < BALANCED,
            ),
        ],
    )


FIGURE = Figure(
    "001-8",
    "Uniform and skewed splitting on the sources",
    f"edges like those of LJ ({STAND_INS}; the vertices that edges leave are Zipf's with z = 1), "
    f"{MESSAGES:,} edges, mean of {len(SEEDS)} draws of the hash functions",
    1.5,
    make,
)
