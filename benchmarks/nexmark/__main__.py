"""`make bench-nexmark`: q3, q8 and q20 of Nexmark in joinengine, in Flink's SQL and in Pathway.

Each run is a process of its own, on two cores; systems take turns. A run begins when the query is
handed over, in a process whose session or JVM is up, and ends when all results are written. The
figure is rows of the streams per second of processor time, of the process and all below it, which
other work on the machine disturbs less than the clock. All results are compared with DuckDB's, by
count and checksum. A system that cannot run is listed with its own error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from benchmarks.keeping import ROOT, append, commit, folder, lines, named
from benchmarks.long.sampling import descendants, worked_s
from benchmarks.nexmark.jobs import QUERIES, Job, expected, found_in, job, recorded, write_csv
from joinengine.lab.comparison.provenance import made_by
from joinengine.lab.comparison.tables import figures_table
from joinengine.model.texts import in_a_line

#: System -> the layout, of joinengine; the others have environments of their own.
OURS = {"joinengine, hash": "hash", "joinengine, auto": "auto"}
PEERS = ("flink", "pathway")
MOST_S = 900.0
console = Console(soft_wrap=True, width=120)


class CannotRun(Exception):
    """A system is missing or has failed, in its own words."""


class Spent(NamedTuple):
    """Seconds of a run by the clock, and of the processor."""

    clock_s: float
    core_s: float


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/bench"))
@click.option("--repeat", default=3, show_default=True, help="Runs of each system.")
@click.option("--quick", is_flag=True, help="A tenth of the size, to see that it runs.")
@click.option("--only", default="", help=f"Only these: {', '.join(QUERIES)}.")
def main(out: Path, repeat: int, quick: bool, only: str) -> None:
    """Run the queries one after another; a line for each run, and a table for each query.

    The files keep the queries that are not run this time as they were.
    """
    queries, wrong = named(only, QUERIES), list[str]()
    path = folder(out, commit()) / "nexmark.jsonl"
    kept = [line for line in lines(path) if line.get("query") not in queries]
    path.unlink(missing_ok=True)
    for line in (*kept, {"made_by": made_by()}):  # the runs after it
        append(path, line)
    for query in queries:
        runs = _measured(query, 0.1 if quick else 1.0, repeat, path)
        console.print(_table(query, runs))
        _write_tables(path)
        wrong += [f"{run['query']}, {run['system']}" for run in runs if run.get("valid") is False]
    console.print(f"figures: {path}, tables: {path.with_suffix('.txt')}")
    if wrong:
        raise click.ClickException(f"results differ from DuckDB's: {'; '.join(sorted(set(wrong)))}")


def _write_tables(path: Path) -> None:
    """The tables of all queries that the file has, beside it."""
    with path.with_suffix(".txt").open("w") as file:
        for query in QUERIES:
            if runs := [line for line in lines(path) if line.get("query") == query]:
                Console(file=file, width=120).print(_table(query, runs))


def _measured(query: str, size: float, repeat: int, path: Path) -> list[dict[str, Any]]:
    """The runs of all systems, which take turns; each is in the file as soon as it is over."""
    stream, runs = recorded(query, size), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="joinengine-nexmark-") as passing:
        plain, headed = Path(passing, "plain"), Path(passing, "headed")
        write_csv(query, stream, plain, header=False)
        write_csv(query, stream, headed, header=True)
        right = expected(query, plain)
        for number in range(repeat):
            for system in (*OURS, *PEERS):
                results = Path(passing, f"{number}-{system}")
                asked = job(query, size, headed if system == "pathway" else plain, results)
                run: dict[str, Any] = {"query": query, "system": system, "repeat": number}
                run["rows"] = sum(stream.rows.values())
                try:
                    spent = _ran(system, asked)
                except CannotRun as error:
                    run["refused"] = str(error)
                else:
                    seen = found_in(query, system, results)
                    run |= {**spent._asdict(), "results": seen.rows, "valid": seen == right}
                runs.append(run)
                append(path, run)
                console.print(
                    f"{query}, {system}, run {number + 1}: {_words(run)}", highlight=False
                )
    return runs


def _command(system: str, asked: Job) -> Sequence[str]:
    text = json.dumps(asked._asdict())
    if system in OURS:
        return sys.executable, "-m", "benchmarks.nexmark.our_job", text, OURS[system]
    done = subprocess.run(
        [ROOT / "tools" / "ensure-peer", system], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotRun(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip(), str(Path(__file__).with_name(f"{system}_job.py")), text


def _ran(system: str, asked: Job) -> Spent:
    """Run a job; the time from its BEGIN to its END. Raises CannotRun."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            _command(system, asked),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"PATHWAY_THREADS": "2"},
        )
        watchdog = threading.Timer(MOST_S, process.kill)
        watchdog.start()
        with process:
            marks = {mark: spent for mark in ("BEGIN", "END") if (spent := _at(process, mark))}
            process.communicate("\n")
        watchdog.cancel()
        if len(marks) < 2:
            errors.seek(0)
            said = [line for line in errors.read().splitlines() if line.strip()]
            raise CannotRun(in_a_line(said[-1] if said else "it has ended without a word"))
    begin, end = marks["BEGIN"], marks["END"]
    return Spent(end.clock_s - begin.clock_s, end.core_s - begin.core_s)


def _at(process: subprocess.Popen[str], mark: str) -> Spent | None:
    """The time at which a process prints a mark, and its processor time; None: it ended before."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == mark:
            pids = [process.pid, *descendants(process.pid)]
            return Spent(time.perf_counter(), worked_s(pids))
    return None


def _words(run: Mapping[str, Any]) -> str:
    if "refused" in run:
        return f"cannot run: {run['refused']}"
    valid = "valid" if run["valid"] else "NOT VALID"
    rate = run["rows"] / run["core_s"]
    return f"{run['clock_s']:.1f} s, {rate:,.0f} rows per core-second, {valid}"


def _table(query: str, runs: Sequence[dict[str, Any]]) -> Table:
    columns = "system", "s", "core-s", "rows per core-s", "results", ""
    title = f"\n{query}: {runs[0]['rows']:,} rows"
    table = figures_table(columns, title, words=("system", ""))
    for system in dict.fromkeys(run["system"] for run in runs):
        ours = [run for run in runs if run["system"] == system]
        good = [run for run in ours if "refused" not in run]
        if not good:
            table.add_row(system, "", "", "", "", ours[0]["refused"])
            continue
        clock_s, core_s = (median(run[name] for run in good) for name in ("clock_s", "core_s"))
        valid = all(run["valid"] for run in good)
        table.add_row(
            *(system, f"{clock_s:.2f}", f"{core_s:.2f}", f"{runs[0]['rows'] / core_s:,.0f}"),
            *(f"{good[0]['results']:,}", "valid" if valid else "NOT VALID"),
            style="" if valid else "red",
        )
    return table


if __name__ == "__main__":
    main()
