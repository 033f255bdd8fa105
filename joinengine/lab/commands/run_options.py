"""What the command line asks of a run: the options, and what they mean for a query."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from joinengine.api.option_table import OPTIONS, Option
from joinengine.lab.commands.generated_options import (
    DURATION,
    PATH,
    Command,
    generated_of,
    stream_options,
    with_options,
)
from joinengine.lab.commands.sink_options import is_topic
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.conditions import Columns, Condition, Equi, Floats, band, equi, theta
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import one_of
from joinengine.model.windows import Window, sliding, tumbling, within
from joinengine.sources.listing import FileOrder

LAYOUT_HELP = (
    "The layout; `joinengine layouts` lists them. [default: that of the checkpoint, else auto; "
    "for first-story dlb-h]"
)


def query_options(command: Command) -> Command:
    """Options of all commands that run or explain a query."""
    number = "Number of instances of each operator."
    options = [
        click.option("--instances", type=int, default=8, show_default=True, help=number),
        stream_options,
        click.option("--levels", type=PATH, help="ftlb: file of service levels, TOML or JSON."),
        click.option(
            "--window",
            type=DURATION,
            help="Greatest time between two matching rows; q5, topk, nexmark-q8: size of windows.",
        ),
        click.option(
            "--aggregators",
            type=int,
            help="Number of instances that merge partial results. [default: --instances]",
        ),
        click.option(
            "--merge-every",
            type=int,
            help="Merge partial results after this many batches. [default: 1; naive-bayes and "
            "decision-tree: at the end]",
        ),
        click.option("--master", default="local[*]", show_default=True, help="Spark master URL."),
        click.option("--json", "json_path", type=PATH, help="Write the report to this file."),
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
_FLAGS = {one.flag.replace("-", "_"): one for one in OPTIONS.values() if one.flag is not None}


def engine_options(command: Command, but: str | None = None) -> Command:
    """Options of the table for a command that runs a query, `but` one (joinengine.api.options)."""
    for option in reversed([one for name, one in _FLAGS.items() if name != but]):
        names = option.value.names
        command = click.option(
            f"--{option.flag}",
            type=click.Choice(names) if names else _Text(option),
            metavar=None if names else option.value.metavar,
            help=option.help.replace("`", "")
            + (f" [default: {option.default}]" if option.default else ""),
        )(command)
    return command


#: Options of a join of one's own folders, in the words of `StreamJoin`: name, metavar, help.
OWN = (
    (
        "left",
        "FOLDER",
        "Left side, instead of QUERY: a folder or URL of your own Parquet files; `run` also takes "
        "kafka:TOPIC.",
    ),
    ("right", "FOLDER", "Right side: a folder or URL of your own Parquet files; or kafka:TOPIC."),
    ("left-schema", "DDL", "Columns of the messages of kafka:TOPIC: id bigint, at timestamp."),
    ("right-schema", "DDL", "The same of the right side."),
    ("on", "A=B,..", "Key columns as left=right. A name alone means that both sides have it."),
    (
        "floats",
        "KIND",
        "Write normalised to allow float keys in --on; they are then compared as in Spark.",
    ),
    ("band", "A,B,LOWER,UPPER", "Match if LOWER <= b - a <= UPPER; an empty bound is open."),
    ("theta", "SQL", "Any predicate over left. and right. columns."),
    ("within", "LT,RT,LOWER,UPPER", "Match if LOWER <= right time - left time <= UPPER."),
    ("tumbling", "LT,RT,SIZE", "Match if both times are in one window of SIZE."),
    ("sliding", "LT,RT,SIZE,SLIDE", "As --tumbling, but a window starts every SLIDE."),
    (
        "delay",
        "D[,D]",
        "How late rows may be: one duration for both sides, or one for each. Required with a "
        "window.",
    ),
    (
        "max-ahead",
        "D",
        "Leave out (and count) rows whose time is more than D ahead of the clock.",
    ),
    ("how", "TYPE", "inner, left, right, full, left_semi or left_anti. [default: inner]"),
    ("where", "SQL", "Another condition on a pair."),
    ("left-where", "SQL", "Predicate that a left row must fulfil to enter the join."),
    ("right-where", "SQL", "Predicate that a right row must fulfil to enter the join."),
    ("suffixes", "L,R", "Suffixes for column names that both sides have, such as _l,_r."),
    (
        "file-order",
        "ORDER",
        "Read files by modification time (modified), by path (name) or by their earliest event "
        "time (time). [default: modified]",
    ),
)
#: Options that only generated streams have.
_GENERATED = (
    *("scale", "zipf", "exponents", "seed", "window", "rate", "span", "order", "disorder"),
    *("shift_every", "aggregators", "merge_every", "text", "bins", "classes", "depth"),
)


def own_options(command: Command) -> Command:
    """Options of a join of one's own folders."""
    for name, metavar, text in reversed(OWN):
        command = click.option(f"--{name}", metavar=metavar, help=text)(command)
    return command


