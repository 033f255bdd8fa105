"""What the command line asks of a run: the options, and what they mean for a query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from joinengine.layouts import choose
from joinengine.layouts.versions import Moving
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.tpch.arrival import TableOrder

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


def query_options(command: Command) -> Command:
    """Options of all commands that run or explain a query."""
    options = [
        click.option(
            "--instances",
            type=int,
            default=8,
            show_default=True,
            help="Instances of each operator.",
        ),
        click.option(
            "--scale",
            type=float,
            default=0.1,
            show_default=True,
            help="TPC-H scale; 1: all tuples.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of all draws."),
        click.option("--interval-rows", type=int, help="Rows of a batch, of all sources together."),
        click.option("--window", type=DURATION, help="Greatest |right - left time| of a pair."),
        click.option("--rate", type=float, help="Rows per second of event time."),
        click.option(
            "--span", type=DURATION, help="Event time of the stream. [default: 1280s, of q5 1h]"
        ),
        click.option(
            "--order",
            type=click.Choice([one.value for one in TableOrder]),
            default=TableOrder.UNIFORM.value,
            show_default=True,
            help="When the rows of dimension tables come.",
        ),
        click.option(
            "--disorder", type=DURATION, default="0s", help="Greatest random delay of a tuple."
        ),
        click.option(
            "--shift-every", type=DURATION, help="Event time after which other keys are hot."
        ),
        click.option(
            "--aggregators",
            type=int,
            help="Instances that merge partial results. [default: --instances]",
        ),
        click.option(
            "--merge-every",
            type=int,
            default=1,
            show_default=True,
            help="Batches after which partial results are merged.",
        ),
        click.option("--text", type=PATH, help="topk: the words of this file, not generated ones."),
        click.option("--master", default="local[*]", show_default=True, help="Spark master URL."),
        click.option("--json", "json_path", type=PATH, help="Write the report to this file."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def engine_options(command: Command) -> Command:
    """Options of the commands that run a query, about how it is run."""
    options = [
        click.option(
            "--capacity", type=int, help="Rows an instance may hold before its layout grows."
        ),
        click.option(
            "--moves",
            type=click.Choice([one.value for one in Moving]),
            default=Moving.EAGER.value,
            show_default=True,
            help="Whether state follows a new layout, or stays until it expires.",
        ),
        click.option(
            "--work-per-tuple",
            type=DURATION,
            default="0s",
            help="Emulated work for each tuple that an instance receives.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def options_of(settings: dict[str, Any], *, layout: str, zipf: float) -> Any:
    """The options as a query takes them. Raises click.UsageError where two say the same."""
    from joinengine.queries import Options  # noqa: PLC0415

    if settings["rate"] is not None and settings["span"] is not None:
        raise click.UsageError("--rate and --span both say how fast event time goes; give one")
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
        window_us=settings["window"],
        layout=choose(layout),
        instances=settings["instances"],
        **{
            name: settings[name]
            for name in (
                "capacity",
                "moves",
                "work_per_tuple",
                "aggregators",
                "merge_every",
                "text",
            )
            if name in settings
        },
    )
