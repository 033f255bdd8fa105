"""The options of commands that run a query, and what they mean for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from joinengine.api.option_table import OPTIONS, Option
from joinengine.lab.commands.broker_options import broker_options, cluster_from
from joinengine.lab.commands.generated_options import (
    DURATION,
    MASTER,
    PATH,
    REPORT,
    Command,
    generated_of,
    stream_options,
    with_options,
)
from joinengine.lab.commands.headings import Heading, headed
from joinengine.lab.commands.own_joins import OWN, own_join
from joinengine.lab.commands.sink_options import is_topic
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.errors import InvalidRequest

LAYOUT_HELP = (
    "The layout; `joinengine layouts` lists them. [default: that of the checkpoint, else auto; "
    "for first-story dlb-h]"
)


def query_options(command: Command) -> Command:
    """Options of all commands that run or explain a query."""
    number = "Number of instances of each operator."
    options = [
        headed(Heading.LAYOUT)("--instances", type=int, default=8, show_default=True, help=number),
        stream_options,
        headed(Heading.LAYOUT)(
            "--levels", type=PATH, help="ftlb: file of service levels, TOML or JSON."
        ),
        headed(Heading.GENERATED)(
            "--window",
            type=DURATION,
            help="Greatest time between two matching rows; q5, topk, nexmark-q8: size of windows.",
        ),
        headed(Heading.GENERATED)(
            "--aggregators",
            type=int,
            help="Number of instances that merge partial results. [default: --instances]",
        ),
        headed(Heading.GENERATED)(
            "--merge-every",
            type=int,
            help="Merge partial results after this many batches. [default: 1; naive-bayes and "
            "decision-tree: at the end]",
        ),
        MASTER,
        REPORT,
    ]
    return with_options(options, command)


class _Text(click.ParamType[str]):
    """A text that an option of the engine takes; it stays text, for the writer reads it again."""

    def __init__(self, option: Option) -> None:
        self.name = option.value.words
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what the writer would refuse, before anything runs."""
        try:
            self._option.value.read(value, self._option.flag or "")
        except InvalidRequest as error:
            self.fail(str(error), param, ctx)
        return str(value)


#: Options of the engine that have a flag, by the flag's name in Python.
_FLAGS = {
    option.flag.replace("-", "_"): option for option in OPTIONS.values() if option.flag is not None
}


def engine_options(command: Command, but: str | None = None) -> Command:
    """Options of the table for a command that runs a query, `but` one (joinengine.api.options)."""
    for option in reversed([flag for name, flag in _FLAGS.items() if name != but]):
        names = option.value.names
        command = headed(Heading.ENGINE)(
            f"--{option.flag}",
            type=click.Choice(names) if names else _Text(option),
            metavar=None if names else option.value.metavar,
            help=option.help.replace("`", "")
            + (f" [default: {option.default}]" if option.default else ""),
        )(command)
    return command


#: Options that only generated streams have.
_GENERATED = (
    *("scale", "zipf", "exponents", "seed", "window", "rate", "span", "order", "disorder"),
    *("shift_every", "aggregators", "merge_every", "text", "bins", "classes", "depth"),
)


def asked(query: str | None, settings: dict[str, Any], *, ends: bool = True) -> Any:
    """The query that is asked for: QUERY by its name, or a join of the user's own folders.

    `ends`: no files will be added to the folders. Raises click.UsageError if both or none are
    given, and for options that do not go with the given one.
    """
    from joinengine.lab.queries import find  # noqa: PLC0415

    given = {name: settings[name.replace("-", "_")] for name, _, _ in OWN}
    used = [f"--{name}" for name, value in given.items() if value is not None]
    if query is not None:
        if used:
            raise click.UsageError(
                f"{used[0]} applies to your own folders, but QUERY {query} generates its streams; "
                f"give one of the two"
            )
        return find(query)
    if given["left"] is None or given["right"] is None:
        raise click.UsageError(
            "give a QUERY (`joinengine queries` lists them), or two folders of your own with "
            "--left and --right"
        )
    context = click.get_current_context()
    for name in _GENERATED:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = "zipf" if name == "exponents" else name.replace("_", "-")
            raise click.UsageError(
                f"--{option} applies to the generated streams of a QUERY, not to your own files; "
                f"leave it out"
            )
    if settings.get("source") == "kafka":
        raise click.UsageError(
            "--source applies to a QUERY; for topics of your own write --left kafka:TOPIC"
        )
    return own_join(given, settings, ends=ends)