def asked(query: str | None, settings: dict[str, Any], *, ends: bool = True) -> Any:
    """The query that is meant: QUERY by its name, or a join of one's own folders.

    `ends`: nothing will follow the files of the folders. Raises click.UsageError if both or none
    are given, and for options that the one that is given does not have.
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
    return _folders(given, settings, ends=ends)


def _side(option: str, given: dict[str, Any], servers: str | None) -> Any:
    """A folder, or a topic."""
    from joinengine.lab.queries.topic_side import PREFIX, topic_side  # noqa: PLC0415
    from joinengine.spark.sources.locations import place  # noqa: PLC0415

    columns = given[f"{option}-schema"]
    if given[option].startswith(PREFIX):
        flag = f"--{option}-schema, such as 'id bigint, at timestamp'"
        return topic_side(option, given[option], servers, columns, flag)
    if columns is not None:
        raise click.UsageError(f"--{option}-schema applies to kafka:TOPIC; leave it out")
    return place(given[option], option)


def _folders(given: dict[str, Any], settings: dict[str, Any], *, ends: bool) -> Any:
    from joinengine.lab.queries.user_folders import Folders  # noqa: PLC0415

    servers = settings.get("servers")
    sides = {option: _side(option, given, servers) for option in ("left", "right")}
    has_topic = is_topic(settings.get("sink")) or any(
        hasattr(one, "topic") for one in sides.values()
    )
    if servers is not None and not has_topic:
        raise click.UsageError("--servers applies to --source kafka and kafka:TOPIC; give one")
    suffixes = None if given["suffixes"] is None else _parts("suffixes", given["suffixes"], "L,R")
    return Folders(
        **sides,
        on=_condition(given),
        within=_window(given),
        how=given["how"] or "inner",
        where=given["where"],
        left_where=given["left-where"],
        right_where=given["right-where"],
        suffixes=None if suffixes is None else (suffixes[0], suffixes[1]),
        order=one_of(FileOrder, given["file-order"] or FileOrder.MODIFIED, "file-order"),
        ends=ends,
    )


def _condition(given: dict[str, Any]) -> Condition | Columns:
    """What --on, --band and --theta say."""
    if given["floats"] is not None and given["on"] is None:
        raise click.UsageError("--floats applies to the keys of --on; give --on, or leave it out")
    if given["theta"] is not None:
        if given["on"] is not None or given["band"] is not None:
            raise click.UsageError(
                "--theta is the whole condition; put the conditions of --on or --band into its SQL"
            )
        return theta(given["theta"])
    equal = None if given["on"] is None else _equal(given["on"], given["floats"])
    if given["band"] is None:
        if equal is None:
            raise click.UsageError("the join has no condition; give --on A=B, --band or --theta")
        return equal
    left, right, lower, upper = _parts("band", given["band"], "A,B,LOWER,UPPER")
    found = band(left, right, lower=_bound(lower), upper=_bound(upper))
    return found if equal is None else replace(found, equal=equal)


def _equal(text: str, floats: str | None) -> Equi:
    kind = one_of(Floats, floats or Floats.REFUSED, "floats")
    pairs = [part.partition("=") for part in _split(text)]
    if all(not sign for _, sign, _ in pairs):
        names = [name.strip() for name, _, _ in pairs]
        return Equi(tuple(names), tuple(names), using=True, floats=kind)
    if not all(left.strip() and right.strip() and "=" not in right for left, _, right in pairs):
        raise InvalidRequest(
            f"on: expected key columns such as user_id=buyer_id or a=b,c=d, or names that both "
            f"sides have, such as k,m; found {text!r}"
        )
    lefts, rights = ([pair[n].strip() for pair in pairs] for n in (0, 2))
    return equi(lefts, rights, floats=kind)


def _window(given: dict[str, Any]) -> Window | None:
    """What --within, --tumbling and --sliding say; None: the full history."""
    kinds = [name for name in ("within", "tumbling", "sliding") if given[name] is not None]
    if not kinds:
        if name := next((one for one in ("delay", "max-ahead") if given[one] is not None), None):
            raise click.UsageError(
                f"--{name} applies to windows; give --within, --tumbling or --sliding too"
            )
        return None
    if len(kinds) > 1:
        raise click.UsageError(f"--{kinds[0]} and --{kinds[1]} are both windows; give one")
    if given["delay"] is None:
        raise click.UsageError(
            f"--{kinds[0]} needs --delay, which says how late rows may be. Write for example "
            f"--delay '10 s', or one for each side: --delay '10 s,1 minute'"
        )
    delays = _split(given["delay"])
    if len(delays) > len(("left", "right")):
        raise InvalidRequest(f"delay: expected D or D,D, found {given['delay']!r}")
    delay: Any = delays[0] if len(delays) == 1 else (delays[0], delays[1])
    lateness: dict[str, Any] = {"delay": delay, "max_ahead": given["max-ahead"]}
    if kinds == ["within"]:
        left, right, lower, upper = _parts("within", given["within"], "LT,RT,LOWER,UPPER")
        ends: dict[str, Any] = {"lower": lower or None, "upper": upper or None}
        return within(left, right, **lateness, **ends)
    if kinds == ["tumbling"]:
        left, right, size = _parts("tumbling", given["tumbling"], "LT,RT,SIZE")
        return tumbling(left, right, size, **lateness)
    left, right, size, slide = _parts("sliding", given["sliding"], "LT,RT,SIZE,SLIDE")
    return sliding(left, right, size, slide, **lateness)


def _parts(option: str, text: str, form: str) -> list[str]:
    parts = _split(text)
    if len(parts) != len(form.split(",")):
        ends = len(parts) == len(form.split(",")) - 1 and form.endswith(",LOWER,UPPER")
        hint = f". To leave UPPER open, write '{text},'" if ends else ""
        raise InvalidRequest(f"{option}: expected the form {form}, found {text!r}{hint}")
    return parts


def _split(text: str) -> list[str]:
    """The parts between commas; a part that has a comma stands in double quotes."""
    return [part.strip() for part in next(csv.reader([text], skipinitialspace=True), [])]


def _bound(text: str) -> Any:
    """A bound of a band: a number, a duration, or None where it is empty."""
    for kind in (int, Decimal):
        with suppress(ValueError, ArithmeticError):
            return kind(text)
    return text or None


def check_levels(levels: Path | None, layouts: Iterable[LayoutChoice]) -> None:
    """Raise InvalidRequest if levels are given, and no layout has them."""
    if levels is not None and all(one.copying is None for one in layouts):
        raise InvalidRequest(
            f"levels: {levels}: only layout ftlb supports service levels; give --layout ftlb, or "
            f"leave --levels out"
        )


def source_options(command: Command) -> Command:
    """Where a run reads the streams of a QUERY."""
    options = [
        click.option(
            "--source",
            type=click.Choice(["files", "kafka"]),
            default="files",
            show_default=True,
            help="Read the streams of QUERY from files, or from the topics to which `joinengine "
            "load` has sent them.",
        ),
        click.option(
            "--servers",
            metavar="HOST:PORT,..",
            help="The brokers of --source kafka, and of kafka:TOPIC.",
        ),
    ]
    return with_options(options, command)


def _servers(settings: dict[str, Any]) -> str | None:
    """The brokers that hold the streams of a query; None: files do."""
    servers: str | None = settings.get("servers")
    if settings.get("source") != "kafka":
        if not (servers is None or settings.get("left") or is_topic(settings.get("sink"))):
            raise click.UsageError(
                "--servers applies to --source kafka or --sink kafka:TOPIC; give one"
            )
        return None
    if servers is None:
        raise click.UsageError("--source kafka needs the brokers; give --servers HOST:PORT")
    return servers


def options_of(settings: dict[str, Any], *, layout: str | None, zipf: float | None) -> Any:
    """The options as a query takes them. Raises click.UsageError where two say the same."""
    from joinengine.lab.queries.named_query import layout_of  # noqa: PLC0415

    return replace(
        generated_of(settings, zipf=zipf),
        window_us=settings["window"],
        layout=layout_of(layout, settings["levels"]),
        instances=settings["instances"],
        aggregators=settings["aggregators"],
        merge_every=settings["merge_every"],
        servers=_servers(settings),
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
