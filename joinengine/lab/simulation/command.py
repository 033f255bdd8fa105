"""`joinengine simulate`: planners and candidate layouts side by side, on one workload.

The workload is synthetic, or a stream of the user's own (`--stream`): then the command also says
which keys are hot, and which layout to take.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from joinengine.lab.commands import console
from joinengine.lab.commands.generated_options import PATH
from joinengine.lab.commands.run_options import check_files
from joinengine.lab.comparison.provenance import made_by
from joinengine.lab.simulation import nodes
from joinengine.lab.simulation.asked_streams import stream_of, workload_of
from joinengine.lab.simulation.candidate_layouts import METHODS, Estimate
from joinengine.lab.simulation.key_files import StreamFile
from joinengine.lab.simulation.nodes import nodes_options
from joinengine.lab.simulation.planner_runs import SLOW, simulate_each
from joinengine.lab.simulation.planning import Other, Served, Sizes
from joinengine.lab.simulation.simulation_tables import tables, tell_stream
from joinengine.lab.simulation.workload import Shape
from joinengine.layouts import LAYOUTS, Pkg, choose
from joinengine.layouts.key_based import Hash, Planned
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.conditions import equi
from joinengine.model.errors import InvalidRequest
from joinengine.routing.base_functions import BASES

#: Options that a planner has under the same name.
SETTINGS = ("imbalance", "beta", "table_limit", "sigma", "threshold", "base", "min_gain", "degree")
#: Options that candidate layouts alone have.
OF_CANDIDATES = ("messages", "choices", "sources", "skewed_sources", "estimate", "probe_every")


@click.command()
@click.argument("planners", nargs=-1, metavar="[PLANNER]...")
@click.option("--keys", default=10_000, show_default=True, help="Number of keys.")
@click.option(
    "--zipf",
    default="0.85",
    show_default=True,
    help="Zipf exponent; or several in turn, each for some intervals: 0.2:5,1.5:10.",
)
@click.option(
    "--shape",
    default=Shape.ZIPF.value,
    show_default=True,
    help=f"Distribution of keys: {', '.join(Shape)}.",
)
@click.option(
    "--stream",
    type=PATH,
    help="Your own stream: a folder or file of Parquet, CSV or JSON, or a file of lines.",
)
@click.option(
    "--key", "--column", help="Key columns of --stream: A or A,B,.. [default: the first column]"
)
@click.option("--time", help="Event time of --stream, for intervals by time. [default: by rows]")
@click.option(
    "--every",
    metavar="DURATION",
    help="Length of an interval of --time. [default: 1/50 of the stream]",
)
@click.option(
    "--rows", type=int, help="Rows per interval. [default: 1,000,000; for --stream 1/50 of it]"
)
@click.option(
    "--fluctuation",
    default=0.0,
    show_default=True,
    help="Greatest change of an instance's load in an interval, as a multiple of the mean load.",
)
@click.option(
    "--drift",
    default=0.0,
    show_default=True,
    help="Part of the keys whose loads change in each interval.",
)
@click.option("--instances", default=8, show_default=True, help="Number of instances.")
@click.option("--intervals", type=int, help="Number of intervals. [default: 50; for --stream all]")
@click.option(
    "--window", default=5, show_default=True, help="Number of intervals for which state is kept."
)
@click.option(
    "--imbalance", type=float, help="Tolerance of planners. [default: each planner's own]"
)
@click.option("--beta", type=float, help="Weight of load in the migration priority.")
@click.option("--table-limit", type=int, help="Most entries of a routing table.")
@click.option("--degree", type=int, help="Place similar keys together, rounded to 2^degree.")
@click.option("--sigma", type=float, help="Readj: least load of a key that moves, in mean loads.")
@click.option(
    "--threshold", type=float, help="DLB, LPTF: tolerated deviation of loads, in percent."
)
@click.option(
    "--min-gain",
    type=float,
    help="Smallest gain for which a planner re-plans, as a multiple of the mean load (DLB, LPTF: "
    "percentage points).",
)
@click.option(
    "--base", type=click.Choice(list(BASES)), help="Function that gives each key its base home."
)
@click.option(
    "--messages",
    type=int,
    help="Rows that candidate layouts place, one by one. [default: 1,000,000; for --stream "
    "200,000]",
)
@click.option("--choices", default=2, show_default=True, help="Candidates per key.")
@click.option("--sources", default=1, show_default=True, help="Sources that choose candidates.")
@click.option("--skewed-sources", is_flag=True, help="Choose the source by a skewed second key.")
@click.option(
    "--estimate",
    type=click.Choice([member.value for member in Estimate]),
    default=Estimate.LOCAL.value,
    show_default=True,
    help="How sources learn the loads of instances.",
)
@click.option(
    "--probe-every",
    default=100_000,
    show_default=True,
    help="Rows between two probes of the loads, for --estimate probed.",
)
@click.option(
    "--work-per-tuple",
    default="0 s",
    show_default=True,
    metavar="DURATION",
    help="Work of an instance for each delivery, from which tuples/s at saturation is modelled.",
)
@click.option(
    "--operator",
    type=click.Choice([member.value for member in Served]),
    default=Served.JOIN.value,
    show_default=True,
    help="Operator that is modelled: a join delivers a row to all homes or candidates of its key, "
    "an aggregate to one instance.",
)
@click.option(
    "--other",
    type=click.Choice([member.value for member in Other]),
    help="Keys of the other stream: the same hot keys (same), or all equally often (even). "
    "[default: same; for --stream even]",
)
@click.option("--reasons", is_flag=True, help="Show why each planner re-planned.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed."
)
@click.option(
    "--budget",
    default="60 s",
    show_default=True,
    metavar="DURATION",
    help="Time limit for each planner.",
)
@nodes_options
@click.option("--json", "json_path", type=PATH, help="Write the report to this file.")
@click.option(
    "--figure", type=PATH, help="Write the picture to this file. [default: beside the report]"
)
def simulate(
    planners: tuple[str, ...], json_path: Path | None, figure: Path | None, **settings: Any
) -> None:
    """Simulate planners and candidate layouts on loads of keys, without Spark.

    With --stream, the command shows which keys of your stream are hot, what each layout would do
    with them, and which layout to use. Planners that are slow on many keys (mixed-bf, readj) run
    only if you name them. With --nodes, it models how joinengine scales over a cluster.
    """
    context = click.get_current_context()
    if settings["nodes"] is not None:
        check_files(json=json_path)
        _simulate_nodes(planners, nodes.settled(context, settings), json_path)
        return
    nodes.check_without(context)
    picture = figure or (None if json_path is None else json_path.with_suffix(".png"))
    check_files(json=json_path, figure=picture)
    stream = stream_of(settings)
    own = stream if isinstance(stream, StreamFile) else None
    alone = settings["instances"] == 1
    named = [(name, _planner(name, settings)) for name in _names(planners, own, alone=alone)]
    _check_taken(settings, named)
    _settle(settings, own)
    sizes = Sizes(
        settings["instances"],
        settings["intervals"],
        settings["window"],
        nodes.seconds_of(settings, "work_per_tuple"),
        settings["operator"],
        settings["reasons"],
        settings["other"] or Other.SAME,
    )
    reports, stopped, is_cut = simulate_each(named, stream, sizes, settings)
    content = {"settings": settings, "runs": reports, "stopped": stopped, "made_by": made_by()}
    if own is not None:
        content |= tell_stream(own, reports, stopped, sizes, _print)
    if planners:
        for table, legend in tables(reports):
            _print(table)
            console.tell(legend, style="dim")
    for report in reports:
        for interval, reason in report.get("reasons", {}).items():
            _print(f"{report['planner']}, interval {interval}: {reason}")
    console.write_json(json_path, content)
    if picture is not None:
        from joinengine.lab.comparison.pictures import draw_simulation  # noqa: PLC0415

        draw_simulation(reports, picture)
        _print(f"picture: {picture}")
    if is_cut:
        sys.exit(console.INTERRUPTED)


def _simulate_nodes(
    planners: tuple[str, ...], settings: dict[str, Any], json_path: Path | None
) -> None:
    """Say how the engine scales with nodes, and write the report."""
    numbers = nodes.numbers_of(str(settings["nodes"]))
    choices = list[Planned | Hash]()
    for name in planners or nodes.PLANNERS:
        choice = _planner(name, settings)
        if choice is None:
            raise InvalidRequest(
                f"planner: --nodes needs layouts with a planner, such as hash or mnrt, found "
                f"{name!r}"
            )
        choices.append(choice)
    _check_taken(settings, [(choice.label, choice) for choice in choices])
    machines = nodes.machines_of(settings)
    workload = workload_of(settings | {"rows": 1})
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=len(numbers) * len(choices))
        reports = nodes.scaled(
            choices, numbers, workload, machines, settings, lambda: progress.advance(task)
        )
    _print(nodes.nodes_table(reports))
    console.tell(nodes.LEGEND, style="dim")
    content = {"settings": settings, "nodes": reports, "made_by": made_by()}
    console.write_json(json_path, content)


def _names(planners: tuple[str, ...], own: StreamFile | None, *, alone: bool) -> tuple[str, ...]:
    """The planners that are named; for a stream of the user's own `hash`, and all but slow ones.

    `alone`: there is one instance.
    """
    if own is not None:  # the advice compares with `hash`
        fast = [name for name in _simulated() if name not in SLOW]
        if alone:  # its backups need another one
            fast.remove("ftlb")
        return tuple(dict.fromkeys(["hash", *(planners or fast)]))
    if not planners:
        raise click.UsageError(
            f"give one or more PLANNERs, of {', '.join(_simulated())}; or give --stream FOLDER"
        )
    return planners


def _check_taken(
    settings: dict[str, Any], named: Sequence[tuple[str, Planned | Hash | None]]
) -> None:
    """Raise InvalidRequest for a setting that is given, and that none of the layouts has."""
    source_of, planners = click.get_current_context().get_parameter_source, dict(named).values()
    for key in (*SETTINGS, *OF_CANDIDATES):
        is_taken = (
            None in planners if key in OF_CANDIDATES else any(hasattr(p, key) for p in planners)
        )
        if source_of(key) is ParameterSource.COMMANDLINE and not is_taken:
            raise InvalidRequest(
                f"{key.replace('_', '-')}: {settings[key]} applies to none of "
                f"{', '.join(name for name, _ in named)}; leave it out, or name a layout that has "
                f"this setting"
            )


def _settle(settings: dict[str, Any], own: StreamFile | None) -> None:
    """Give settings their defaults that depend on the stream, and refuse sizes that cannot be."""
    if own is not None and not own.length:
        what = ", ".join(own.columns)
        raise InvalidRequest(f"stream: no row of {own.path} has a key in {what}")
    if settings["intervals"] is None:
        settings["intervals"] = 50 if own is None else own.length
    if settings["messages"] is None:
        settings["messages"] = 1_000_000 if own is None else 200_000
    if settings["operator"] == Served.AGGREGATE:
        if settings["other"] is not None:
            raise InvalidRequest(
                f"other: {settings['other']} applies to a join, and --operator aggregate has one "
                f"stream; leave out one of the two"
            )
    elif settings["other"] is None:
        settings["other"] = Other.SAME if own is None else Other.EVEN
    for name in ("instances", "intervals", "window", "messages"):
        if settings[name] < 1:
            raise InvalidRequest(f"{name}: expected at least 1, found {settings[name]}")
    if settings["choices"] > max(settings["instances"], Pkg.choices):
        raise InvalidRequest(
            f"choices: expected at most the number of instances, {settings['instances']}, found "
            f"{settings['choices']}"
        )


def _print(what: Any) -> None:
    (console.tell_table if isinstance(what, Table) else console.tell)(what)


def _simulated() -> list[str]:
    """The layouts that can be simulated: those with a planner of keys, and those of candidates."""
    return [
        name
        for name, choice in LAYOUTS.items()
        if issubclass(choice, Planned | Hash) or name in METHODS
    ]


def _planner(name: str, settings: dict[str, Any]) -> Planned | Hash | None:
    """The planner of this name, with the settings that it knows; None: a candidate layout."""
    family = name.partition(":")[0]
    if family in METHODS and family != "hash":
        if family != name:
            raise InvalidRequest(
                f"planner: simulate gives {family} no settings, found {name!r}; joinengine run does"
            )
        return None
    if family not in LAYOUTS and not family.startswith("bi-"):
        known = [n for n in _simulated() if n not in METHODS]
        raise InvalidRequest(
            f"planner: expected one of {', '.join([*known, *METHODS])}, found {name!r}"
        )
    choice: LayoutChoice = choose(name)
    if not isinstance(choice, Planned | Hash):
        raise InvalidRequest(
            f"planner: simulate needs a planner of keys, which {name} lacks; use joinengine run "
            f"--layout {name}"
        )
    # What stands beside a name counts for this planner, an option for the others.
    free = {f.name for f in fields(choice) if getattr(choice, f.name) == f.default}
    given = {key: settings[key] for key in SETTINGS if key in free and settings[key] is not None}
    made = replace(choice, **given)
    if "instances" in settings:  # of a modelled cluster there are several numbers
        made.check(equi("key", "key"), settings["instances"])
    return made
