"""`joinengine load`: the streams of a query, sent to Kafka."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from joinengine.lab.commands import console
from joinengine.lab.commands.broker_options import broker_options, cluster_from
from joinengine.lab.commands.generated_options import (
    PATH,
    ZIPF_HELP,
    generated_of,
    stream_options,
    with_options,
)


@click.command()
@click.argument("query")
@partial(with_options, broker_options("Where the brokers are.", required=True))
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Partitions of each topic.",
)
@click.option(
    "--replace", is_flag=True, help="Delete a topic that has other messages, and send all again."
)
@click.option("--zipf", type=float, help=ZIPF_HELP)
@stream_options
@click.option("--json", "json_path", type=PATH, help="Write what was sent to this file.")
def load(
    query: str,
    partitions: int,
    replace: bool,
    zipf: float | None,
    json_path: Path | None,
    **settings: Any,
) -> None:
    """Send the generated streams of QUERY to Kafka: one topic for each table, as JSON.

    `joinengine run QUERY --source kafka`, with the same options, reads the topics.
    """
    from joinengine.lab.queries import find  # noqa: PLC0415
    from joinengine.lab.queries.named_query import check  # noqa: PLC0415
    from joinengine.lab.queries.topics import load as send  # noqa: PLC0415

    named, options = find(query), generated_of(settings, zipf=zipf)
    check(named, options)
    cluster = cluster_from(settings)
    cluster.check_reachable()  # before the stream is made
    recorded = named.stream(options).record(console.say)
    loaded = send(recorded, cluster, partitions, anew=replace, say=console.say)
    for topic, rows in loaded.items():
        console.tell(f"{topic}: {rows:,} rows")
    console.write_json(json_path, {"query": query, "servers": cluster.servers, "topics": loaded})
