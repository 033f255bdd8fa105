"""The command line: its commands, and what becomes of their errors.

Exit codes: 0 success, 2 a request that cannot be served, 1 otherwise (damaged state, a failed
query, a checkpoint that another driver took, results that differ from DuckDB's), 130 after Ctrl-C
(`run` and `compare` report so far).
"""

from __future__ import annotations

import sys
from typing import Any

import click
from typing_extensions import override

from joinengine.lab.commands import console
from joinengine.lab.commands.archiving import archive
from joinengine.lab.commands.loading import load
from joinengine.lab.commands.pages import report
from joinengine.lab.commands.running import compare, run
from joinengine.lab.commands.showing import explain, list_layouts, list_queries, state
from joinengine.lab.commands.starting_out import new
from joinengine.lab.commands.statements import run_statement
from joinengine.lab.simulation.command import simulate
from joinengine.lab.tpch.cache import cache
from joinengine.model.errors import InvalidRequest, JoinEngineError, TakenOver


class _Commands(click.Group):
    """Commands that Ctrl-C ends with one line."""

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


for command in (
    *(run, run_statement, compare, report, load, explain, simulate, state),
    *(list_layouts, list_queries, cache, archive, new),
):
    cli.add_command(command)


def main() -> None:
    """Run the command line; errors of ours become one line and an exit code."""
    try:
        cli(standalone_mode=True)
    except JoinEngineError as error:
        console.fail(str(error))
        refused = isinstance(error, InvalidRequest) and not isinstance(error, TakenOver)
        sys.exit(2 if refused else 1)
