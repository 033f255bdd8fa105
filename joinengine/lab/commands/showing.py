"""The commands that run no query: explain, state, layouts, queries."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

import click

from joinengine.lab.commands import console
from joinengine.lab.commands.generated_options import PATH, ZIPF_HELP
from joinengine.lab.commands.headings import HeadedCommand, Heading, headed
from joinengine.lab.commands.own_joins import own_options
from joinengine.lab.commands.run_options import (
    LAYOUT_HELP,
    asked,
    check_levels,
    options_of,
    query_options,
    source_options,
)
from joinengine.lab.tpch.cache import passing_home
from joinengine.layouts import LAYOUTS, choose
from joinengine.layouts.layout import LayoutChoice
from joinengine.layouts.layout_settings import settings_of
from joinengine.model.errors import InvalidRequest


@click.command(cls=HeadedCommand)
@click.argument("query", required=False)
@own_options
@headed(Heading.LAYOUT)("--layout", help=LAYOUT_HELP)
@headed(Heading.GENERATED)("--zipf", type=float, help=ZIPF_HELP)
@query_options
@source_options
def explain(
    query: str | None,
    layout: str | None,
    zipf: float | None,
    json_path: Path | None,
    master: str,
    **settings: Any,
) -> None:
    """Show the operators of QUERY or of a join of your own folders, and when rows leave the state.

    The command does not run the query. For a QUERY it generates a few rows in a temporary folder.
    """
    from joinengine.lab.queries.named_query import check  # noqa: PLC0415

    _refuse_topics(settings)
    wanted = asked(query, settings)
    options = options_of(settings, layout=layout or wanted.layout, zipf=zipf)
    check_levels(settings["levels"], [options.layout])
    check(wanted, options)
    if wanted.generated:
        # The columns are the same at any scale: look at a small stream.
        small = replace(options, scale=min(0.001, options.scale), interval_rows=None)
        with passing_home() as home:
            recorded = wanted.stream(small).record(console.say)
            plan = wanted.build(None, recorded, small).explain()
        file = rf"(?:recorded )?{re.escape(str(home))}\S*/(\w+)\.(?:json|parquet)"
        plan = re.sub(file, r"\1, generated", plan)
    else:
        plan = wanted.build(None, wanted.stream(options).record(), options).explain()
    console.tell(plan)
    console.write_json(json_path, {"query": wanted.name, "plan": plan.splitlines()})


def _refuse_topics(settings: dict[str, Any]) -> None:
    from joinengine.lab.queries.topic_side import PREFIX  # noqa: PLC0415

    sides = [settings["left"] or "", settings["right"] or ""]
    asks = settings["source"] == "kafka" or settings["servers"] is not None
    if asks or any(side.startswith(PREFIX) for side in sides):
        raise InvalidRequest(
            "source: explain reads no topics, as it starts no Spark, which knows their columns; "
            "leave --source and --servers out, since a QUERY has the same operators over them, or "
            "call explain() of a running query"
        )


@click.command()
@click.argument("checkpoint")
@click.option("--key", help="Show the homes and rows of this key; a,b for two columns.")
@click.option(
    "--join",
    "join_number",
    type=int,
    default=None,
    help="The operator for --key. [default: the last]",
)
@click.option("--json", "json_path", type=PATH, help="Write the report to this file.")
def state(
    checkpoint: str, key: str | None, join_number: int | None, json_path: Path | None
) -> None:
    """Show the contents of CHECKPOINT, a folder or a URL of an object store."""
    from joinengine.lab.commands.inspection import inspect, inspect_key, state_lines  # noqa: PLC0415

    if key is None and join_number is not None:
        raise InvalidRequest("--join names the operator for --key; give --key too")
    report = inspect(checkpoint)
    if key is not None:
        report["key"] = inspect_key(checkpoint, key, join_number)
    for line in state_lines(report):
        console.tell(line)
    console.write_json(json_path, report)


#: The width of a table of settings, in characters.
_WIDE = 100
#: A space at which no line is broken.
_KEPT = "\u00a0"
#: Layouts that are listed before the others.
_FIRST = ("auto", "hash", "dynamic")


@click.command("layouts")
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--json", "json_path", type=PATH, help="Write the list to this file.")
def list_layouts(name: str | None, json_path: Path | None) -> None:
    """List the layouts, with their sources; with NAME, what one layout is and its settings.

    The source of a setting is a paper, by the names of docs/layouts.md, or `ours`.
    """
    if name is not None:
        _print_layout(choose(name), json_path)
        return
    rows = [
        {
            "name": name,
            "summary": f"{choice.summary}; serves {served(choice())}",
            "source": choice.source,
        }
        for name, choice in sorted(LAYOUTS.items(), key=lambda named: named[0] not in _FIRST)
    ]
    _print_list(rows, json_path)


def _print_layout(choice: LayoutChoice, json_path: Path | None) -> None:
    settings = settings_of(choice)
    console.tell(f"{choice.label}: {choice.summary}; serves {served(choice)}  [{choice.source}]")
    console.tell("")
    if not settings:
        console.tell("It has no settings.")
    else:
        first = settings[0]
        console.tell(f"Settings, such as {choice.name}:{first.name}={first.default}:")
        names, defaults = (max(len(setting[at]) for setting in settings) for at in (0, 1))
        for setting in settings:
            head = f"  {setting.name:{names}}  {setting.default:{defaults}}  "
            whole = f"[{setting.source}]".replace(" ", _KEPT)  # a source is not broken
            values = f" ({setting.values})" if setting.values else ""
            lines = fill(
                f"{setting.meaning}{values} {whole}",
                _WIDE,
                initial_indent=head,
                subsequent_indent=" " * len(head),
            )
            console.tell(lines.replace(_KEPT, " "))
    about = {"name": choice.name, "summary": choice.summary, "source": choice.source}
    console.write_json(json_path, about | {"settings": [setting._asdict() for setting in settings]})


def served(choice: LayoutChoice) -> str:
    """Which joins a layout serves, in words."""
    kinds = {"theta": choice.serves_theta, "as-of": choice.meets_all, "multiway": choice.meets_all}
    *most, last = ["equi", "band", *(kind for kind, served in kinds.items() if served)]
    joins = f"{', '.join(most)} and {last}"
    return f"{joins}; aggregates" if choice.serves_aggregates else joins


@click.command("queries")
@click.option("--json", "json_path", type=PATH, help="Write the list to this file.")
def list_queries(json_path: Path | None) -> None:
    """List the queries, with their sources."""
    from joinengine.lab.queries import QUERIES  # noqa: PLC0415

    rows = [
        {"name": name, "summary": query.summary, "source": query.source}
        for name, query in QUERIES.items()
    ]
    _print_list(rows, json_path)


def _print_list(rows: list[dict[str, str]], json_path: Path | None) -> None:
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        line = f"{row['name']:{width}}  {row['summary']}  [{row['source']}]"
        console.tell(line)
    console.write_json(json_path, rows)
