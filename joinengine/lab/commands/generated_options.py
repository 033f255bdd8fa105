"""The options of the command line for generated streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from joinengine.lab.commands.headings import Heading, headed
from joinengine.lab.tpch.arrival import TableOrder
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest

Command = TypeVar("Command", bound=Callable[..., Any])


class _Duration(click.ParamType[int]):
    """A duration, in microseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Take text such as `180s` or `10 minutes`."""
        try:
            return value if isinstance(value, int) else microseconds(value)
        except InvalidRequest as error:
            self.fail(str(error), param, ctx)


DURATION = _Duration()
PATH = click.Path(path_type=Path)
ZIPF_DEFAULT = "[default: 0.8; Nexmark and skewed-join have hot keys of their own]"
ZIPF_HELP = f"Zipf exponent of foreign keys. {ZIPF_DEFAULT}"


def _check_rows(ctx: click.Context, param: click.Parameter, rows: int | None) -> int | None:
    if rows is not None and rows < 1:
        raise InvalidRequest(f"interval-rows: expected at least 1, found {rows}")
    return rows


#: Options of all commands that run queries.
MASTER = headed(Heading.PLACES)(
    "--master", default="local[*]", show_default=True, help="Spark master URL."
)
REPORT = headed(Heading.RESULTS)(
    "--json", "json_path", type=PATH, help="Write the report to this file."
)
#: What `--interval-rows` is.
ROWS: dict[str, Any] = {
    "type": int,
    "callback": _check_rows,
    "help": "Rows per batch, over all sources.",
}


def stream_options(command: Command) -> Command:
    """Add the options for the generated streams of a query."""
    option = headed(Heading.GENERATED)
    options = [
        option(
            "--scale",
            type=float,
            default=0.1,
            show_default=True,
            help="TPC-H scale factor; 1 is 6 million lineitems, or 10 million events of Nexmark.",
        ),
        option("--seed", type=int, default=0, show_default=True, help="Random seed."),
        option("--interval-rows", **ROWS),
        option("--rate", type=float, help="Rows per second of event time; Nexmark: events."),
        option(
            "--span",
            type=DURATION,
            help="How much event time the stream covers. [default: 1280s, q5 1h, Nexmark by rate]",
        ),
        option(
            "--order",
            type=click.Choice([order.value for order in TableOrder]),
            default=TableOrder.UNIFORM.value,
            show_default=True,
            help="When rows of dimension tables arrive: spread over the stream, first, or last.",
        ),
        option("--disorder", type=DURATION, default="0s", help="Greatest random delay of a row."),
        option(
            "--shift-every",
            type=DURATION,
            help="Change the hot keys each time this much event time has passed.",
        ),
        option(
            "--text",
            type=PATH,
            help="Read the words of topk from this file, instead of generating them.",
        ),
        option("--bins", type=int, help="Bins of a histogram of decision-tree. [default: 64]"),
        option(
            "--classes",
            type=int,
            help="Classes of what naive-bayes and decision-tree learn from. [default: 2]",
        ),
        option(
            "--depth",
            type=int,
            help="Levels of decision-tree, each of which is a run. [default: 3]",
        ),
    ]
    return with_options(options, command)


def with_options(options: list[Any], command: Command) -> Command:
    """Add options to a command, in the order in which its help lists them."""
    for option in reversed(options):
        command = option(command)
    return command


def generated_of(settings: dict[str, Any], *, zipf: float | None) -> Any:
    """The options that make a stream. Raises click.UsageError if two of them set the same."""
    from joinengine.lab.queries.named_query import OWN, Options  # noqa: PLC0415

    if settings["rate"] is not None and settings["span"] is not None:
        raise click.UsageError("--rate and --span both set the pace of event time; give only one")
    return Options(
        scale=settings["scale"],
        zipf=zipf,
        seed=settings["seed"],
        order=settings["order"],
        interval_rows=settings["interval_rows"],
        rate=settings["rate"],
        span_us=settings["span"],
        disorder_us=settings["disorder"],
        shift_us=settings["shift_every"],
        text=settings["text"],
        own={name: settings[name] for name in OWN if settings[name] is not None},
    )
