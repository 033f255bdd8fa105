"""`joinengine simulate --nodes`: how the engine scales over nodes of a stated cluster, modelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table

from joinengine.lab.commands.generated_options import Command, with_options
from joinengine.lab.comparison.tables import figures_table
from joinengine.lab.simulation.planning import Other
from joinengine.lab.simulation.scaling import Machines, check_nodes, measure, modelled
from joinengine.lab.simulation.workload import Workload
from joinengine.layouts.key_based import Hash, Planned
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.speeds import Speed

#: What is simulated if no planner is named.
PLANNERS = ("hash", "mnrt")
#: Defaults of settings that differ under --nodes.
DEFAULTS = {"keys": 100_000, "work_per_tuple": "1 us", "intervals": 8}
#: Options of `simulate` that --nodes does not take.
_OTHERS = (
    *("stream", "key", "time", "every", "rows", "instances", "messages", "choices", "sources"),
    *("skewed_sources", "estimate", "probe_every", "operator", "reasons", "figure"),
)
_OPTIONS = (
    ("--rows-per-node", int, 100_000, "With --nodes: rows per node in each batch."),
    ("--row-bytes", int, 100, "With --nodes: bytes of a row, sent or stored."),
    (
        "--network",
        str,
        "1.25 GB/s, 0.5 ms",
        "With --nodes: bandwidth and latency of a node's network.",
    ),
    (
        "--store",
        str,
        "60 MB/s, 30 ms",
        "With --nodes: bandwidth of a connection to the store, usual time of a write.",
    ),
    ("--tail", float, 3.0, "With --nodes: slowest of a hundred writes, relative to the median."),
    ("--task-start", str, "1.5 ms", "With --nodes: time that Spark's driver needs for a task."),
    ("--task-cost", str, "5 ms", "With --nodes: fixed time that an executor needs for a task."),
)
LEGEND = (
    "All times and rates are modelled, except the driver's time, which was measured here on "
    "simulated tasks.\nskew: rows that the busiest instance receives, divided by the mean. "
    "batch s: the sum of driver, start (of tasks,\nby Spark), network, work (of the busiest "
    "instance) and store. table: keys in the routing table. MB: what tasks\nreport in a batch. KB: "
    "its manifest"
)


def nodes_options(command: Command) -> Command:
    """The options of a modelled cluster."""
    modelled = [
        click.option(name, type=kind, default=default, show_default=True, help=text)
        for name, kind, default, text in _OPTIONS
    ]
    number = click.option(
        "--nodes",
        metavar="N,..",
        help="Model clusters of N nodes, each with one core and one instance: rate, balance, and "
        "time of the driver per batch (docs/cluster.md).",
    )
    return with_options([number, *modelled], command)


def check_without(context: click.Context) -> None:
    """Raise InvalidRequest for an option of a modelled cluster that is given without --nodes."""
    for option, *_ in _OPTIONS:
        name = option.removeprefix("--")
        if context.get_parameter_source(name.replace("-", "_")) is ParameterSource.COMMANDLINE:
            raise InvalidRequest(
                f"{name}: {context.params[name.replace('-', '_')]} applies to a modelled cluster; "
                f"give --nodes 10,100,1000 too, or leave it out"
            )


def numbers_of(text: str) -> list[int]:
    """The numbers of nodes. Raises InvalidRequest for a text that is no list of such."""
    try:
        counts = [int(part.strip().replace("_", "")) for part in text.split(",") if part.strip()]
    except ValueError:
        counts = []
    if not counts:
        raise InvalidRequest(f"nodes: expected whole numbers such as 10,100,1000, found {text!r}")
    check_nodes(counts)
    return counts


def settled(context: click.Context, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a modelled cluster, with its own defaults.

    Raises InvalidRequest for an option that it does not have.
    """
    for name in _OTHERS:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = name.replace("_", "-")
            raise InvalidRequest(
                f"{option}: {settings[name]} is not valid with --nodes; leave out one of the two"
            )
    given = {
        name: value
        for name, value in DEFAULTS.items()
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE
    }
    scale = {name: value for name, value in settings.items() if name not in _OTHERS} | given
    if scale["other"] is None:
        scale["other"] = Other.EVEN.value
    for name in ("window", "intervals"):
        if scale[name] < 1:
            raise InvalidRequest(f"{name}: expected at least 1, found {scale[name]}")
    return scale


def seconds_of(settings: dict[str, Any], option: str) -> float:
    """The duration that an option gives. Raises InvalidRequest if it is below 0."""
    name = option.replace("_", "-")
    seconds = microseconds(settings[option], name) / 1e6
    if seconds < 0:
        raise InvalidRequest(f"{name}: expected a duration of 0 or more, found {settings[option]}")
    return seconds


def machines_of(settings: dict[str, Any]) -> Machines:
    """The stated cluster. Raises InvalidRequest for impossible settings."""
    return Machines(
        work_s=seconds_of(settings, "work_per_tuple"),
        start_s=seconds_of(settings, "task_start"),
        task_s=seconds_of(settings, "task_cost"),
        rows_per_node=settings["rows_per_node"],
        row_bytes=settings["row_bytes"],
        network=Speed.of(settings["network"], "network"),
        store=Speed.of(settings["store"], "store"),
        tail=settings["tail"],
    )


def scaled(
    choices: Sequence[Planned | Hash],
    numbers: Sequence[int],
    workload: Workload,
    machines: Machines,
    settings: dict[str, Any],
    done: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """The figures of every layout on every number of nodes; `done` is called after each."""

    def stream_of(nodes: int) -> Workload:
        return replace(workload, rows=nodes * machines.rows_per_node)

    reports = list[dict[str, Any]]()
    for nodes in numbers:
        for choice in choices:
            measured = measure(
                choice,
                stream_of,
                nodes,
                window=settings["window"],
                batches=settings["intervals"],
                other=Other(settings["other"]),
            )
            reports.append(measured | modelled(machines, measured))
            done()
    return reports


def nodes_table(reports: Sequence[dict[str, Any]]) -> Table:
    """A line for each layout and number of nodes."""
    heads = ("nodes", "layout", "rows/s", "skew", "batch s", "driver", "start", "network", "work")
    columns = (*heads, "store", "table", "MB", "KB")
    table = figures_table(columns, "modelled: a batch by nodes")
    for report in reports:
        seconds = report["seconds"]
        table.add_row(
            *(
                f"{report['nodes']:,}",
                report["layout"],
                _short(report["rows_per_s"]),
                f"{report['skew']:.2f}",
            ),
            f"{report['batch_s']:.2f}",
            *(f"{seconds[part]:.2f}" for part in ("driver", "start", "network", "work", "store")),
            f"{report['routing_entries']:,}",
            f"{report['reports_bytes'] / 1e6:,.1f}",
            f"{report['manifest_bytes'] / 1e3:,.0f}",
        )
    return table


def _short(rate: float) -> str:
    return f"{rate / 1e6:,.2f} M" if rate >= 1e5 else f"{rate:,.0f}"
