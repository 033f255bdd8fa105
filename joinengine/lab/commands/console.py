"""Where commands write: results go to stdout, what is going on to stderr."""

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
#: That of one whose results could not be compared, since rows are missing that came too late.
INCOMPLETE = 3


#: Columns of text that no table needs.
_WIDEST = 1000


def tell(line: str, style: str | None = None) -> None:
    """A line of the results."""
    out.print(printed_lines(line), style=style, markup=False, highlight=False)


def tell_table(table: Table) -> None:
    """A table as wide as it is: a figure that is cut off is worse than a line that wraps."""
    needed = Measurement.get(out, out.options.update(max_width=_WIDEST), table).maximum
    wide = Console(soft_wrap=True, width=max(out.width, needed), file=out.file)
    wide.print(table, markup=False, highlight=False)


def say(message: str) -> None:
    """A line of what is going on."""
    err.print(printed_lines(message), style="dim", markup=False, highlight=False)


def fail(message: str) -> None:
    """The line that says why a command ends without success."""
    err.print(printed_lines(f"joinengine: {message}"), markup=False, highlight=False)


def write_json(path: Path | None, content: Any) -> None:
    """Write `content` to a file; None: it was not asked for."""
    if path is not None:
        with written(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=1, default=str))


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Say of a file or folder that cannot be written which it is, and why."""
    try:
        yield
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror or error}") from None
