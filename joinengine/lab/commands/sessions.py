"""The session of Spark in which a command runs, and the progress of its query."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from joinengine.lab.commands import console
from joinengine.lab.commands.pages import OnStart
from joinengine.lab.tpch.cache import new_log
from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.model.texts import counted, in_a_line

#: How long a standalone master of Spark may take to accept a connection, in seconds.
_ANSWERS_S = 10.0
#: How long Spark's process may take to end after Ctrl-C, in seconds.
_ENDS_S = 10.0
#: Masters of Spark, by their beginnings; a local one has a number of cores.
_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?|local-cluster\[.*\]|spark://.+|yarn|k8s://.+"
)


@contextmanager
def started(master: str) -> Iterator[Any]:
    """A session of Spark, which ends with the command; its log is kept if the command fails."""
    from joinengine import session  # noqa: PLC0415

    if _MASTER.fullmatch(master) is None:
        raise InvalidRequest(
            f"--master: {master!r} is no master of Spark; write local[N], spark://HOST:PORT, yarn "
            "or k8s://.."
        )
    _check_answers(master)
    log = new_log()
    try:
        with console.err.status("starting Spark"), _stderr_to(log):
            spark = session(master=master)
    except JoinEngineError:
        raise
    except Exception as error:
        raise JoinEngineError(
            f"--master: Spark does not start with {master} ({in_a_line(error)}); its log is {log}"
        ) from None
    is_cut = False
    try:
        yield spark
    except InvalidRequest:  # the sentence says all
        log.unlink(missing_ok=True)
        raise
    except Exception:
        console.say(f"log of Spark: {log}")
        raise
    except BaseException:  # Ctrl-C: there is nothing to look up
        log.unlink(missing_ok=True)
        is_cut = True
        raise
    else:
        log.unlink(missing_ok=True)
    finally:
        _end(spark, is_cut=is_cut)


def _end(spark: Any, *, is_cut: bool) -> None:
    """End Spark, whose process ends with this one; after Ctrl-C, make sure that it does.

    A call that a second Ctrl-C interrupts may leave Spark waiting for ever.
    """
    process = getattr(spark.sparkContext._gateway, "proc", None) if is_cut else None
    try:
        spark.stop()
        if process is not None:
            process.stdin.close()
            process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process is not None and process.poll() is None:
            process.kill()


def _check_answers(master: str) -> None:
    """Refuse a standalone master that does not answer: Spark would try for a minute or more."""
    kind, _, places = master.partition("://")
    reasons = list[str]()
    for place in places.split(",") if kind == "spark" else ():
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_S).close()
            return
        except (OSError, ValueError) as error:
            reasons.append(f"{place}: {in_a_line(error)}")
    if reasons:
        raise JoinEngineError(
            f"--master: no master of Spark answers at {master} ({'; '.join(reasons)}); start it, "
            "or correct the address"
        )


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """In the block, send stderr to `path`: the JVM and its workers write a lot."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def run(
    spark: Any,
    query: Any,
    options: Any,
    places: Any,
    *,
    validate: bool,
    on_start: OnStart | None = None,
) -> dict[str, Any]:
    """Run a query, with its progress on stderr; returns the JSON report.

    `on_start`: called with the query as soon as it runs.
    """
    from joinengine.lab.queries.rounds import run_rounds  # noqa: PLC0415
    from joinengine.lab.queries.runs import Followers  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    quiet = not console.err.is_terminal  # else each bar leaves an empty line in a pipe
    if quiet:
        console.say(f"running {_title(query, options)}")
    with Progress(*columns, console=console.err, transient=True, disable=quiet) as progress:
        task = progress.add_task(_title(query, options), total=None, rate="")

        def watch(rows: int, total: int, batches: int) -> None:
            elapsed = progress.tasks[0].elapsed or 1.0
            rate = f"{rows / elapsed:,.0f} rows/s, {counted(batches, 'batch')}"
            progress.update(task, completed=rows, total=total, rate=rate)

        report = run_rounds(
            spark,
            query,
            options,
            places,
            validate=validate,
            followers=Followers(console.say, watch, on_start),
        )
    return report


@contextmanager
def passing(state: str | None) -> Iterator[Any]:
    """The places of one of several runs: its results and its state below `state` are removed.

    Generated streams stay, since they are the same for all runs.
    """
    from joinengine.lab.queries.runs import Places  # noqa: PLC0415
    from joinengine.world.world import MACHINE  # noqa: PLC0415

    if state is None:
        yield Places()
        return
    name = f"run-{MACHINE.nonce()}"
    try:
        yield Places(state=f"{state}/{name}/state", reach=state)
    finally:
        MACHINE.storage(state).delete_folder(name)


@contextmanager
def _untold() -> Iterator[None]:
    """Suppress the warnings of queries in the block, which the user has not asked for."""
    log = logging.getLogger("joinengine")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def warm_up(spark: Any, query: Any, options: Any, state: str | None = None) -> None:
    """Start the JVM and its workers, so that the next layout of a comparison does not pay for it.

    `state`: as in `passing`.
    """
    from joinengine.lab.queries.runs import run as run_query  # noqa: PLC0415

    with console.err.status("warming up"), _untold(), passing(state) as places:
        if query.generated:
            small = replace(options, scale=min(0.001, options.scale), interval_rows=1500)
            small = replace(small, cluster=None)  # topics hold the whole stream
            run_query(spark, query, small, places)
        else:
            with tempfile.TemporaryDirectory(prefix="joinengine-") as folder:
                # Beside the state, where all executors see it.
                beside = folder if places.state is None else places.state.rpartition("/")[0]
                head = query.head(f"{beside}/head")
                run_query(spark, head, options, places)


def _title(query: Any, options: Any) -> str:
    from joinengine.lab.queries.named_query import skew_of  # noqa: PLC0415

    zipf = skew_of(query, options)
    skew = "" if zipf is None else f", Zipf {zipf:g}"
    return f"{query.name} under {options.layout.label}{skew}"
