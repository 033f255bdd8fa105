"""Pages of runs: the file of `--report`, and of `joinengine report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from joinengine.commands import console
from joinengine.model.errors import InvalidRequest
from joinengine.options import PATH, check_file

report_option = click.option(
    "--report", "page_path", type=PATH, help="Write the page of the run to this file, as HTML."
)


@click.command()
@click.argument("source", metavar="RUN.json", type=PATH)
@click.option("--output", "-o", type=PATH, help="The page. [default: RUN.html, beside RUN.json]")
def report(source: Path, output: Path | None) -> None:
    """Make the page of a finished run, one HTML file that needs no network.

    RUN.json is what `run --json`, `compare --json` or `make bench` wrote.
    """
    from joinengine.reporting.saved import read_report  # noqa: PLC0415

    found = read_report(source)
    target = source.with_suffix(".html") if output is None else output
    if target.absolute() == source.absolute():
        raise InvalidRequest(f"-o: {target} is the report itself; name another file")
    check_file("-o", target)
    write_page(target, found)
    console.tell(str(target))


def write_page(path: Path, found: dict[str, Any]) -> None:
    """Write the page of a report, of one run or several."""
    from joinengine.reporting.page import page  # noqa: PLC0415
    from joinengine.reporting.saved import page_content  # noqa: PLC0415

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(page_content(found)), encoding="utf-8")


def told_page(path: Path | None, found: dict[str, Any]) -> None:
    """Write the page, and say where it is; None: it was not asked for."""
    if path is not None:
        write_page(path, found)
        console.tell(f"report: {path}")
