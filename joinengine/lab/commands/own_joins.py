"""A join of your own folders or topics: its options, and the `StreamJoin` that they mean."""

from __future__ import annotations

import csv
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

import click

from joinengine.lab.commands.broker_options import cluster_from
from joinengine.lab.commands.generated_options import Command
from joinengine.lab.commands.headings import Heading, headed
from joinengine.lab.commands.sink_options import is_topic
from joinengine.model.conditions import (
    Columns,
    Condition,
    Direction,
    Equi,
    Floats,
    asof,
    band,
    equi,
    theta,
)
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import one_of
from joinengine.model.windows import Window, sliding, tumbling, within
from joinengine.sources.listing import FileOrder

#: Options of a join of your own folders, in the words of `StreamJoin`: name, metavar, help.
#: An option without a metavar is a flag.
OWN = (
    (
        "left",
        "FOLDER",
        "Left side, instead of QUERY: a folder or URL of your own Parquet files; `run` and "
        "`compare` also take kafka:TOPIC.",
    ),
    ("right", "FOLDER", "Right side: a folder or URL of your own Parquet files, or kafka:TOPIC."),
    ("left-schema", "DDL", "Columns of the messages of kafka:TOPIC: id bigint, at timestamp."),
    ("right-schema", "DDL", "The same of the right side."),
    ("on", "A=B,..", "Key columns as left=right; or names alone, if both sides have all of them."),
    (
        "asof",
        "LT,RT",
        "Match each left row with one right row of the keys of --on: the last before it in time.",
    ),
    (
        "direction",
        "DIRECTION",
        "--asof: the last right row before (backward), the first after, or the nearest. [default: "
        "backward]",
    ),
    ("tolerance", "D", "--asof: right rows further away than D do not match."),
    ("strict", None, "--asof: right rows of the same time do not match."),
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
        "window and --asof.",
    ),
    ("max-ahead", "D", "Leave out (and count) rows whose time is more than D ahead of the clock."),
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


def own_options(command: Command) -> Command:
    """Add the options of a join of your own folders."""
    for name, metavar, text in reversed(OWN):
        is_flag = metavar is None
        option = headed(Heading.YOURS)(
            f"--{name}", metavar=metavar, help=text, is_flag=is_flag, default=None
        )
        command = option(command)
    return command


def _side(option: str, given: dict[str, Any], cluster: Any) -> Any:
    """A folder, or a topic."""
    from joinengine.lab.queries.topic_side import PREFIX, topic_side  # noqa: PLC0415
    from joinengine.spark.sources.locations import place  # noqa: PLC0415

    columns = given[f"{option}-schema"]
    if given[option].startswith(PREFIX):
        flag = f"--{option}-schema, such as 'id bigint, at timestamp'"
        return topic_side(option, given[option], cluster, columns, flag)
    if columns is not None:
        raise click.UsageError(f"--{option}-schema applies to kafka:TOPIC; leave it out")
    return place(given[option], option)


def own_join(given: dict[str, Any], settings: dict[str, Any], *, ends: bool) -> Any:
    """The join that options of OWN, `given` by name, mean; `settings`: all options of the command.

    `ends`: no files will be added to the folders. Raises InvalidRequest or click.UsageError for
    options that do not fit, also together.
    """
    from joinengine.lab.queries.user_folders import Folders  # noqa: PLC0415

    cluster = cluster_from(settings)
    sides = {option: _side(option, given, cluster) for option in ("left", "right")}
    has_topic = is_topic(settings.get("sink")) or any(
        hasattr(side, "topic") for side in sides.values()
    )
    if cluster is not None and not has_topic:
        raise click.UsageError("--servers applies to --source kafka and kafka:TOPIC; give one")
    suffixes = None if given["suffixes"] is None else _parts("suffixes", given["suffixes"], "L,R")
    return Folders(
        **sides,
        on=condition_of(given),
        within=_window(given),
        how=given["how"] or "inner",
        where=given["where"],
        left_where=given["left-where"],
        right_where=given["right-where"],
        suffixes=None if suffixes is None else (suffixes[0], suffixes[1]),
        order=one_of(FileOrder, given["file-order"] or FileOrder.MODIFIED, "file-order"),
        ends=ends,
    )


