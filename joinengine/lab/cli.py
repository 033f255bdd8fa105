"""The command line: its commands, and how their errors become exit codes.

Exit codes: 0 success, 2 a request that cannot be served, 1 otherwise (damaged state, a failed
query, a checkpoint that another driver took, results that differ from DuckDB's), 130 after Ctrl-C
(`run` and `compare` report so far).
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NamedTuple

import click
from typing_extensions import override

from joinengine.lab.commands import console
from joinengine.model.errors import InvalidRequest, JoinEngineError, TakenOver


class _Home(NamedTuple):
    """The module of a command, and its line in `joinengine --help`."""

    module: str
    name: str
    says: str


#: The commands. A module is loaded when its command is used: loading all of them takes a second.
_HOMES = {
    "run": _Home("commands.running", "run", "Join a generated, skewed stream or your own data."),
    "compare": _Home("commands.running", "compare", "The same under several layouts."),
    "sql": _Home("commands.statements", "run_statement", "Join your own data by a SELECT."),
    "new": _Home("commands.starting_out", "new", "Write a join that runs, with data and a test."),
    "explain": _Home("commands.showing", "explain", "Show what a query would do, without a run."),
    "report": _Home("commands.pages", "report", "Write the page of a run, one HTML file."),
    "simulate": _Home("simulation.command", "simulate", "Try planners on loads of keys."),
    "layouts": _Home("commands.showing", "list_layouts", "List the layouts, or describe one."),
    "queries": _Home("commands.showing", "list_queries", "List the queries that come along."),
    "state": _Home("commands.showing", "state", "Show what a checkpoint holds."),
    "load": _Home("commands.loading", "load", "Send the streams of a query to Kafka."),
    "cache": _Home("tpch.cache", "cache", "List what commands keep between runs, or clear it."),
    "archive": _Home("commands.archiving", "archive", "Make programs here start twice as fast."),
}


class _Commands(click.Group):
    """Commands that Ctrl-C ends with one line."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_HOMES)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = _HOMES.get(cmd_name)
        if home is None:
            return None
        command: click.Command = getattr(import_module(f"joinengine.lab.{home.module}"), home.name)
        return command

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            name = error.command_name
            raise click.exceptions.NoSuchCommand(name, possibilities=_HOMES, ctx=ctx) from None

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, home.says) for name, home in _HOMES.items()])

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            console.fail("stopped on Ctrl-C")
            ctx.exit(console.INTERRUPTED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="joinengine")
def cli() -> None:
    """Join streams on Spark; divide hot keys among workers while the join runs."""


def main() -> None:
    """Run the command line; errors of ours become one line and an exit code."""
    try:
        cli(standalone_mode=True)
    except JoinEngineError as error:
        from joinengine.lab.commands.shell_words import at_a_shell  # noqa: PLC0415 - of options

        console.fail(at_a_shell(str(error)))
        refused = isinstance(error, InvalidRequest) and not isinstance(error, TakenOver)
        sys.exit(2 if refused else 1)
