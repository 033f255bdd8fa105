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
from joinengine.model.errors import InvalidRequest
from joinengine.reporting.reports import made_by
from joinengine.simulation.choosing import METHODS, Setting, play
from joinengine.simulation.planning import replay
from joinengine.simulation.workload import LOGNORMAL, Workload, sources_of

out = Console(soft_wrap=True)
PATH = click.Path(path_type=Path)
#: Options that a planner has under the same name.
SETTINGS = ("imbalance", "beta", "table_limit", "sigma", "threshold", "base", "min_gain", "degree")


@click.command()
@click.argument("planners", nargs=-1, required=True, metavar="PLANNER...")
@click.option("--keys", default=10_000, show_default=True, help="How many keys there are.")
@click.option("--zipf", default=0.85, show_default=True, help="Exponent of their loads.")
@click.option("--shape", default="zipf", show_default=True, help=f"zipf, {', '.join(LOGNORMAL)}.")
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
@click.option("--base", type=click.Choice(["modulo", "ring"]), help="Base function.")
@click.option("--messages", default=1_000_000, show_default=True, help="For choice layouts.")
@click.option("--choices", default=2, show_default=True, help="Candidates of a key.")
@click.option("--sources", default=1, show_default=True, help="Sources that choose.")
@click.option("--skewed-sources", is_flag=True, help="Messages go to sources by a second key.")
@click.option(
    "--estimate",
    type=click.Choice(["local", "global", "probed"]),
    default="local",
    show_default=True,
    help="How sources know loads.",
)
@click.option("--seed", default=0, show_default=True, help="Of all draws.")
@click.option("--json", "json_path", type=PATH, help="Write the report there.")
@click.option("--figure", type=PATH, help="Where the picture goes. [default: beside the report]")
def simulate(
    planners: tuple[str, ...], json_path: Path | None, figure: Path | None, **settings: Any
) -> None:
    """Replay planners, or choose message by message, on synthetic loads. No Spark."""
    workload = Workload(**{f.name: settings[f.name] for f in fields(Workload)})
    named = [(name, _planner(name, settings)) for name in planners]
    for name in ("instances", "intervals", "window", "messages"):
        if settings[name] < 1:
            raise InvalidRequest(f"{name}: {settings[name]} must be at least 1")
    reports = list[dict[str, Any]]()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=len(named))
        for name, planner in named:
            if planner is None:
                reports.append(_choose(name, workload, settings))
            else:
                sizes = settings["instances"], settings["intervals"], settings["window"]
                reports.append(replay(planner, workload, *sizes))
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
        json_path.write_text(json.dumps(content, indent=1))


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


def _choose(name: str, workload: Workload, settings: dict[str, Any]) -> dict[str, Any]:
    keys = workload.messages(settings["messages"])
    sources = sources_of(keys, settings["sources"], by_key=settings["skewed_sources"])
    setting = Setting(
        instances=settings["instances"],
        sources=settings["sources"],
        estimate=settings["estimate"],
        choices=settings["choices"],
    )
    return play(name, keys, sources, setting)


def _tables(reports: Sequence[dict[str, Any]]) -> list[Table]:
    """One table for the planners and one for the choice methods, of those that there are."""
    tables = list[Table]()
    planners = [report for report in reports if "intervals" in report]
    if planners:
        columns: dict[str, Callable[[dict[str, float]], str]] = {
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
        tables.append(table)
    choosers = [report for report in reports if "messages" in report]
    if choosers:
        table = _table(
            "choices", ["method", "I(m)", "I(m)/m", "mean I(t)/t", "counters", "replication"]
        )
        for report in choosers:
            table.add_row(
                report["planner"],
                f"{report['final_imbalance']:,.1f}",
                f"{report['relative_imbalance']:.2e}",
                f"{report['mean_relative_imbalance']:.2e}",
                f"{report['counters']:,}",
                f"{report['replication']:.2f}",
            )
        tables.append(table)
    return tables


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, box=None, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table
