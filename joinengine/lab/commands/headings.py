"""Options under headings: nobody reads sixty of them from the first to the last."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar

import click
from typing_extensions import override

Function = TypeVar("Function", bound=Callable[..., Any])


class Heading(StrEnum):
    """The headings, in the order in which `--help` has them."""

    YOURS = "Your own data"
    GENERATED = "Generated streams of QUERY"
    LAYOUT = "Layout and instances"
    RESULTS = "Results"
    STATE = "State"
    ENGINE = "The engine (docs/options.md)"
    PLACES = "Spark and Kafka"
    LOSSES = "Losses to try"
    OTHER = "Other options"


class HeadedOption(click.Option):
    """An option that is listed under a heading."""

    def __init__(self, *names: Any, heading: Heading, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.heading = heading


class HeadedCommand(click.Command):
    """A command that lists its options by their headings."""

    @override
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = {heading: list[tuple[str, str]]() for heading in Heading}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if isinstance(option, click.Option) and record is not None:
                sections[getattr(option, "heading", Heading.OTHER)].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class Decorator(Protocol):
    """What adds an option to a command."""

    def __call__(self, function: Function, /) -> Function:
        """The same function; it has the option now."""


def headed(heading: Heading) -> Callable[..., Decorator]:
    """`click.option` for options under a heading."""
    return partial(click.option, cls=HeadedOption, heading=heading)
