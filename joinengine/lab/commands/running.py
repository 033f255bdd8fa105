"""`joinengine run` and `joinengine compare`."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from joinengine.lab.commands import console, sessions
from joinengine.lab.commands.generated_options import PATH, ZIPF_DEFAULT, ZIPF_HELP
from joinengine.lab.commands.headings import HeadedCommand, Heading, headed
from joinengine.lab.commands.own_joins import own_options
from joinengine.lab.commands.pages import (
    live_option,
    page_path_of_live,
    report_option,
    told_page,
    watched,
)
from joinengine.lab.commands.run_options import (
    LAYOUT_HELP,
    asked,
    check_files,
    check_levels,
    engine_options,
    options_of,
    query_options,
    source_options,
    split_layouts,
)
from joinengine.lab.commands.sink_options import sink_of_run, sink_options
from joinengine.layouts import LAYOUTS
from joinengine.layouts.key_based import WithinLimit
from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.model.texts import counted

#: Spark ends a worker that had nothing to do for a minute.
IDLE_S = 50.0
#: `\b`: Click keeps the lines as they are.
_EXAMPLES = """\b
Examples:
  joinengine run eq5 --layout mnrt --zipf 1.2 --validate
  joinengine run nexmark-q20 --validate
  joinengine run --left clicks --right purchases --on user_id=buyer_id --validate \\
      --within "clicked_at,bought_at,0 s,1 hour" --delay "5 minutes" --sink delta:sales
