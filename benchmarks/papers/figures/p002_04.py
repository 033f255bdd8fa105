"""Fang et al., JOS 2017, figure 4: nodes in use while data is loaded."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding, spreads_of
from benchmarks.papers.scale_outs import BATCHES, CAPACITY, SCALE, STARTS, grown

ZIPF = 0.8


def make(say: Callable[[str], None]) -> Made:
    """Load all data under each method."""
    nodes = dict[str, list[float]]()
    for method in STARTS:
        say(method)
        nodes[method] = grown(method, ZIPF).nodes
    loaded = [100 * (number + 1) / BATCHES for number in range(BATCHES)]
    quarters = {method: [counts[at] for at in _QUARTERS] for method, counts in nodes.items()}
    here = f"{spreads_of(quarters, '.0f')} nodes at 1, 25, 50, 75 and 100 % of the data"
    dynamic = nodes["Dynamic"]
    ours = nodes["MNRT"], nodes["QMMP"]
    findings = [
        Finding(
            "figure 4",
            "Dynamic grows from one node to four, and again by four each time; rule: only such",
            here,
            set(dynamic) <= {4.0**power for power in range(6)} and len(set(dynamic)) > 1,
        ),
        Finding(
            "figure 4",
            "MNRT and QMMP take nodes on demand, fewer than Dynamic; rule: at no point more, and "
            "fewer at the end",
            "as above",
            all(mine <= theirs for one in ours for mine, theirs in zip(one, dynamic, strict=True))
            and max(one[-1] for one in ours) < dynamic[-1],
            "Dynamic takes 12 nodes at once where the others take one after each batch; QMMP has "
            "copied keys on both sides, which nodes hold twice",
        ),
        Finding(
            "figure 4",
            "Bi and Bi_6 use few nodes, as they aim at memory; rule: at the end no more than MNRT, "
            "or than the nodes that they began with",
            "as above",
            all(nodes[one][-1] <= max(nodes["MNRT"][-1], STARTS[one]) for one in ("Bi", "Bi_6")),
        ),
    ]
    return Made([Panel.over("", "data loaded (%)", "nodes in use", loaded, nodes)], findings)


_QUARTERS = (0, BATCHES // 4 - 1, BATCHES // 2 - 1, 3 * BATCHES // 4 - 1, BATCHES - 1)

FIGURE = Figure(
    "002-4",
    "Nodes in use as data is loaded",
    f"EQ5, {SCALE:g} GB (the paper: 12 GB), z = {ZIPF}, full history; a node may hold {CAPACITY:,} "
    "tuples (the paper does not say how many). Nodes of the join with lineitem. Bi begins with one "
    "node a side, Bi_6 with six",
    1.0,
    make,
)
