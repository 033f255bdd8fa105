"""How the engine scales, modelled: its own driver, planners and reports, and a stated cluster.

A node has one core and one instance, and brings the same number of tuples to each batch; the state
lies in an object store, the tuples travel through Spark's shuffle. The driver runs, over simulated
tasks, and its processor time is measured. All else is a formula over stated figures (`Machines`).

A batch takes, one after the other:
- *driver*: instructions, reports, plan, manifest: measured on this machine;
- *start*: Spark's driver starts a task of each of two jobs on every node, one after the other, and
  a task costs its executor something, too;
- *network*: the driver's instructions and reports pass its link, and the busiest instance gets its
  deliveries over its own, but for those from its own node;
- *work*: the busiest instance works on its deliveries;
- *store*: every task writes two objects, and the slowest of all is waited for; the driver makes
  WRITES and LOOKS one after the other, and the manifest passes one connection.

Law: if the driver and the starts cost nothing and loads stay as level, more nodes never lower the
rate. What is left out: reading the source, misses of the cache, merges of runs, lost machines.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from joinengine.balancing.statistics import skew
from joinengine.exchange.exchange import ExchangeKind
from joinengine.lab.simulation.driven import driver_of
from joinengine.lab.simulation.loaded import LoadedJobs
from joinengine.lab.simulation.planning import Other
from joinengine.lab.simulation.workload import KeyStream
from joinengine.layouts.key_based import Hash, Planned
from joinengine.model.errors import InvalidRequest
from joinengine.model.speeds import Speed
from joinengine.routing.base_functions import BASES

#: More nodes would need more memory than the reports of one batch may take: two numbers for each
#: pair of tasks.
MOST_NODES = 10_000
#: Requests that the driver makes one after the other in a batch: the counts of keys and the
#: manifest; looks at the fence.
WRITES, LOOKS = 2, 3
#: Objects that a task writes, one after the other.
OBJECTS = 2
#: Spark's jobs in a batch of one join.
JOBS = 2
#: A look at something that has not changed takes a third of a write.
LOOK_PART = 1 / 3


@dataclass(frozen=True)
class Machines:
    """The stated cluster, in seconds and bytes. docs/cluster.md has the sources.

    `rows_per_node`: tuples that a batch brings for each node. `row_bytes`: of a tuple on its way
    and in a run. `work_s`: of a delivery at an instance, its way there included. `network`: of each
    node's link, and its latency. `store`: of one connection, and the median time of a write.
    `tail`: the time of one write of a hundred, over the median. `start_s`: Spark's driver for a
    task; `task_s`: its executor for one.
    """

    rows_per_node: int = 100_000
    row_bytes: int = 100
    work_s: float = 1e-6
    network: Speed = field(default_factory=lambda: Speed(1.25e9, 0.0005))
    store: Speed = field(default_factory=lambda: Speed(60e6, 0.03))
    tail: float = 3.0
    start_s: float = 0.0015
    task_s: float = 0.005

    def __post_init__(self) -> None:
        for name in ("rows_per_node", "row_bytes"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise InvalidRequest(f"{option}: expected at least 1, found {getattr(self, name)}")
        if not 1 <= self.tail < math.inf:
            raise InvalidRequest(
                f"tail: expected a factor of 1 or more, by which the slowest of a hundred writes "
                f"exceeds the median, found {self.tail:g}"
            )

    def slowest_write_s(self, writers: int) -> float:
        """Seconds of the slowest of `writers` parallel writes, whose times are lognormal."""
        spread = math.log(self.tail) / NormalDist().inv_cdf(0.99)
        return self.store.latency_s * math.exp(
            spread * NormalDist().inv_cdf(writers / (writers + 1))
        )


def modelled(machines: Machines, measured: dict[str, Any]) -> dict[str, Any]:
    """The seconds of a batch by part, and the rate, from what was `measured`.

    `measured`: `nodes`; `driver_s`; `instructions_bytes`, `reports_bytes`, `manifest_bytes`;
    `busiest`, the most deliveries to an instance; `stored`, the most tuples that one stores.
    """
    nodes, rows = measured["nodes"], measured["nodes"] * machines.rows_per_node
    network, store = machines.network, machines.store
    wire_bytes = measured["instructions_bytes"] + measured["reports_bytes"]
    carried = measured["busiest"] * machines.row_bytes * (nodes - 1) / nodes
    written = measured["stored"] * machines.row_bytes
    requests = WRITES + LOOKS * LOOK_PART
    seconds = {
        "driver": measured["driver_s"],
        "start": JOBS * (nodes * machines.start_s + machines.task_s),
        "network": JOBS * network.latency_s + (wire_bytes + carried) / network.bytes_per_s,
        "work": measured["busiest"] * machines.work_s,
        "store": OBJECTS * machines.slowest_write_s(nodes)
        + requests * store.latency_s
        + (written + measured["manifest_bytes"]) / store.bytes_per_s,
    }
    batch_s = sum(seconds.values())
    alone_s = batch_s - seconds["driver"] - seconds["start"]
    return {
        "modelled": True,
        "seconds": seconds,
        "batch_s": batch_s,
        "rows_per_s": rows / batch_s,
        "rows_per_s_without_driver": rows / alone_s if alone_s else math.inf,
    }


def measure(
    choice: Planned | Hash,
    stream_of: Callable[[int], KeyStream],
    nodes: int,
    *,
    window: int,
    batches: int,
    other: Other,
) -> dict[str, Any]:
    """The figures of the engine's own driver on `nodes` nodes; medians over `batches`.

    `stream_of`: the number of tuples of a batch -> the stream. Earlier batches, while the window
    fills and the first plans are made, are not measured.
    """
    jobs = LoadedJobs(nodes, nodes, window=window, other=other)
    with driver_of(jobs, choice, window, ExchangeKind.SHUFFLE) as driver:
        jobs.stream = iter(stream_of(nodes).intervals(BASES[choice.base](nodes)))
        warm, by_batch = window + 2, list[dict[str, Any]]()
        for number in range(warm + batches):
            jobs.begin(driver.layout)
            of_batch = driver.batch(number)
            received = jobs.received
            of_batch |= {"skew": skew(received), "busiest": float(received.max())}
            of_batch |= {"stored": jobs.stored, "deliveries": float(received.sum())}
            by_batch.append(of_batch)
        table = driver.layout.table
    counted = by_batch[warm:]
    figures = {"nodes": nodes, "layout": choice.label, "tasks": nodes, "instances": nodes}
    figures |= {
        name: statistics.median(of_batch[name] for of_batch in counted) for name in _MEDIANS
    }
    split = sum(len(placement.homes) > 1 for placement in table.placements.values())
    return figures | {
        "driver_s": statistics.median(of_batch["whole_s"] for of_batch in counted),
        "most_driver_s": max(of_batch["whole_s"] for of_batch in by_batch),
        "first_skew": by_batch[0]["skew"],
        "replans": sum(of_batch["replans"] for of_batch in by_batch),
        "replans_measured": sum(of_batch["replans"] for of_batch in counted),
        "moved_rows": sum(of_batch["moved_rows"] for of_batch in by_batch),
        "routing_entries": len(table.placements),
        "split_keys": split,
    }


_MEDIANS = (
    *("instructions_bytes", "reports_bytes", "manifest_bytes", "skew", "busiest", "stored"),
    "deliveries",
)


def check_nodes(numbers: Sequence[int]) -> None:
    """Raise InvalidRequest for a number of nodes below 1 or too large for the model."""
    for number in numbers:
        if number < 1:
            raise InvalidRequest(f"nodes: expected at least 1, found {number}")
        if number > MOST_NODES:
            raise InvalidRequest(
                f"nodes: expected at most {MOST_NODES:,}, found {number:,}; the reports "
                f"of a batch grow with the square of the nodes"
            )
