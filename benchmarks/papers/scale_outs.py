"""Fang et al., JOS 2017, figures 4 and 5: EQ5 with nodes of limited memory, which grows."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from benchmarks.papers.tpch_joins import join
from joinengine.lab.queries.named_query import Options

SCALE, BATCHES, CAPACITY = 0.01, 32, 6_000
#: Seconds for a tuple that moves: 100 bytes through 10 MB/s.
MOVED_S = 1e-5
#: One node; one on each side; six on each side.
STARTS = {"MNRT": 1, "QMMP": 1, "Dynamic": 1, "Bi": 2, "Bi_6": 12}


class Growth(NamedTuple):
    """A run: nodes of the join with lineitem after each batch.

    `seconds`: of each scale-out. `moved`: tuples that each has moved.
    """

    nodes: list[float]
    seconds: list[float]
    moved: list[float]


@cache
def grown(method: str, zipf: float) -> Growth:
    """Load all data; a node that holds more than CAPACITY tuples makes the layout grow."""
    options = Options(scale=SCALE, zipf=zipf, instances=STARTS[method])
    records = join("EQ5", method, options, BATCHES, measures=True, capacity=CAPACITY)
    last = [record.joins[-1] for record in records]
    seconds, moved = list[float](), list[float]()
    for number in range(len(last) - 1):
        if last[number + 1].instances > last[number].instances:
            rows = float(last[number + 1].moved.rows)
            moved.append(rows)
            seconds.append(records[number].seconds["plan_s"] + rows * MOVED_S)
    return Growth([float(one.instances) for one in last], seconds, moved)
