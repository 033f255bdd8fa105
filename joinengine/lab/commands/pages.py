"""Pages of runs: the file of `--report` and `joinengine report`, and the live page of `--live`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from joinengine.lab.commands import console
from joinengine.lab.commands.generated_options import PATH, Command
from joinengine.lab.commands.headings import Heading, headed
from joinengine.lab.commands.run_options import check_file
from joinengine.model.errors import InvalidRequest

#: Called with the query as soon as it runs.
OnStart = Callable[[Any], None]
_GREATEST_PORT = 65_535


class _Port(click.ParamType[int]):
    """A port of this machine; 0: any free one."""

    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Take a number that a port may have."""
        text = str(value)
        if not (text.isascii() and text.isdigit() and int(text) <= _GREATEST_PORT):
            self.fail(
                f"expected a port from 0 to {_GREATEST_PORT}, found {text!r}. For --live without a "
                f"port, write it last",
                param,
                ctx,
            )
        return int(text)


report_option = headed(Heading.RESULTS)(
    "--report", "page_path", type=PATH, help="Write an HTML page of the run to this file."
)


def live_option(command: Command) -> Command:
    """`--live`, alone or with a port."""
    return headed(Heading.RESULTS)(
        "--live",
        "port",
        is_flag=False,
        flag_value=0,
        default=None,
        type=_Port(),
        metavar="[PORT]",
        help="Show the running query in a browser, and write its page at the end.",
    )(command)


@click.command()
@click.argument("source", metavar="RUN.json", type=PATH)
@click.option(
    "--output", "-o", type=PATH, help="The file for the page. [default: RUN.html, beside RUN.json]"
)
def report(source: Path, output: Path | None) -> None:
    """Write the page of a finished run: one HTML file that needs no network.

    RUN.json is a file written by `run --json`, `compare --json` or `make bench`.
    """
    from joinengine.lab.comparison.saved import read_report  # noqa: PLC0415

    report_read = read_report(source)
    target = source.with_suffix(".html") if output is None else output
    if target.exists() and target.samefile(source):  # under whatever name
        raise InvalidRequest(f"-o: {target} is the report itself; give another file")
    check_file("-o", target)
    write_page(target, report_read)
    console.tell(str(target))


def write_page(path: Path, content: dict[str, Any]) -> None:
    """Write the page of a report, of one run or several."""
    from joinengine.lab.comparison.saved import page_content  # noqa: PLC0415
    from joinengine.reporting.page import page  # noqa: PLC0415

    _write_whole(path, page(page_content(content)).encode())


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file whole, or leave it as it was."""
    with console.written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        place = path.resolve()  # a link stays a link
        if place.exists() and not place.is_file():  # a pipe, /dev/stdout
            path.write_bytes(content)
            return
        passing = place.with_name(f".joinengine-{os.getpid()}")
        try:
            passing.write_bytes(content)
            passing.replace(place)
        finally:
            with suppress(OSError):  # the folder may not be writable
                passing.unlink(missing_ok=True)


def told_page(path: Path | None, content: dict[str, Any]) -> None:
    """Write the page, and say where it is; None: it was not asked for."""
    if path is not None:
        write_page(path, content)
        console.tell(f"report: {path}")


def page_path_of_live(name: str, page_path: Path | None, json_path: Path | None) -> Path:
    """Where the page of a run that was watched goes: as said, or beside the JSON, or here."""
    return page_path or (json_path or Path(name.replace(" ", "-"))).with_suffix(".html")


@contextmanager
def watched(port: int | None) -> Iterator[OnStart | None]:
    """What opens the live page of a query that has started; None: no page was asked for.

    At the end it waits for a key, on a terminal, so that the page can be looked at again. If the
    command fails it does not wait: open tabs keep what they have, and know why. The page is not
    closed: it ends with the process, which lets tabs hear the last of it.
    """
    if port is None:
        yield None
        return
    from joinengine.spark.query.waiting import wait_for_key  # noqa: PLC0415

    urls = list[str]()

    def open_page(running: Any) -> None:
        urls.append(running.live(port).url)
        console.err.print(f"page: {urls[-1]}", markup=False, highlight=False)

    yield open_page
    for url in urls:
        wait_for_key(f"page: {url}; press a key to end")