def check_levels(levels: Path | None, layouts: Iterable[LayoutChoice]) -> None:
    """Raise InvalidRequest if levels are given and none of the layouts takes them."""
    if levels is not None and all(choice.copying is None for choice in layouts):
        raise InvalidRequest(
            f"levels: {levels}: only layout ftlb supports service levels; give --layout ftlb, or "
            f"leave --levels out"
        )


def source_options(command: Command) -> Command:
    """Where a run reads the streams of a QUERY."""
    options = [
        headed(Heading.GENERATED)(
            "--source",
            type=click.Choice(["files", "kafka"]),
            default="files",
            show_default=True,
            help="Read the streams of QUERY from files, or from the topics to which `joinengine "
            "load` has sent them.",
        ),
        *broker_options("The brokers of --source kafka, and of kafka:TOPIC."),
    ]
    return with_options(options, command)


def _cluster(settings: dict[str, Any]) -> Any:
    """The brokers that hold the streams of a query; None: the streams are in files."""
    cluster = cluster_from(settings)
    if settings.get("source") != "kafka":
        if not (cluster is None or settings.get("left") or is_topic(settings.get("sink"))):
            raise click.UsageError(
                "--servers applies to --source kafka or --sink kafka:TOPIC; give one"
            )
        return None
    if cluster is None:
        raise click.UsageError("--source kafka needs the brokers; give --servers HOST:PORT")
    return cluster


def options_of(settings: dict[str, Any], *, layout: str | None, zipf: float | None) -> Any:
    """The options as a query takes them. Raises click.UsageError if two of them set the same."""
    from joinengine.lab.queries.named_query import layout_of  # noqa: PLC0415

    return replace(
        generated_of(settings, zipf=zipf),
        window_us=settings["window"],
        layout=layout_of(layout, settings["levels"]),
        instances=settings["instances"],
        aggregators=settings["aggregators"],
        merge_every=settings["merge_every"],
        cluster=_cluster(settings),
        engine=engine_of(settings),
    )


def engine_of(settings: dict[str, Any]) -> dict[str, str]:
    """The options of the engine among the settings of a command."""
    return {
        option.name: settings[name]
        for name, option in _FLAGS.items()
        if settings.get(name) is not None
    }


def check_file(option: str, path: Path | None) -> None:
    """Refuse a file that cannot be written at the end of a long run."""
    from joinengine.spark.query.query_folders import check_folder  # noqa: PLC0415

    if path is None:
        return
    if path.is_dir():
        raise InvalidRequest(f"{option}: expected a file, found the folder {path}")
    check_folder(path.absolute().parent, option)


def check_files(**paths: Path | None) -> None:
    """Check the files of options, and that the second would not overwrite the first.

    `figure` is a picture, whose suffix says of which kind.
    """
    if (figure := paths.get("figure")) is not None:
        from joinengine.lab.comparison.pictures import check_picture  # noqa: PLC0415

        check_picture(figure)
    known = dict[Path, str]()
    for option, path in paths.items():
        check_file(f"--{option}", path)
        other = None if path is None else known.setdefault(path.absolute(), option)
        if other is not None and other != option:
            raise InvalidRequest(
                f"--{option}: {path} is the file of --{other}, too; give another file"
            )


def split_layouts(text: str) -> list[str]:
    """The layouts of a list; their settings have commas, too.

    >>> split_layouts("auto, mixed:table_limit=300,beta=1.2, hash")
    ['auto', 'mixed:table_limit=300,beta=1.2', 'hash']
    """
    layouts = list[str]()
    for part in (part.strip() for part in text.split(",")):
        if layouts and "=" in part and ":" not in part:
            layouts[-1] += f",{part}"
        elif part:
            layouts.append(part)
    return layouts
