"""`joinengine sql`: a SELECT in a file, over folders and topics, into a sink."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import IO, Any

import click

from joinengine.lab.commands import console, sessions
from joinengine.lab.commands.broker_options import broker_options, cluster_from
from joinengine.lab.commands.generated_options import MASTER, PATH, REPORT, ROWS, with_options
from joinengine.lab.commands.headings import HeadedCommand, Heading, headed
from joinengine.lab.commands.run_options import check_file, engine_of, engine_options
from joinengine.lab.commands.sink_options import check_kept, is_topic, pairs, sink_of, sink_options
from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import counted

_EXAMPLES = """\b
Examples:
  joinengine sql clicks.sql --source clicks=parquet:clicks --source buys=parquet:purchases \\
      --delay "5 minutes" --sink parquet:joined --checkpoint checkpoint
  joinengine sql clicks.sql --source clicks=kafka:clicks --servers kafka:9092 \\
      --columns "clicks=user_id bigint, clicked_at timestamp" --source buys=table:buys \\
      --sink kafka:matches
"""
_options = [
    click.argument("file", type=click.File("r", encoding="utf-8-sig")),
    headed(Heading.YOURS)(
        "--source",
        "sources",
        multiple=True,
        metavar="NAME=KIND:PLACE",
        help="A stream of the statement: NAME=parquet:FOLDER or NAME=kafka:TOPIC. "
        "NAME=table:FOLDER is read once, before the first batch.",
    ),
    headed(Heading.YOURS)(
        "--columns",
        multiple=True,
        metavar="NAME=DDL",
        help="Columns of the messages of a topic: clicks=id bigint, at timestamp.",
    ),
    *broker_options("The brokers of kafka:TOPIC."),
    headed(Heading.YOURS)(
        "--delay", metavar="D", help="How late rows may be; windows need it. Such as '5 minutes'."
    ),
    headed(Heading.LAYOUT)("--layout", help="The layout of all operators. [default: auto]"),
    headed(Heading.LAYOUT)(
        "--instances", type=int, default=8, show_default=True, help="Instances of each operator."
    ),
    headed(Heading.YOURS)("--interval-rows", **ROWS),
    headed(Heading.STATE)(
        "--checkpoint", type=PATH, help="The folder for the state; the next run continues from it."
    ),
    headed(Heading.RESULTS)(
        "--explain", is_flag=True, help="Show the plan of a statement over folders only."
    ),
    MASTER,
    REPORT,
]


@click.command("sql", cls=HeadedCommand, epilog=_EXAMPLES)
@partial(with_options, [*_options, partial(sink_options, default="console"), engine_options])
def run_statement(
    file: IO[str],
    checkpoint: Path | None,
    explain: bool,
    master: str,
    json_path: Path | None,
    **settings: Any,
) -> None:
    """Run the SELECT in FILE (- for stdin) over your own folders and topics (docs/sql.md).

    The run ends with the data that are there. With --checkpoint, a later run reads what has come
    since; without it, every window closes at the end.
    """
    from joinengine.lab.queries.named_query import Options, layout_of  # noqa: PLC0415
    from joinengine.lab.queries.runs import CutShort, Places  # noqa: PLC0415

    name = Path(file.name).stem.strip("<>") or "sql"
    try:
        text = file.read()
    except UnicodeDecodeError:
        raise InvalidRequest(f"sql: {file.name} is not UTF-8 text; save it as UTF-8") from None
    statement = _statement(name, text, settings, ends=checkpoint is None)
    options = Options(
        layout=layout_of(settings["layout"]),
        instances=settings["instances"],
        interval_rows=settings["interval_rows"],
        engine=engine_of(settings),
    )
    check_kept(settings, checkpoint)
    sink = sink_of(settings)
    check_file("--json", json_path)
    listed = statement.stream(options)  # before Spark starts
    if explain:
        if any(hasattr(side, "topic") for side in statement.sides.values()):
            raise click.UsageError("--explain reads the columns of folders; leave topics out")
        if json_path is not None:
            raise click.UsageError("--json applies to a run; leave it out beside --explain")
        console.tell(statement.build(None, listed.record(), options).explain())
        return
    places = Places(checkpoint=None if checkpoint is None else checkpoint.absolute(), sink=sink)
    stopped = False
    with sessions.started(master) as spark:
        try:
            report = sessions.run(spark, statement, options, places, validate=False)
        except CutShort as short:
            stopped, report = True, short.report
    batches, rows = counted(len(report["batches"]), "batch"), report["output_rows"]
    console.tell(
        f"{counted(report['input_rows'], 'row')} in, {counted(rows, 'row')} out, {batches}, "
        f"{report['late_rows']:,} late; results: {settings['sink']}"
    )
    console.write_json(json_path, report)
    if stopped:
        sys.exit(console.INTERRUPTED)


def _statement(name: str, text: str, settings: dict[str, Any], *, ends: bool) -> Any:
    """The statement over what --source names."""
    from joinengine.lab.queries.folder_side import FolderSide  # noqa: PLC0415
    from joinengine.lab.queries.sql_statement import Statement  # noqa: PLC0415
    from joinengine.lab.queries.topic_side import topic_side  # noqa: PLC0415
    from joinengine.spark.sources.locations import place  # noqa: PLC0415

    cluster = cluster_from(settings)
    columns = dict(pairs("--columns", settings["columns"], "NAME=DDL"))
    sides, tables = dict[str, Any](), dict[str, str]()
    for source, there in pairs("--source", settings["sources"], "NAME=KIND:PLACE"):
        kind, _, where = there.partition(":")
        if kind == "kafka":
            flag = f'--columns "{source}=id bigint, at timestamp"'
            ddl = columns.get(source)
            sides[source] = topic_side(f"source {source}", there, cluster, ddl, flag)
        elif kind == "parquet" and where:
            sides[source] = FolderSide(str(place(where, source)), ends=ends)
        elif kind == "table" and where:
            tables[source] = str(place(where, source))
        else:
            raise InvalidRequest(
                f"--source: expected NAME=parquet:FOLDER, NAME=kafka:TOPIC or NAME=table:FOLDER, "
                f"found {source}={there}"
            )
    for topic in columns:
        if not hasattr(sides.get(topic), "topic"):
            said = f"give --source {topic}=kafka:TOPIC, or leave it out"
            raise click.UsageError(f"--columns: {topic} is no topic; {said}")
    topics = [side for side in sides.values() if hasattr(side, "topic")]
    if cluster is not None and not (topics or is_topic(settings["sink"])):
        raise click.UsageError(
            "--servers applies to NAME=kafka:TOPIC and --sink kafka:TOPIC; give one"
        )
    if not sides:
        raise click.UsageError("give at least one stream: --source NAME=parquet:FOLDER")
    return Statement(name, text, sides, tables, settings["delay"])
