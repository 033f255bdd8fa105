"""`make bench-long`: runs 2,000 small batches over a window, and shows which figures grow.

Two streams join within an interval of WINDOW batches, so that after some batches as much leaves the
state as enters it. Every EVERY batches, it counts the files of the checkpoint, and the descriptors,
memory maps and resident memory of the driver, of its JVM and of the Python workers; now and then
also the JVM's live heap.

Rule: of the samples from batch FROM on, the median of the last third is compared with that of the
first third. A figure is *level* if it is larger by at most PART of it, or by at most NOISE times
the median distance of the samples of the first third from their median.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.keeping import write_report
from benchmarks.long.sampling import sample
from joinengine import JoinQuery, StreamJoin, equi, parquet_stream, session, within
from joinengine.lab.comparison.tables import figures_table

#: Tuples of a side in a batch; the window, in batches.
ROWS, WINDOW = 250, 40
INSTANCES = 4
#: Batches between two samples, and between two looks at the live heap, which stop the JVM.
EVERY, HEAP_EVERY = 20, 100
FROM = 100
PART, NOISE = 0.05, 4.0
_MB = 1 << 20
_SIDES = ("left", "right")
console = Console(soft_wrap=True, width=120)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/long"))
@click.option(
    "--batches",
    type=click.IntRange(min=FROM + 2 * HEAP_EVERY),  # each figure has samples from FROM on
    default=2000,
    show_default=True,
    help="Batches of the run.",
)
@click.option("--layout", default="mnrt", show_default=True)
def main(out: Path, batches: int, layout: str) -> None:
    """Run, and write table and JSON."""
    spark = session(master="local[2]")
    with tempfile.TemporaryDirectory(prefix="joinengine-long-") as folder:
        root = Path(folder)
        for seed, side in enumerate(_SIDES):
            _write(root / side, seed, batches)
        seconds, samples = _run(spark, root, layout)
    spark.stop()
    series = _series(seconds, samples)
    verdicts = {name: verdict(points) for name, points in series.items()}
    content = {"batches": len(seconds), "series": series, "verdicts": verdicts}
    write_report(out / "long.json", content | {"load_average": os.getloadavg()})
    console.print(_table(series, verdicts))
    grown = [name for name, found in verdicts.items() if not found["level"]]
    console.print("grown: " + ", ".join(grown) if grown else "level: all of them")
    console.print(f"report: {out / 'long.json'}")


def _write(folder: Path, seed: int, batches: int) -> None:
    """Files whose row groups are the batches; keys are skewed, a batch is a second."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    each = 100
    for first in range(0, batches, each):
        rows = min(each, batches - first) * ROWS
        keys = np.minimum(rng.zipf(1.3, rows), 10_000)
        times = 1_700_000_000_000_000 + (first * ROWS + np.arange(rows)) * (1_000_000 // ROWS)
        columns = {
            f"{folder.name}_key": pa.array(keys),
            f"{folder.name}_at": pa.array(times).cast(pa.timestamp("us", "UTC")),
        }
        path = folder / f"{first:06d}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=ROWS)
        os.utime(path, (1_700_000_000 + first, 1_700_000_000 + first))


def _run(
    spark: Any, root: Path, layout: str
) -> tuple[list[float], list[tuple[int, dict[str, float]]]]:
    """The seconds of each trigger, and (batch, sample) in turn."""
    left, right = (parquet_stream(spark, root / s, rows_per_interval=ROWS) for s in _SIDES)
    reach = f"{WINDOW // 2} s"
    joined = StreamJoin(
        left,
        right,
        on=equi("left_key", "right_key"),
        within=within("left_at", "right_at", lower=f"-{reach}", upper=reach, delay="1 s"),
        layout=layout,
        instances=INSTANCES,
    )
    checkpoint = root / "checkpoint"
    writer = joined.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", checkpoint).start()
    samples = list[tuple[int, dict[str, float]]]()
    while not query.awaitTermination(0.05):
        _look(spark, query, checkpoint, samples)
    return [record.trigger_s for record in query.batches()], samples


def _look(
    spark: Any, query: JoinQuery, checkpoint: Path, samples: list[tuple[int, dict[str, float]]]
) -> None:
    """Take a sample if EVERY batches have ended since the last one."""
    done = query.done[1]
    last = samples[-1][0] if samples else -EVERY
    if done // EVERY == last // EVERY:
        return
    figures = sample(checkpoint)
    if done // HEAP_EVERY != last // HEAP_EVERY:
        figures["jvm_heap_mb"] = _live_heap_mb(spark)
    samples.append((done, figures))
    if done // 500 != last // 500:
        console.print(f"{done:,} batches")


def _live_heap_mb(spark: Any) -> float:
    """Megabytes in the JVM's heap after a collection."""
    java = spark._jvm.java.lang
    java.System.gc()
    runtime = java.Runtime.getRuntime()
    return float((runtime.totalMemory() - runtime.freeMemory()) / _MB)


def _series(
    seconds: Sequence[float], samples: Sequence[tuple[int, dict[str, float]]]
) -> dict[str, list[tuple[int, float]]]:
    """Each figure as (batch, value); seconds are medians between two samples, of the clock.

    `cpu_seconds`: of the processor, of all processes together, for a batch: whatever runs beside.
    """
    found: dict[str, list[tuple[int, float]]] = {
        "seconds": [
            (first, statistics.median(seconds[first : first + EVERY]))
            for first in range(0, len(seconds), EVERY)
        ]
    }
    for (before, earlier), (batch, values) in pairwise(samples):
        spent = values["cpu_s"] - earlier["cpu_s"]
        found.setdefault("cpu_seconds", []).append((batch, spent / (batch - before)))
    for batch, values in samples:
        for name in [one for one in values if one != "cpu_s"]:
            found.setdefault(name, []).append((batch, values[name]))
    return found


def verdict(points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Whether a figure is level from batch FROM on, by the rule in this module's head.

    >>> verdict([(batch, 7.0) for batch in range(0, 1000, 20)])["level"]
    True
    >>> verdict([(batch, batch / 10) for batch in range(0, 1000, 20)])["level"]
    False
    """
    values = [value for batch, value in points if batch >= FROM]
    third = max(1, len(values) // 3)
    first, last = values[:third], values[-third:]
    start, end = statistics.median(first), statistics.median(last)
    noise = statistics.median(abs(value - start) for value in first)
    return {
        "first": start,
        "last": end,
        "most": max(values),
        "level": end - start <= max(PART * start, NOISE * noise),
    }


def _table(series: dict[str, Any], verdicts: dict[str, dict[str, Any]]) -> Table:
    columns = "figure", "first third", "last third", "most", "samples", ""
    title = f"medians of the first and the last third from batch {FROM} on"
    table = figures_table(columns, title, words=("figure", ""))
    for name, found in verdicts.items():
        digits = 3 if name.endswith("seconds") else 0
        values = (f"{found[one]:,.{digits}f}" for one in ("first", "last", "most"))
        told = "level" if found["level"] else "GROWN"
        table.add_row(name.replace("_", " "), *values, f"{len(series[name])}", told)
    return table


if __name__ == "__main__":
    main()
