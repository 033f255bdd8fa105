"""`joinengine simulate`: planners and candidate layouts on one synthetic workload, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from joinengine.layouts import LAYOUTS, choose
from joinengine.layouts.base import LayoutChoice
from joinengine.layouts.key_based import Hash, Planned
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.reporting.reports import made_by
from joinengine.routing.base import BASES
from joinengine.simulation.choosing import METHODS, Estimate, Setting, play
from joinengine.simulation.planning import Served, Sizes, replay
from joinengine.simulation.workload import KeyStream, Shape, StreamFile, Workload, sources_of

out = Console(soft_wrap=True)
PATH = click.Path(path_type=Path)
#: The means of a report -> a cell of the table.
Show = Callable[[dict[str, float]], str]
#: Options that a planner has under the same name.
SETTINGS = ("imbalance", "beta", "table_limit", "sigma", "threshold", "base", "min_gain", "degree")


@click.command()
@click.argument("planners", nargs=-1, required=True, metavar="PLANNER...")
@click.option("--keys", default=10_000, show_default=True, help="How many keys there are.")
@click.option(
    "--zipf",
    default="0.85",
    show_default=True,
    help="Exponent; or exponents in turn, each for some intervals: 0.2:5,1.5:10.",
)
@click.option("--shape", default=Shape.ZIPF.value, show_default=True, help=f"{', '.join(Shape)}.")
@click.option("--stream", type=PATH, help="Parquet, CSV or lines: the keys of a stream of yours.")
@click.option("--column", help="Which column of --stream holds the keys. [default: the first]")
@click.option("--rows", default=1_000_000, show_default=True, help="Tuples an interval.")
@click.option(
    "--fluctuation",
    default=0.0,
    show_default=True,
    help="f: by how many means the load of some instance changes in an interval.",
)
@click.option(
    "--drift",
    default=0.0,
    show_default=True,
    help="Part of the keys whose loads are dealt anew in an interval.",
)
@click.option("--instances", default=15, show_default=True, help="Instances.")
@click.option("--intervals", default=50, show_default=True, help="Intervals.")
@click.option("--window", default=5, show_default=True, help="Intervals that the state lasts.")
@click.option("--imbalance", type=float, help="Tolerance. [default: the planner's own]")
@click.option("--beta", type=float, help="Weight of load in the migration priority.")
@click.option("--table-limit", type=int, help="Entries that a routing table may have.")
@click.option("--degree", type=int, help="Place records of like keys, rounded by 2^degree.")
@click.option("--sigma", type=float, help="Readj: least load of a key that moves, in means.")
@click.option("--threshold", type=float, help="DLB, LPTF: deviation of loads, per cent.")
@click.option("--min-gain", type=float, help="Least gain of a re-plan: means; DLB, LPTF: points.")
@click.option("--base", type=click.Choice(list(BASES)), help="Base function.")
@click.option("--messages", default=1_000_000, show_default=True, help="For candidate layouts.")
@click.option("--choices", default=2, show_default=True, help="Candidates of a key.")
@click.option("--sources", default=1, show_default=True, help="Sources that choose.")
@click.option("--skewed-sources", is_flag=True, help="A skewed second key decides the source.")
@click.option(
    "--estimate",
    type=click.Choice([one.value for one in Estimate]),
    default=Estimate.LOCAL.value,
    show_default=True,
    help="How sources know the loads.",
)
@click.option(
    "--probe-every",
    default=100_000,
    show_default=True,
    help="Messages between two looks at the loads, if probed.",
)
@click.option(
    "--work-per-tuple",
    default="0 s",
    show_default=True,
    metavar="DURATION",
    help="Work of an instance for each delivery: models the rate at saturation, as tuples/s.",
)
@click.option(
    "--operator",
    type=click.Choice([one.value for one in Served]),
    default=Served.JOIN.value,
    show_default=True,
    help="Which deliveries tuples/s counts as work: a join delivers a tuple to all homes or "
    "candidates of its key, an aggregate to the instance that stores it.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of all draws.")
@click.option("--json", "json_path", type=PATH, help="Write the report to this file.")
@click.option("--figure", type=PATH, help="File of the picture. [default: beside the report]")
def simulate(
    planners: tuple[str, ...], json_path: Path | None, figure: Path | None, **settings: Any
) -> None:
    """Replay planners and candidate layouts on synthetic loads, without Spark."""
    stream = _stream(settings)
    named = [(name, _planner(name, settings)) for name in planners]
    for name in ("instances", "intervals", "window", "messages"):
        if settings[name] < 1:
            raise InvalidRequest(f"{name}: {settings[name]} must be at least 1")
    work_s = microseconds(settings["work_per_tuple"], "work-per-tuple") / 1e6
    if work_s < 0:
        raise InvalidRequest(
            f"work-per-tuple: {settings['work_per_tuple']} is negative; use 0 or more"
        )
    sizes = Sizes(
        settings["instances"],
        settings["intervals"],
        settings["window"],
        work_s,
        settings["operator"],
    )
    reports = list[dict[str, Any]]()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=len(named))
        for name, planner in named:
            if planner is None:
                reports.append(_choose(name, stream, settings, work_s))
            else:
                reports.append(replay(planner, stream, sizes))
            progress.advance(task)
    for table in _tables(reports):
        out.print(table)
    picture = figure or (json_path.with_suffix(".png") if json_path else None)
    if picture is not None:
        from joinengine.reporting.figures import draw_simulation  # noqa: PLC0415

        draw_simulation(reports, picture)
        out.print(f"picture: {picture}", markup=False, highlight=False)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        content = {"settings": settings, "runs": reports, "made_by": made_by()}
        json_path.write_text(json.dumps(content, indent=1, default=str))


def _stream(settings: dict[str, Any]) -> KeyStream:
    """The user's stream (`--stream`), or a synthetic one."""
    if settings["stream"] is None:
        given = {f.name: settings[f.name] for f in fields(Workload) if f.name in settings}
        phases = _phases(settings["zipf"])
        return Workload(**given | {"zipf": phases[0][0], "phases": phases})
    for name in ("fluctuation", "drift"):
        if settings[name]:
            raise InvalidRequest(
                f"{name}: {settings[name]} does not go with --stream {settings['stream']}, whose "
                f"loads are what they are; leave out one of the two"
            )
    return StreamFile(settings["stream"], settings["column"], settings["rows"])


