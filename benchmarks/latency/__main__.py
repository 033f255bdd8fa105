"""Measures the time from a file's arrival to its results: `python -m benchmarks.latency`.

A process renames small Parquet files of both sides into two folders at a steady rate; a query joins
them within ten seconds of event time into a folder of Parquet files. Each tuple of the right side
matches one of the left side that was sent half a second before. The latency of a result is from the
moment when the file with its tuple of the right side was renamed to the moment when the result
became visible. Both moments are the files' own (`st_ctime`, to some milliseconds), so nothing looks
at folders meanwhile.

joinengine's results are visible when their file has its name. Spark's are when the log of its sink
names their file: readers go by the log.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from benchmarks.latency.sending import SIDES, path_of, prepare, rows_of
from benchmarks.peers.sessions import users_session
from benchmarks.peers.sparks import sparks_session
from benchmarks.peers.systems import MEMORY, OURS
from joinengine import StreamJoin, equi, parquet_stream, session, within

INSTANCES = 4
#: State partitions of Spark's join: the fewer, the sooner a small batch is over.
SPARK_PARTITIONS = 2
#: How far apart in event time tuples match, and how late they may be, in seconds.
REACH_S, DELAY_S = 10, 1
#: What Spark's sink calls the folder of its log.
_LOG = "_spark_metadata"


class System(NamedTuple):
    """A session, and the query that is started there on a folder."""

    session: Callable[[], Any]
    start: Callable[[Any, Path], Any]


@click.command()
@click.option("--system", default=OURS, show_default=True, help="Which one.")
@click.option("--rate", default=10_000, show_default=True, help="Tuples a second, both sides.")
@click.option("--seconds", default=60, show_default=True, help="How long tuples are counted.")
@click.option("--warm", default=30, show_default=True, help="Seconds before, not counted.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def main(system: str, rate: int, seconds: int, warm: int, as_json: bool) -> None:
    """Run, and print one line."""
    if system not in SYSTEMS:
        raise click.UsageError(f"--system: {system!r} is none of {', '.join(SYSTEMS)}")
    spark = SYSTEMS[system].session()
    with tempfile.TemporaryDirectory(prefix="joinengine-latency-") as folder:
        root = Path(folder)
        prepare(root)
        query = SYSTEMS[system].start(spark, root)
        command = [sys.executable, "-m", "benchmarks.latency.sending", folder]
        subprocess.run([*command, str(rate), str(warm + seconds)], check=True)
        query.processAllAvailable()
        query.stop()
        latencies = _latencies(root, rows_of(rate), warm)
    spark.stop()
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    figures = {"p50_s": p50, "p99_s": p99, "most_s": latencies.max(), "results": len(latencies)}
    print(
        f"{system}: {len(latencies):,} results at {rate:,} tuples/s: p50 {p50:.3f} s, "
        f"p99 {p99:.3f} s, most {latencies.max():.3f} s"
    )
    if as_json:
        print(json.dumps(figures))


def _ours(spark: Any, root: Path, layout: str) -> Any:
    window = within(
        "left_at", "right_at", lower=f"-{REACH_S} s", upper=f"{REACH_S} s", delay=f"{DELAY_S} s"
    )
    joined = StreamJoin(
        *(parquet_stream(spark, root / side) for side in SIDES),
        on=equi("left_key", "right_key"),
        within=window,
        layout=layout,
        instances=INSTANCES,
    )
    writer = joined.writeStream.format("parquet").option("checkpointLocation", root / "checkpoint")
    return writer.start(str(root / "out"))


def _sparks(spark: Any, root: Path) -> Any:
    left, right = (
        spark.readStream.schema(spark.read.parquet(str(root / side)).schema)
        .parquet(str(root / side))
        .withWatermark(f"{side}_at", f"{DELAY_S} seconds")
        for side in SIDES
    )
    near = f"right_at between left_at - interval {REACH_S} seconds "
    near += f"and left_at + interval {REACH_S} seconds"
    joined = left.join(right, F.expr(f"left_key = right_key and {near}"))
    writer = joined.writeStream.format("parquet").option("checkpointLocation", root / "checkpoint")
    return writer.start(str(root / "out"))


SYSTEMS: Mapping[str, System] = {
    OURS: System(partial(session, master="local[2]"), partial(_ours, layout="hash")),
    f"{OURS}, mnrt": System(partial(session, master="local[2]"), partial(_ours, layout="mnrt")),
    f"{OURS}, user's session": System(users_session, partial(_ours, layout="hash")),
    MEMORY: System(partial(sparks_session, SPARK_PARTITIONS), _sparks),
}


def _latencies(root: Path, each: int, warm: int) -> np.ndarray:
    """(n,) seconds, of the results whose file came at least `warm` seconds after the first one.

    `each`: rows of a file. Raises ClickException if not all tuples of the right side have a result.
    """
    sent, latencies, seen = root / SIDES[1], list[np.ndarray](), 0
    begin = path_of(root / SIDES[0], 0).stat().st_ctime + warm
    for file, at in visible(root / "out").items():
        keys = pq.read_table(file, columns=["right_key"]).column(0).to_numpy()
        numbers, counts = np.unique(keys // each, return_counts=True)
        came = np.array([path_of(sent, number).stat().st_ctime for number in numbers])
        latencies.append(np.repeat(at - came, counts)[np.repeat(came >= begin, counts)])
        seen += len(keys)
    due = each * len(list(sent.glob("[0-9]*")))
    if seen != due:
        raise click.ClickException(f"{seen:,} results of {due:,} tuples of the right side")
    return np.concatenate(latencies)


def visible(out: Path) -> dict[Path, float]:
    """The files of results, and since when each is visible, in seconds since the epoch."""
    if not (out / _LOG).exists():
        return {file: file.stat().st_ctime for file in out.glob("part-*")}
    since = dict[Path, float]()
    # A log file may repeat earlier batches; a result counts from the first one that names it.
    for log in sorted((out / _LOG).glob("[0-9]*"), key=lambda log: log.stat().st_ctime):
        for line in log.read_text().splitlines()[1:]:
            since.setdefault(out / Path(json.loads(line)["path"]).name, log.stat().st_ctime)
    return since


if __name__ == "__main__":
    main()
