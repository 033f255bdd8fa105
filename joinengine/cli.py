"""The command line: run, compare, simulate, explain, state, layouts, queries, cache.

Exit codes: 0 success, 2 a request that cannot be served, 1 otherwise (damaged state, a failed
query, results that differ from DuckDB's).
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from joinengine.layouts import LAYOUTS
from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.options import (
    PATH,
    asked,
    check_file,
    engine_options,
    options_of,
    own_options,
    query_options,
)
from joinengine.simulation.command import simulate
from joinengine.tpch.cache import cache, new_log, passing_home

# Results go to stdout, what is going on to stderr.
out = Console(soft_wrap=True)
err = Console(soft_wrap=True, file=os.fdopen(os.dup(2), "w", buffering=1))

#: `\b`: Click keeps the lines as they are.
_EXAMPLES = """\b
Examples:
  joinengine run eq5 --layout mnrt --zipf 1.2 --validate
  joinengine run --left clicks --right purchases --on user_id=buyer_id --validate \\
      --within "clicked_at,bought_at,0 s,1 hour" --delay "5 minutes"
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="joinengine")
def cli() -> None:
    """A stream join for Spark that splits hot keys and rebalances while it runs."""


@cli.command(epilog=_EXAMPLES)
@click.argument("query", required=False)
@own_options
@click.option("--layout", help="See `joinengine layouts`. [default: mnrt; of first-story dlb-h]")
@click.option("--zipf", type=float, default=0.8, show_default=True, help="Skew of foreign keys.")
@click.option("--validate", is_flag=True, help="Compare the results with DuckDB's.")
@click.option(
    "--switch", "switches", multiple=True, metavar="BATCH:LAYOUT", help="Layout from a batch on."
)
@click.option(
    "--resize", "sizes", multiple=True, metavar="BATCH:N", help="Instances from a batch on."
)
@click.option("--out", "out_folder", type=PATH, help="Write the results to this folder.")
@click.option("--checkpoint", type=PATH, help="Folder of the state; a run goes on from it.")
@engine_options
@query_options
def run(
    query: str | None,
    layout: str | None,
    zipf: float,
    validate: bool,
    out_folder: Path | None,
    checkpoint: Path | None,
    json_path: Path | None,
    master: str,
    **settings: Any,
) -> None:
    """Run QUERY over its skewed stream, or join two folders of your own."""
    from joinengine.queries.base import check, relayouts_of  # noqa: PLC0415
    from joinengine.queries.running import Places  # noqa: PLC0415
    from joinengine.spark.places import check_folder  # noqa: PLC0415

    # With a checkpoint a later run may go on with new files: the stream has no end.
    found = asked(query, settings, ends=checkpoint is None)
    options = replace(
        options_of(settings, layout=layout or found.layout, zipf=zipf),
        relayouts=relayouts_of(settings["switches"], settings["sizes"]),
    )
    check(found, options)  # before Spark starts
    for what, folder in (("--out", out_folder), ("--checkpoint", checkpoint)):
        if folder is not None:
            check_folder(folder.absolute(), what)
    check_file("--json", json_path)
    places = Places(out_folder, checkpoint)
    with _session(master) as spark:
        report = _run(spark, found, options, places, validate=validate)
    _print_reports([report])
    _write_json(json_path, report)
    if report["valid"] is False:
        raise JoinEngineError("the results differ from DuckDB's")


