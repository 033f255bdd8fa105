"""Output of commands: results go to stdout, progress to stderr."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from joinengine.model.errors import InvalidRequest
from joinengine.model.spelling import printed_lines

out = Console(soft_wrap=True)
err = Console(soft_wrap=True, file=os.fdopen(os.dup(2), "w", buffering=1))


#: The exit code of a command that Ctrl-C has ended.
INTERRUPTED = 128 + signal.SIGINT
#: The exit code of a command whose results could not be compared, since late rows are missing.
INCOMPLETE = 3


#: More columns of text than any table needs.
_WIDEST = 1000


def tell(line: str, style: str | None = None) -> None:
    """Print a line of the results."""
    out.print(printed_lines(line), style=style, markup=False, highlight=False)


def tell_table(table: Table) -> None:
    """Print a table at its full width: a line that wraps is better than a figure cut off."""
    needed = Measurement.get(out, out.options.update(max_width=_WIDEST), table).maximum
    wide = Console(soft_wrap=True, width=max(out.width, needed), file=out.file)
    wide.print(table, markup=False, highlight=False)


def say(message: str) -> None:
    """Print a line of progress."""
    err.print(printed_lines(message), style="dim", markup=False, highlight=False)


def fail(message: str) -> None:
    """Print the line that says why a command fails."""
    err.print(printed_lines(f"joinengine: {message}"), markup=False, highlight=False)


def write_json(path: Path | None, content: Any) -> None:
    """Write `content` to a file; do nothing if `path` is None."""
    if path is not None:
        with written(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=1, default=str))


@contextmanager
def written(path: Path) -> Iterator[None]:
    """If a file or folder cannot be written in the block, say which and why."""
    try:
        yield
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror or error}") from None