def _phases(text: str) -> tuple[tuple[float, int], ...]:
    """(exponent, intervals) in turn: of `0.85`, or of `0.2:5,1.5:10`."""
    try:
        parts = [part.partition(":") for part in text.split(",")]
        return tuple((float(z), int(n) if colon else 1) for z, colon, n in parts)
    except ValueError:
        raise InvalidRequest(
            f"zipf: {text!r} is no exponent; write 0.85, or 0.2:5,1.5:10 for exponents in turn"
        ) from None


def _planner(name: str, settings: dict[str, Any]) -> Planned | Hash | None:
    """The planner of this name, with the settings that it knows; None: a candidate layout."""
    if name in METHODS and name != "hash":
        return None
    if name not in LAYOUTS:
        known = [n for n, c in LAYOUTS.items() if issubclass(c, Planned | Hash)]
        raise InvalidRequest(
            f"planner {name!r} is unknown; choose from {', '.join([*known, *METHODS])}"
        )
    choice: LayoutChoice = choose(name)
    if not isinstance(choice, Planned | Hash):
        raise InvalidRequest(
            f"simulate replays planners of keys, and {name} has none; use joinengine run --layout "
            f"{name}"
        )
    own = {f.name for f in fields(choice)}
    given = {key: settings[key] for key in SETTINGS if key in own and settings[key] is not None}
    return replace(choice, **given)


def _choose(
    name: str, stream: KeyStream, settings: dict[str, Any], work_s: float
) -> dict[str, Any]:
    keys = stream.messages(settings["messages"])
    by_key = settings["skewed_sources"]
    sources = sources_of(len(keys), settings["sources"], by_key=by_key, seed=settings["seed"])
    setting = Setting(
        instances=settings["instances"],
        sources=settings["sources"],
        estimate=settings["estimate"],
        probe_every=settings["probe_every"],
        choices=settings["choices"],
        work_s=work_s,
        operator=settings["operator"],
    )
    return play(name, keys, sources, setting)


def _tables(reports: Sequence[dict[str, Any]]) -> list[Table]:
    """Tables of the planners and of the candidate layouts, if there are any of the kind."""
    tables = list[Table]()
    planners = [report for report in reports if "intervals" in report]
    if planners:
        columns: dict[str, Show] = {
            "before": lambda mean: f"{mean['imbalance_before']:.3f}",
            "after": lambda mean: f"{mean['imbalance_after']:.3f}",
            "migrated": lambda mean: f"{mean['migration_cost']:.4f}",
            "table": lambda mean: f"{mean['table_size']:,.0f}",
            "split": lambda mean: f"{mean['split_keys']:.1f}",
            "probes": lambda mean: f"{mean['probe_copies']:,.0f}",
            "plan ms": lambda mean: f"{1e3 * mean['plan_s']:.1f}",
        }
        table = _table(
            "imbalance before and after, state migrated: means over the intervals",
            ["planner", *columns, "re-plans"],
        )
        for report in planners:
            cells = [show(report["mean"]) for show in columns.values()]
            table.add_row(report["planner"], *cells, str(report["replans"]))
        tables += [table, _costs(planners)]
    choosers = [report for report in reports if "messages" in report]
    if choosers:
        table = _table(
            "candidate layouts",
            ["method", "I(m)", "I(m)/m", "mean I(t)/t", "counters", "replication", "tuples/s"],
        )
        for report in choosers:
            table.add_row(
                report["planner"],
                f"{report['final_imbalance']:,.1f}",
                f"{report['relative_imbalance']:.2e}",
                f"{report['mean_relative_imbalance']:.2e}",
                f"{report['counters']:,}",
                f"{report['replication']:.2f}",
                f"{report['modelled_rows_per_s']:,.0f}" if report["modelled_rows_per_s"] else "-",
            )
        tables.append(table)
    return tables


def _costs(planners: Sequence[dict[str, Any]]) -> Table:
    """The table of what re-plans move, and of the bytes that tasks report."""
    kinds = ("raw", "compact", "two_stage")
    columns = ["planner", "keys moved", "tuples moved", *(f"{kind} kB" for kind in kinds)]
    rated = planners[0]["mean"]["modelled_rows_per_s"] is not None
    table = _table(
        "moved by a re-plan; kB that tasks report in an interval: raw (by key), compact (by "
        "record), two_stage (loads first)"
        + ("; tuples/s at saturation, modelled" if rated else ""),
        [*columns, *(["tuples/s"] if rated else [])],
    )
    for report in planners:
        moved, mean = report["per_replan"], report["mean"]
        table.add_row(
            report["planner"],
            f"{moved['moved_keys'] or 0:,.0f}",
            f"{moved['moved_rows'] or 0:,.0f}",
            *(f"{report['statistics_bytes'][kind] / 1e3:,.1f}" for kind in kinds),
            *([f"{mean['modelled_rows_per_s']:,.0f}"] if rated else []),
        )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, box=None, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table
