"""`joinengine simulate`: planners and choice layouts on one synthetic workload, side by side."""

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
from joinengine.simulation.workload import Shape, Stream, StreamFile, Workload, sources_of

out = Console(soft_wrap=True)
PATH = click.Path(path_type=Path)
#: The means of a report -> a cell
Show = Callable[[dict[str, float]], str]
#: Options that a planner has under the same name.
SETTINGS = ("imbalance", "beta", "table_limit", "sigma", "threshold", "base", "min_gain", "degree")


@click.command()
@click.argument("planners", nargs=-1, required=True, metavar="PLANNER...")
@click.option("--keys", default=10_000, show_default=True, help="How many keys there are.")
@click.option("--zipf", default="0.85", show_default=True, help="Exponent; in turn: 0.2:5,1.5:10.")
@click.option("--shape", default=Shape.ZIPF.value, show_default=True, help=f"{', '.join(Shape)}.")
@click.option("--stream", type=PATH, help="Parquet, CSV or lines: the keys of a stream of yours.")
@click.option("--column", help="Which column of --stream holds the keys. [default: the first]")
@click.option("--rows", default=1_000_000, show_default=True, help="Tuples an interval.")
@click.option("--fluctuation", default=0.0, show_default=True, help="f, in means, per interval.")
@click.option("--drift", default=0.0, show_default=True, help="Part of the keys dealt anew.")
@click.option("--instances", default=15, show_default=True, help="Instances.")
@click.option("--intervals", default=50, show_default=True, help="Intervals.")
@click.option("--window", default=5, show_default=True, help="Intervals that the state lasts.")
@click.option("--imbalance", type=float, help="Tolerance; the planner's own if not given.")
@click.option("--beta", type=float, help="Weight of load in the migration priority.")
@click.option("--table-limit", type=int, help="Entries that a routing table may have.")
@click.option("--degree", type=int, help="Place records of like keys, rounded by 2^degree.")
@click.option("--sigma", type=float, help="Readj: least load of a key that moves, in means.")
@click.option("--threshold", type=float, help="DLB, LPTF: deviation of loads, per cent.")
@click.option("--min-gain", type=float, help="What a re-plan must gain.")
@click.option("--base", type=click.Choice(list(BASES)), help="Base function.")
@click.option("--messages", default=1_000_000, show_default=True, help="For choice layouts.")
@click.option("--choices", default=2, show_default=True, help="Candidates of a key.")
@click.option("--sources", default=1, show_default=True, help="Sources that choose.")
@click.option("--skewed-sources", is_flag=True, help="Messages go to sources by a second key.")
@click.option(
    "--estimate",
    type=click.Choice([one.value for one in Estimate]),
    default=Estimate.LOCAL.value,
    show_default=True,
    help="How sources know loads.",
)
@click.option("--probe-every", default=100_000, show_default=True, help="Messages, if probed.")
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
    help="What tuples/s charges: a join delivers a tuple to all homes or candidates of its key, "
    "an aggregate to the instance that stores it.",
)
@click.option("--seed", default=0, show_default=True, help="Of all draws.")
@click.option("--json", "json_path", type=PATH, help="Write the report there.")
@click.option("--figure", type=PATH, help="Where the picture goes. [default: beside the report]")
def simulate(
    planners: tuple[str, ...], json_path: Path | None, figure: Path | None, **settings: Any
) -> None:
    """Replay planners, or choose message by message, on synthetic loads. No Spark."""
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


def _stream(settings: dict[str, Any]) -> Stream:
    """The stream of one's own, or the synthetic one."""
    if settings["stream"] is None:
        given = {f.name: settings[f.name] for f in fields(Workload) if f.name in settings}
        phases = _phases(settings["zipf"])
        return Workload(**given | {"zipf": phases[0][0], "phases": phases})
    for name in ("fluctuation", "drift"):
        if settings[name]:
            raise InvalidRequest(
                f"{name}: a stream of one's own ({settings['stream']}) has its own"
            )
    return StreamFile(settings["stream"], settings["column"], settings["rows"])


def _phases(text: str) -> tuple[tuple[float, int], ...]:
    """`0.85`, or exponents and for how many intervals, in turn: `0.2:5,1.5:10`."""
    try:
        parts = [part.partition(":") for part in text.split(",")]
        return tuple((float(z), int(n) if colon else 1) for z, colon, n in parts)
    except ValueError:
        raise InvalidRequest(
            f"zipf: {text!r} is no exponent; write 0.85, or 0.2:5,1.5:10 for exponents in turn"
        ) from None


def _planner(name: str, settings: dict[str, Any]) -> Planned | Hash | None:
    """The planner of this name with the settings that it has; None: a choice method."""
    if name in METHODS and name != "hash":
        return None
    if name not in LAYOUTS:
        known = [n for n, c in LAYOUTS.items() if issubclass(c, Planned | Hash)]
        raise InvalidRequest(
            f"planner {name!r} is unknown; choose from {', '.join([*known, *METHODS])}"
        )
    choice: LayoutChoice = choose(name)
    if not isinstance(choice, Planned | Hash):
        raise InvalidRequest(f"{name} has no planner of keys to simulate; run it instead")
    own = {f.name for f in fields(choice)}
    given = {key: settings[key] for key in SETTINGS if key in own and settings[key] is not None}
    return replace(choice, **given)


def _choose(name: str, stream: Stream, settings: dict[str, Any], work_s: float) -> dict[str, Any]:
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
    """One table for the planners and one for the choice methods, of those that there are."""
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
            "choices",
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
    """What re-plans move, and what tasks report."""
    kinds = ("raw", "compact", "two_stage")
    columns = ["planner", "keys moved", "tuples moved", *(f"{kind} kB" for kind in kinds)]
    rated = planners[0]["mean"]["modelled_rows_per_s"] is not None
    table = _table(
        "moved by a re-plan; statistics reported in an interval, key by key, in records, and loads "
        "first" + ("; tuples/s at saturation, modelled" if rated else ""),
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
