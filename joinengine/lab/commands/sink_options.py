"""Where the results of a command go: `--sink`, `--sink-option`, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from joinengine.lab.commands.broker_options import cluster_from
from joinengine.lab.commands.generated_options import Command, with_options
from joinengine.lab.commands.headings import Heading, headed
from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import without_secrets

#: Kind of sink -> the option that gets the text after the colon; None: it takes no such text.
_SINKS = {
    **{"parquet": "path", "delta": "path", "iceberg": "table", "kafka": "topic"},
    **{"console": None, "noop": None},
}
#: Options of a sink that have a flag of their own.
_ELSEWHERE = {
    "checkpointLocation": "--checkpoint",
    "stateLocation": "--state",
    **dict.fromkeys(filter(None, _SINKS.values()), "what follows the colon of --sink"),
}


def sink_options(command: Command, default: str | None = None) -> Command:
    """Add the options for where results go; `default`: the sink if none is given."""
    options = [
        headed(Heading.RESULTS)(
            "--sink",
            default=default,
            show_default=True,
            metavar="KIND[:PLACE]",
            help="parquet:FOLDER, delta:FOLDER, iceberg:TABLE, kafka:TOPIC, console or noop.",
        ),
        headed(Heading.RESULTS)(
            "--sink-option",
            "sink_options",
            multiple=True,
            metavar="NAME=VALUE",
            help="An option of the sink (docs/options.md): catalog.uri=sqlite:///c.db.",
        ),
    ]
    return with_options(options, command)


def sink_of(settings: dict[str, Any]) -> Any:
    """The sink that is asked for, as a SinkPlace; None: no sink is.

    Raises InvalidRequest for an unknown sink or option, and for a place that cannot be written.
    """
    from joinengine.api.options import named  # noqa: PLC0415
    from joinengine.lab.queries.sink_places import SinkPlace, check_sink  # noqa: PLC0415
    from joinengine.spark.sources.locations import place  # noqa: PLC0415

    options = dict[str, str]()
    for name, value in pairs("--sink-option", settings["sink_options"], "NAME=VALUE"):
        options |= named(name, value)
    if taken := next((name for name in options if name in _ELSEWHERE), None):
        raise click.UsageError(f"--sink-option: {taken} is {_ELSEWHERE[taken]}; give it there")
    if settings["sink"] is None:
        if options:
            raise click.UsageError("--sink-option applies to --sink KIND:PLACE; give both")
        return None
    kind, _, where = settings["sink"].partition(":")
    option = _SINKS.get(kind)
    if kind not in _SINKS or bool(where) is not (option is not None):
        raise InvalidRequest(
            f"--sink: expected parquet:FOLDER, delta:FOLDER, iceberg:TABLE, kafka:TOPIC, console "
            f"or noop, found {without_secrets(settings['sink'])}"
        )
    if option is not None:
        options[option] = str(place(where, "--sink")) if option == "path" else where
    servers, cluster = "kafka.bootstrap.servers", cluster_from(settings)
    if kind == "kafka" and servers not in options:
        if cluster is None:
            raise InvalidRequest(
                f"--sink: {settings['sink']} needs the brokers; give --servers HOST:PORT"
            )
        options[servers] = cluster.servers
        options |= {f"kafka.{name}": value for name, value in cluster.options.items()} | options
    sink = SinkPlace(kind, options)
    check_sink(sink)
    return sink


def check_kept(settings: dict[str, Any], checkpoint: Path | None) -> None:
    """Refuse to continue a checkpoint without a sink, which would drop its results.

    `--sink noop` asks for that.
    """
    from joinengine.results.noted import delivered_to  # noqa: PLC0415
    from joinengine.spark.query.query_folders import checkpoint_at  # noqa: PLC0415

    said = click.get_current_context().get_parameter_source("sink")
    if checkpoint is None or said is ParameterSource.COMMANDLINE:
        return
    place = delivered_to(checkpoint_at(str(checkpoint), settings.get("state")))
    if place is not None:
        raise InvalidRequest(
            f"--sink: checkpoint {checkpoint} delivers its results to {place}, and this run would "
            "not; give the same --sink or --out again, or --sink noop to drop new results"
        )


def sink_of_run(
    settings: dict[str, Any], query: Any, out: Path | None, checkpoint: Path | None, validate: bool
) -> Any:
    """The sink of a run of `query`, if one is asked for beside `out`.

    Raises click.UsageError or InvalidRequest if the options do not go together.
    """
    from joinengine.lab.queries.sink_places import check_comparable  # noqa: PLC0415
    from joinengine.spark.query.query_folders import checkpoint_at  # noqa: PLC0415
    from joinengine.state.manifests import batches_of  # noqa: PLC0415

    sink = sink_of(settings)
    if sink is None:
        if out is None:
            check_kept(settings, checkpoint)
        return None
    if out is not None:
        raise click.UsageError("--out and --sink both take the results; give one")
    if query.concludes:
        raise InvalidRequest(
            f"--sink: {query.name} concludes from its results, which a folder must hold; give "
            "--out FOLDER instead"
        )
    if validate:
        kept = None if checkpoint is None else checkpoint_at(str(checkpoint), settings["state"])
        check_comparable(sink, continues=kept is not None and bool(batches_of(kept.manifests)))
    return sink


def is_topic(sink: str | None) -> bool:
    """Whether `--sink` names a topic."""
    return sink is not None and sink.startswith("kafka:")


def pairs(option: str, texts: Sequence[str], form: str) -> list[tuple[str, str]]:
    """(name, value) from each NAME=VALUE. Raises InvalidRequest unless the names differ."""
    parts = [text.partition("=") for text in texts]
    for name, sign, value in parts:
        if not (name.strip() and sign and value.strip()):
            raise InvalidRequest(f"{option}: expected {form}, found {name}{sign}{value}")
    names = [name.strip() for name, _, _ in parts]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"{option}: {double} is given twice; leave one out")
    return [(name.strip(), value.strip()) for name, _, value in parts]