def condition_of(given: dict[str, Any]) -> Condition | Columns:
    """The condition that --on, --band, --theta and --asof mean."""
    _check_as_of(given)
    if given["floats"] is not None and given["on"] is None:
        raise click.UsageError("--floats applies to the keys of --on; give --on, or leave it out")
    if given["theta"] is not None:
        if given["on"] is not None or given["band"] is not None:
            raise click.UsageError(
                "--theta is the whole condition; put the conditions of --on or --band into its SQL"
            )
        return theta(given["theta"])
    equal = None if given["on"] is None else _equal(given["on"], given["floats"])
    if given["asof"] is not None:
        left, right = _parts("asof", given["asof"], "LT,RT")
        return asof(
            left,
            right,
            by=equal,
            direction=given["direction"] or Direction.BACKWARD,
            tolerance=given["tolerance"],
            strict=bool(given["strict"]),
            delay=_delay(given["delay"]),
        )
    if given["band"] is None:
        if equal is None:
            raise click.UsageError(
                "the join has no condition; give --on A=B, --band, --theta or --asof"
            )
        return equal
    left, right, lower, upper = _parts("band", given["band"], "A,B,LOWER,UPPER")
    condition = band(left, right, lower=_bound(lower), upper=_bound(upper))
    return condition if equal is None else replace(condition, equal=equal)


def _check_as_of(given: dict[str, Any]) -> None:
    """Refuse options that do not go with --asof, and options that need it."""
    if given["asof"] is None:
        own = ("direction", "tolerance", "strict")
        if name := next((option for option in own if given[option] is not None), None):
            raise click.UsageError(f"--{name} applies to --asof; give --asof LT,RT too")
        return
    for name in ("band", "theta"):
        if given[name] is not None:
            raise click.UsageError(
                f"--asof and --{name} are both conditions; leave out --{name}, and filter the rows "
                f"of a side with --left-where or --right-where"
            )
    for name in ("within", "tumbling", "sliding"):
        if given[name] is not None:
            raise click.UsageError(
                f"--asof looks for a row of any age, and --{name} is a window; leave out --{name}, "
                f"and bound the distance with --tolerance"
            )
    if given["max-ahead"] is not None:
        raise click.UsageError("--max-ahead applies to windows; leave it out beside --asof")
    _check_delay("asof", given["delay"])


def _equal(text: str, floats: str | None) -> Equi:
    kind = one_of(Floats, floats or Floats.REFUSED, "floats")
    pairs = [part.partition("=") for part in _split(text)]
    if pairs and all(not sign for _, sign, _ in pairs):
        names = [name.strip() for name, _, _ in pairs]
        return Equi(tuple(names), tuple(names), using=True, floats=kind)
    are_named = (left.strip() and right.strip() and "=" not in right for left, _, right in pairs)
    if not pairs or not all(are_named):
        raise InvalidRequest(
            f"on: expected key columns such as user_id=buyer_id or a=b,c=d (beside a=b, k=k), or "
            f"names alone that both sides have, such as k,m; found {text!r}"
        )
    lefts, rights = ([pair[n].strip() for pair in pairs] for n in (0, 2))
    return equi(lefts, rights, floats=kind)


def _window(given: dict[str, Any]) -> Window | None:
    """The window that --within, --tumbling and --sliding mean; None: the full history."""
    kinds = [name for name in ("within", "tumbling", "sliding") if given[name] is not None]
    if given["asof"] is not None:
        return None
    if not kinds:
        if name := next(
            (option for option in ("delay", "max-ahead") if given[option] is not None), None
        ):
            raise click.UsageError(
                f"--{name} applies to windows; give --within, --tumbling or --sliding too"
            )
        return None
    if len(kinds) > 1:
        raise click.UsageError(f"--{kinds[0]} and --{kinds[1]} are both windows; give one")
    _check_delay(kinds[0], given["delay"])
    delay = _delay(given["delay"])
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


def _check_delay(name: str, delay: str | None) -> None:
    if delay is None:
        raise click.UsageError(
            f"--{name} needs --delay, which says how late rows may be. Write for example "
            f"--delay '10 s', or one for each side: --delay '10 s,1 minute'"
        )


def _delay(text: str) -> str | tuple[str, str]:
    """One duration, or that of each side."""
    delays = _split(text)
    if len(delays) not in (1, 2):
        raise InvalidRequest(f"delay: expected D or D,D, found {text!r}")
    return delays[0] if len(delays) == 1 else (delays[0], delays[1])


def _parts(option: str, text: str, form: str) -> list[str]:
    parts = _split(text)
    if len(parts) != len(form.split(",")):
        ends = len(parts) == len(form.split(",")) - 1 and form.endswith(",LOWER,UPPER")
        hint = f". To leave UPPER open, write '{text},'" if ends else ""
        raise InvalidRequest(f"{option}: expected the form {form}, found {text!r}{hint}")
    return parts


def _split(text: str) -> list[str]:
    """The parts between commas; a part that has a comma stands in double quotes."""
    words = " ".join(text.splitlines())
    return [part.strip() for part in next(csv.reader([words], skipinitialspace=True), [])]


def _bound(text: str) -> Any:
    """A bound of a band: a number, a duration, or None where it is empty."""
    for kind in (int, Decimal):
        with suppress(ValueError, ArithmeticError):
            return kind(text)
    return text or None