"""
#: The setting `imbalance` of whichever layouts have it.
_imbalance_option = headed(Heading.LAYOUT)(
    "--imbalance",
    type=float,
    metavar="X",
    help="Setting of every named layout that has it and is not named with its own, as in "
    "mnrt:imbalance=X: a plan is due above (1 + X) times the mean load.",
)


@click.command(cls=HeadedCommand, epilog=_EXAMPLES)
@click.argument("query", required=False)
@own_options
@headed(Heading.LAYOUT)("--layout", help=LAYOUT_HELP)
@_imbalance_option
@headed(Heading.GENERATED)("--zipf", type=float, help=ZIPF_HELP)
@headed(Heading.RESULTS)(
    "--validate",
    is_flag=True,
    help="Compare the results with DuckDB. Exit code 1: they differ; 3: late rows are missing.",
)
@headed(Heading.LAYOUT)(
    "--switch",
    "switches",
    multiple=True,
    metavar="BATCH:LAYOUT",
    help="Change the layout at this batch.",
)
@headed(Heading.LAYOUT)(
    "--resize",
    "sizes",
    multiple=True,
    metavar="BATCH:N",
    help="Change the number of instances at this batch.",
)
@headed(Heading.RESULTS)("--out", "out_folder", type=PATH, help="Write the results to this folder.")
@sink_options
@headed(Heading.STATE)(
    "--checkpoint", type=PATH, help="The folder for the state; the next run continues from it."
)
@headed(Heading.STATE)(
    "--state",
    metavar="URL",
    help="The place for the state: s3://bucket/folder, or a folder that all executors see.",
)
@headed(Heading.LOSSES)(
    "--fail",
    "losses",
    multiple=True,
    metavar="BATCH:INSTANCE[,INSTANCE]",
    help="Make instances lose their state before this batch; needs --layout ftlb or --recovery "
    "store.",
)
@headed(Heading.LOSSES)(
    "--kill",
    "kills",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="BATCH",
    help="Kill an executor before this batch; needs a --master with executors.",
)
@report_option
@live_option
@engine_options
@query_options
@source_options
def run(
    query: str | None,
    layout: str | None,
    zipf: float | None,
    validate: bool,
    out_folder: Path | None,
    checkpoint: Path | None,
    master: str,
    **settings: Any,
) -> None:
    """Run QUERY on a generated, skewed stream, or join two folders of your own.

    QUERY is eq5, bnci, q5, asof, latest, changes, topk, stock, first-story, naive-bayes,
    decision-tree, nexmark-q3, nexmark-q8, nexmark-q9-join, nexmark-q20, nexmark-q23 or skewed-join;
    `joinengine queries` says what each computes.
    """
    from joinengine.lab.queries.named_query import check  # noqa: PLC0415
    from joinengine.lab.queries.runs import CutShort, Places  # noqa: PLC0415
    from joinengine.spark.query.query_folders import check_folder  # noqa: PLC0415
    from joinengine.spark.sources.locations import place  # noqa: PLC0415

    # With a checkpoint a later run may go on with new files: the stream has no end.
    wanted = asked(query, settings, ends=checkpoint is None)
    options = _options_of_run(settings, layout or wanted.layout, zipf, checkpoint)
    check_levels(settings["levels"], options.layouts)
    check(wanted, options)  # before Spark starts
    for what, folder in (("--out", out_folder), ("--checkpoint", checkpoint)):
        if folder is not None:
            check_folder(folder.absolute(), what)
    json_path, page_path, port = (settings[name] for name in ("json_path", "page_path", "port"))
    if port is not None:
        page_path = page_path_of_live(wanted.name, page_path, json_path)
    check_files(json=json_path, report=page_path)
    state = None if settings["state"] is None else place(settings["state"], "--state")
    sink = sink_of_run(settings, wanted, out_folder, checkpoint, validate)
    places = Places(out_folder, checkpoint, state, sink=sink)
    with watched(port) as on_start:
        stopped = False
        try:
            with sessions.started(master) as spark:
                report = sessions.run(
                    spark, wanted, options, places, validate=validate, on_start=on_start
                )
        except CutShort as short:
            stopped, report = True, short.report
            batches = len(report["batches"])
            more = "" if checkpoint is None else ". The same command continues the run"
            console.say(
                f"stopped on Ctrl-C after {counted(batches, 'batch')}; the report covers them{more}"
            )
        _tell(report, settings["sink"] or out_folder)
        console.write_json(json_path, report)
        told_page(page_path, report)
        if stopped:  # no key is waited for
            sys.exit(console.INTERRUPTED)
    if report["valid"] is False:
        raise JoinEngineError("the results differ from DuckDB's")
    if validate and _lacks_rows(report):
        sys.exit(console.INCOMPLETE)


def _options_of_run(
    settings: dict[str, Any], layout: str | None, zipf: float | None, checkpoint: Path | None
) -> Any:
    """The options of one run, with what happens to it at a batch."""
    from joinengine.lab.queries.named_query import (  # noqa: PLC0415
        Events,
        losses_of,
        relayouts_of,
    )

    if settings["imbalance"] is not None and checkpoint is None:  # else it may have another layout
        layout = layout or "auto"
    options = replace(
        options_of(settings, layout=layout, zipf=zipf),
        events=Events(
            relayouts_of(settings["switches"], settings["sizes"], settings["levels"]),
            losses_of(settings["losses"]),
            settings["kills"],
        ),
    )
    (tolerating,) = _tolerating([options], settings["imbalance"])
    return tolerating


def _tell(report: dict[str, Any], out: Path | str | None) -> None:
    _print_reports([report])
    kept = "counted only; use --out FOLDER or --sink to keep them" if out is None else out
    console.tell(f"results: {kept}", style="dim")


def _lacks_rows(report: dict[str, Any]) -> bool:
    """Whether results cannot be compared, since rows were late or ahead of the clock."""
    return report["valid"] is None and bool(report["late_rows"] or report["ahead_rows"])


@click.command(cls=HeadedCommand)
@click.argument("query", required=False)
@own_options
@headed(Heading.LAYOUT)(
    "--layouts",
    "names",
    help="Layouts, such as hash,mnrt:imbalance=0.02. [default: all that support QUERY, "
    "except mixed-bf and readj, whose plans may take minutes]",
)
@_imbalance_option
@headed(Heading.GENERATED)(
    "--zipf", "exponents", help=f"Zipf exponents, such as 0,0.8,1.5. {ZIPF_DEFAULT}"
)
@headed(Heading.RESULTS)(
    "--validate/--no-validate",
    default=True,
    show_default=True,
    help="Compare the results with DuckDB.",
)
@headed(Heading.RESULTS)(
    "--figure",
    type=PATH,
    help="The file for the picture. [default: beside the JSON, else QUERY.png in this folder]",
)
@headed(Heading.STATE)(
    "--state",
    metavar="URL",
    help="The place for the state during each run: s3://bucket/folder, or a folder that all "
    "executors see.",
)
@report_option
@partial(
    engine_options, but="takeover"
)  # its runs have checkpoints of their own, without other drivers
@query_options
@source_options
def compare(
    query: str | None,
    names: str | None,
    exponents: str | None,
    validate: bool,
    figure: Path | None,
    master: str,
    **settings: Any,
) -> None:
    """Run QUERY, or a join of your own data, under several layouts, and compare the runs.

    `joinengine queries` lists the queries.
    """
    from joinengine.lab.comparison import pictures  # noqa: F401, PLC0415 (its package may lack)
    from joinengine.lab.comparison.saved import comparison  # noqa: PLC0415
    from joinengine.lab.queries.named_query import check  # noqa: PLC0415
    from joinengine.spark.sources.locations import place  # noqa: PLC0415

    wanted = asked(query, settings)
    zipfs = [None] if exponents is None else _some("zipf", _numbers(exponents))
    layouts = (
        _serving(wanted, settings) if names is None else _some("layouts", split_layouts(names))
    )
    cells = [options_of(settings, layout=name, zipf=z) for z in zipfs for name in layouts]
    cells = _tolerating(cells, settings["imbalance"])
    check_levels(settings["levels"], [options.layout for options in cells])
    for options in cells:
        check(wanted, options)
    json_path, page_path = settings["json_path"], settings["page_path"]
    picture = figure or (json_path or Path(wanted.name.replace(" ", "-"))).with_suffix(".png")
    check_files(json=json_path, report=page_path, figure=picture)
    state = None if settings["state"] is None else place(settings["state"], "--state")
    reports, stopped = list[dict[str, Any]](), False
    try:
        with sessions.started(master) as spark:
            idle_s = math.inf
            for options in cells:
                if idle_s > IDLE_S:  # Spark has ended its workers while DuckDB compared
                    sessions.warm_up(spark, wanted, options, state)
                begin = time.monotonic()
                with sessions.passing(state) as places:
                    reports.append(sessions.run(spark, wanted, options, places, validate=validate))
                idle_s = time.monotonic() - begin - reports[-1]["elapsed_s"]
    except KeyboardInterrupt:
        if not reports:
            raise
        stopped = True
        console.say(
            f"stopped on Ctrl-C after {len(reports)} of {len(cells)} runs; the report covers them"
        )
    _print_reports(reports)
    compared = comparison(wanted.name, reports)
    console.write_json(json_path, compared)
    _draw(reports, picture)
    for sentence in compared["verdict"]:
        console.tell(sentence)
    told_page(page_path, compared)
    if stopped:
        sys.exit(console.INTERRUPTED)
    if any(report["valid"] is False for report in reports):
        raise JoinEngineError("some results differ from DuckDB's")
    if validate and any(map(_lacks_rows, reports)):
        sys.exit(console.INCOMPLETE)


def _tolerating(cells: list[Any], imbalance: float | None) -> list[Any]:
    """The options with `--imbalance` as a setting of their layouts, where these have it.

    A setting beside the name of a layout wins. Raises InvalidRequest if no layout has it.
    """
    if imbalance is None:
        return cells
    asked_for = [choice for cell in cells for choice in cell.layouts if choice.is_asked]
    if not any(hasattr(choice, "imbalance") for choice in asked_for):
        labels = ", ".join(dict.fromkeys(choice.label for choice in asked_for)) or "no --layout"
        raise InvalidRequest(
            f"imbalance: {imbalance} needs a layout that has this setting, such as auto or mnrt, "
            f"found {labels}"
        )

    def tolerating(choice: Any) -> Any:
        if getattr(choice, "imbalance", None) != WithinLimit.imbalance:  # its own, or none
            return choice
        return replace(choice, imbalance=imbalance)

    def settled(cell: Any) -> Any:
        later = tuple((batch, tolerating(to), n) for batch, to, n in cell.events.relayouts)
        events = replace(cell.events, relayouts=later)
        return replace(cell, layout=tolerating(cell.layout), events=events)

    return list(map(settled, cells))


def _serving(query: Any, settings: dict[str, Any]) -> list[str]:
    """The layouts that serve a query, except those whose plans may take minutes.

    If none does, raises the error of the first one.
    """
    from joinengine.lab.queries.named_query import check  # noqa: PLC0415
    from joinengine.lab.simulation.planner_runs import SLOW  # noqa: PLC0415

    refusals, serving = list[InvalidRequest](), list[str]()
    for name in LAYOUTS:
        if name in SLOW:
            continue
        try:
            check(query, options_of(settings, layout=name, zipf=None))
            serving.append(name)
        except InvalidRequest as refusal:
            refusals.append(refusal)
    if not serving:
        raise refusals[0]
    return serving


def _some(option: str, values: list[Any]) -> list[Any]:
    """The values of a list without repetition. Refuses an empty list: nothing to compare."""
    if values:
        return list(dict.fromkeys(values))
    raise InvalidRequest(f"{option}: the list is empty; name at least one, or leave --{option} out")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InvalidRequest(
            f"zipf: expected a list of numbers such as 0,0.8,1.5, found {text!r}"
        ) from None


def _print_reports(reports: list[dict[str, Any]]) -> None:
    from joinengine.lab.comparison.tables import (  # noqa: PLC0415
        summary_legend,
        summary_table,
    )

    console.tell_table(summary_table(reports))
    for line in summary_legend(reports):
        console.tell(line, style="dim")


def _draw(reports: list[dict[str, Any]], path: Path) -> None:
    from joinengine.lab.comparison.pictures import draw_comparison, draw_loads  # noqa: PLC0415

    several = len({report["zipf"] for report in reports}) > 1
    (draw_comparison if several else draw_loads)(reports, path)
    console.tell(f"picture: {path}")
