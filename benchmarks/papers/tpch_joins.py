"""Fang et al., JOS 2017: the joins EQ5 and B_NCI on a cluster, under five layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.papers.cluster import Clock, Cluster, recorded_frames
from joinengine.balancing.costs import Load
from joinengine.driver.records import BatchRecord
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_runs import run_on
from joinengine.lab.queries import QUERIES
from joinengine.lab.queries.eq5 import TABLES
from joinengine.lab.queries.named_query import Options
from joinengine.layouts import Bi, BiK, Dynamic, LayoutChoice, Mnrt, Qmmp

#: The bicliques do not change the sizes of their sides, as in Lin et al., SIGMOD 2015.
METHODS: dict[str, LayoutChoice] = {
    "MNRT": Mnrt(imbalance=0.05),
    "QMMP": Qmmp(imbalance=0.05),
    "Dynamic": Dynamic(),
    "Bi": Bi(resize=False),
    "Bi_6": BiK(6, resize=False),
}
QUERY_NAMES = {"a": "EQ5", "b": "B_NCI"}
_READ = {"EQ5": ("eq5", TABLES), "B_NCI": ("bnci", ("lineitem",))}


def join(
    query: str,
    method: str,
    options: Options,
    batches: int,
    *,
    measures: bool = False,
    capacity: int | None = None,
) -> list[BatchRecord]:
    """The records of a query by its name in the paper.

    `measures`: each node has a task of its own, and seconds are the processor time of the busiest
    node and of the driver. `capacity`: tuples that a node may hold, and a node more is taken
    beyond. Loads are tuples, as in the paper.
    """
    name, tables = _READ[query]
    choice = METHODS[method]
    recorded = QUERIES[name].stream(options).record()
    built = QUERIES[name].build(None, recorded, replace(options, layout=choice)).query()
    # Counts are the same however many nodes a task has, and few tasks are faster.
    tasks = options.instances if measures and capacity is None else 2
    cluster = Cluster(tasks, world=Clock(measures=measures))
    settings = Settings(load=Load.TUPLES, capacity=capacity)
    choices = [choice] * len(built.operators)
    return run_on(cluster, built, choices, recorded_frames(recorded, tables, batches), settings)


def received(records: Sequence[BatchRecord]) -> float:
    """The mean of what a node has received, in all joins."""
    return float(
        sum(
            np.mean(each.work.received)
            for record in records
            for each in record.joins
            if each.work.received
        )
    )


def compared(records: Sequence[BatchRecord]) -> float:
    """What the busiest node compares without an index, summed over batches and joins.

    A node without an index compares each tuple that it receives with all that it holds.
    """
    total = 0.0
    for record in records:
        for each in record.joins:
            if each.work.received:
                n = min(len(each.work.received), len(each.state.held))
                total += float(
                    (np.array(each.work.received[:n]) * np.array(each.state.held[:n])).max()
                )
    return total
