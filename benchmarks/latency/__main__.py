"""From the arrival of a tuple to its visible result: `python -m benchmarks.latency`.

A process writes small Parquet files of both sides at a steady rate; a query joins them within ten
seconds of event time into a folder of Parquet files, which is looked at every few milliseconds. The
latency of a result is from the moment when the file with its later tuple was there to the moment
when the result was seen. Each tuple of the right side matches one of the left side that was sent
half a second before.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from joinengine import StreamJoin, equi, parquet_stream, session, within

_SIDES = ("left", "right")
#: Between two files of a side, and how long the right side waits, in seconds.
_EVERY_S, _AFTER_S = 0.1, 0.5
_LOOK_S = 0.002


@click.command()
@click.option("--rate", default=10_000, show_default=True, help="Tuples a second, both sides.")
@click.option("--seconds", default=60, show_default=True, help="How long tuples are counted.")
@click.option("--warm", default=30, show_default=True, help="Seconds before, not counted.")
def main(rate: int, seconds: int, warm: int) -> None:
    """Run, and print one line."""
    spark = session(master="local[2]")
    with tempfile.TemporaryDirectory(prefix="joinengine-latency-") as folder:
        root = Path(folder)
        for side in _SIDES:
            (root / side).mkdir()
            _put(root / side, 0, np.zeros(0, np.int64))
        query = _started(spark, root)
        command = [sys.executable, "-m", "benchmarks.latency.sending", folder, str(rate)]
        sender = subprocess.Popen([*command, str(warm + seconds)])
        seen = dict[str, float]()
        while sender.poll() is None:
            now = time.time()
            for path in (root / "out").glob("part-*"):
                seen.setdefault(path.name, now)
            time.sleep(_LOOK_S)
        batches = [b.trigger_s for b in query.batches() if b.input_rows]
        query.stop()
        begin = min(path.stat().st_mtime for path in (root / "left").glob("1*")) + warm
        found = np.concatenate([_latencies(root / "out" / name, at) for name, at in seen.items()])
    spark.stop()
    latencies = found[found[:, 0] > begin, 1]
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    print(
        f"{len(latencies):,} results at {rate:,} tuples/s: p50 {p50:.3f} s, p99 {p99:.3f} s, "
        f"most {latencies.max():.3f} s; batches of {np.median(batches[len(batches) // 2 :]):.3f} s"
    )


def _started(spark: Any, root: Path) -> Any:
    left, right = (parquet_stream(spark, root / side) for side in _SIDES)
    window = within("left_at", "right_at", lower="-10 s", upper="10 s", delay="1 s")
    joined = StreamJoin(left, right, on=equi("left_key", "right_key"), within=window, instances=4)
    writer = joined.writeStream.format("parquet").option("checkpointLocation", root / "checkpoint")
    return writer.start(str(root / "out"))


def _put(folder: Path, number: int, keys: Any) -> None:
    """A file of tuples that are sent now; it is there whole or not at all."""
    name, now = folder.name, time.time()
    times = pa.array(np.full(len(keys), round(now * 1e6))).cast(pa.timestamp("us", "UTC"))
    table = pa.table({f"{name}_key": pa.array(keys), f"{name}_at": times})
    draft = folder / f".{number}"
    pq.write_table(table, draft)
    draft.rename(folder / f"{number:08d}.parquet")


def send(folder: str, rate: int, seconds: int) -> None:
    """Write files at a steady rate."""
    each, late = round(rate / 2 * _EVERY_S), round(_AFTER_S / _EVERY_S)
    start = time.monotonic()
    for number in range(round(seconds / _EVERY_S)):
        time.sleep(max(0.0, start + number * _EVERY_S - time.monotonic()))
        for side, ago in zip(_SIDES, (0, late), strict=True):
            if number >= ago:
                keys = np.arange((number - ago) * each, (number - ago + 1) * each)
                _put(Path(folder, side), 10_000_000 + number, keys)
    time.sleep(3)


def _latencies(path: Path, seen: float) -> Any:
    """(n, 2): when the later tuple of each result was sent, and how long after it was seen."""
    table = pq.read_table(path, columns=["left_at", "right_at"])
    sent = np.maximum(*(column.cast(pa.int64()).to_numpy() for column in table.columns)) / 1e6
    return np.stack([sent, seen - sent], axis=1)


if __name__ == "__main__":
    main()