@cli.command()
@click.argument("query", required=False)
@own_options
@click.option("--layouts", "names", help="Several: hash,mnrt [default: all that serve QUERY]")
@click.option("--zipf", "exponents", default="0.8", show_default=True, help="Several: 0,0.8,1.5")
@click.option("--validate/--no-validate", default=True, show_default=True)
@click.option("--figure", type=PATH, help="File of the picture. [default: beside the report]")
@engine_options
@query_options
def compare(
    query: str | None,
    names: str | None,
    exponents: str,
    validate: bool,
    figure: Path | None,
    json_path: Path | None,
    master: str,
    **settings: Any,
) -> None:
    """Run QUERY, or a join of your own folders, under several layouts: one table, one picture."""
    from joinengine.queries.base import check  # noqa: PLC0415
    from joinengine.queries.running import Places  # noqa: PLC0415
    from joinengine.reporting.verdicts import verdict  # noqa: PLC0415

    found = asked(query, settings)
    cells = [
        options_of(settings, layout=name, zipf=z)
        for z in (_numbers(exponents) if found.generated else [0.0])
        for name in (_serving(found, settings) if names is None else _names(names))
    ]
    for options in cells:
        check(found, options)
    picture = figure or (json_path or Path(found.name.replace(" ", "-"))).with_suffix(".png")
    check_file("--json", json_path)
    check_file("--figure", picture)
    reports = list[dict[str, Any]]()
    with _session(master) as spark:
        _warm_up(spark, found, cells[0])
        for options in cells:
            reports.append(_run(spark, found, options, Places(), validate=validate))
    _print_reports(reports)
    _write_json(json_path, {"query": found.name, "runs": reports})
    _draw(reports, picture)
    for sentence in verdict(reports):
        out.print(sentence, markup=False, highlight=False)
    if any(report["valid"] is False for report in reports):
        raise JoinEngineError("some results differ from DuckDB's")


@cli.command()
@click.argument("query", required=False)
@own_options
@click.option("--layout", help="See `joinengine layouts`. [default: mnrt; of first-story dlb-h]")
@click.option("--zipf", type=float, default=0.8, show_default=True, help="Skew of foreign keys.")
@query_options
def explain(
    query: str | None,
    layout: str | None,
    zipf: float,
    json_path: Path | None,
    master: str,
    **settings: Any,
) -> None:
    """Show the operators of QUERY or of a join of your own folders, and when a tuple leaves.

    Runs nothing and keeps nothing: of a QUERY's tables a few rows are made in a temporary folder.
    """
    found = asked(query, settings)
    options = options_of(settings, layout=layout or found.layout, zipf=zipf)
    found.stream(options)
    if found.generated:
        # The columns are the same at any scale: look at a small stream.
        small = replace(options, scale=min(0.001, options.scale), interval_rows=None)
        with passing_home() as home:
            recorded = found.stream(small).record(_say)
            plan = found.build(None, recorded, small).explain()
        file = rf"(?:recorded )?{re.escape(str(home))}\S*/(\w+)\.(?:json|parquet)"
        plan = re.sub(file, r"\1, generated", plan)
    else:
        plan = found.build(None, found.stream(options).record(), options).explain()
    out.print(plan, markup=False, highlight=False)
    _write_json(json_path, {"query": found.name, "plan": plan.splitlines()})


@cli.command()
@click.argument("checkpoint", type=PATH)
@click.option("--key", help="Homes and rows of this key; a,b if it has two columns.")
@click.option(
    "--join", "join_number", type=int, default=None, help="Operator of --key. [default: the last]"
)
@click.option("--json", "json_path", type=PATH, help="Write the report to this file.")
def state(
    checkpoint: Path, key: str | None, join_number: int | None, json_path: Path | None
) -> None:
    """Show what a CHECKPOINT holds."""
    from joinengine.reporting.inspection import inspect, inspect_key, state_lines  # noqa: PLC0415

    report = inspect(checkpoint)
    if key is not None:
        report["key"] = inspect_key(checkpoint, key, join_number)
    for line in state_lines(report):
        out.print(line, markup=False, highlight=False)
    _write_json(json_path, report)


@cli.command("layouts")
@click.option("--json", "json_path", type=PATH, help="Write the list to this file.")
def list_layouts(json_path: Path | None) -> None:
    """List the layouts, with their sources."""
    rows = [
        {
            "name": name,
            "summary": f"{choice.summary}; serves {choice.serves()}",
            "source": choice.source,
        }
        for name, choice in LAYOUTS.items()
    ]
    _print_list(rows, json_path)


@cli.command("queries")
@click.option("--json", "json_path", type=PATH, help="Write the list to this file.")
def list_queries(json_path: Path | None) -> None:
    """List the queries, with their sources."""
    from joinengine.queries import QUERIES  # noqa: PLC0415

    rows = [
        {"name": name, "summary": query.summary, "source": query.source}
        for name, query in QUERIES.items()
    ]
    _print_list(rows, json_path)


cli.add_command(simulate)
cli.add_command(cache)


def main() -> None:
    """Run the command line; errors of ours become one line and an exit code."""
    try:
        cli(standalone_mode=True)
    except InvalidRequest as error:
        err.print(f"joinengine: {error}", markup=False, highlight=False)
        sys.exit(2)
    except JoinEngineError as error:
        err.print(f"joinengine: {error}", markup=False, highlight=False)
        sys.exit(1)


def _serving(query: Any, settings: dict[str, Any]) -> list[str]:
    """The layouts that serve a query. Raises what the first one says if none does."""
    from joinengine.queries.base import check  # noqa: PLC0415

    refusals, serving = list[InvalidRequest](), list[str]()
    for name in LAYOUTS:
        try:
            check(query, options_of(settings, layout=name, zipf=0.0))
            serving.append(name)
        except InvalidRequest as refusal:
            refusals.append(refusal)
    if not serving:
        raise refusals[0]
    return serving


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in _names(text)]
    except ValueError:
        raise InvalidRequest(f"zipf: {text!r} is no list of numbers; write 0,0.8,1.5") from None


@contextmanager
def _session(master: str) -> Iterator[Any]:
    from joinengine import session  # noqa: PLC0415

    log = new_log()
    with err.status("starting Spark"), _stderr_to(log):
        spark = session(master=master)
    try:
        yield spark
    except Exception:
        err.print(f"Spark's own log: {log}", style="dim", markup=False, highlight=False)
        raise
    except BaseException:  # Ctrl-C: there is nothing to look up
        log.unlink(missing_ok=True)
        raise
    else:
        log.unlink(missing_ok=True)
    finally:
        spark.stop()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Send stderr to `path` inside, for the JVM and its workers, which write a lot."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _run(spark: Any, query: Any, options: Any, places: Any, *, validate: bool) -> dict[str, Any]:
    from joinengine.queries.running import run as run_query  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(_title(query, options), total=None, rate="")

        def watch(rows: int, total: int, batches: int) -> None:
            elapsed = progress.tasks[0].elapsed or 1.0
            rate = f"{rows / elapsed:,.0f} rows/s, {batches} batches"
            progress.update(task, completed=rows, total=total, rate=rate)

        report = run_query(spark, query, options, places, validate=validate, say=_say, watch=watch)
    return report


def _warm_up(spark: Any, query: Any, options: Any) -> None:
    """Let the first layout of a comparison not pay for the start of the JVM and its workers."""
    from joinengine.queries.running import Places  # noqa: PLC0415
    from joinengine.queries.running import run as run_query  # noqa: PLC0415

    with err.status("warming up"):
        if query.generated:
            small = replace(options, scale=min(0.001, options.scale), interval_rows=1500)
            run_query(spark, query, small, Places())
        else:
            with tempfile.TemporaryDirectory(prefix="joinengine-") as folder:
                run_query(spark, query.head(Path(folder)), options, Places())


def _title(query: Any, options: Any) -> str:
    skew = f" z={options.zipf:g}" if query.generated else ""
    return f"{query.name} {options.layout.label}{skew}"


def _say(message: str) -> None:
    err.print(message, style="dim", markup=False, highlight=False)


def _print_reports(reports: list[dict[str, Any]]) -> None:
    from joinengine.reporting.tables import (  # noqa: PLC0415
        TABLE_WIDTH,
        summary_legend,
        summary_table,
    )

    # A figure that is cut off is worse than a line that wraps.
    out.print(summary_table(reports), width=max(out.width, TABLE_WIDTH))
    for line in summary_legend(reports):
        out.print(line, style="dim", markup=False, highlight=False)


def _draw(reports: list[dict[str, Any]], path: Path) -> None:
    from joinengine.reporting.figures import draw_comparison, draw_loads  # noqa: PLC0415

    several = len({report["zipf"] for report in reports}) > 1
    (draw_comparison if several else draw_loads)(reports, path)
    out.print(f"picture: {path}", markup=False, highlight=False)


def _print_list(rows: list[dict[str, str]], json_path: Path | None) -> None:
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        line = f"{row['name']:{width}}  {row['summary']}  [{row['source']}]"
        out.print(line, markup=False, highlight=False)
    _write_json(json_path, rows)


def _write_json(path: Path | None, content: Any) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1))
