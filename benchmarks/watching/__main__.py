"""Measures what a live page with an open tab costs a batch: small batches, with it and without.

    python -m benchmarks.watching --out out/watching

A turn is three runs of one query in one session: without a page, with a page whose events another
process reads, without a page. A run's figure is the median time of its triggers. The page's ratio
is the run with it over the mean of its neighbours; the noise is one neighbour over the other. Small
batches show it best: the page costs a batch the same whatever its size.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa

from benchmarks.by_clock import in_files, started
from benchmarks.keeping import write_report
from joinengine import StreamJoin, equi, parquet_stream, session, within

#: Tuples of a side in a batch, and batches of a run; the first ones are not counted.
ROWS, BATCHES, WARM = 1_000, 40, 10
INSTANCES = 8
_SIDES = ("left", "right")
#: A tab that reads all events, in a process of its own, like a browser.
TAB = "import sys, urllib.request\nfor _ in urllib.request.urlopen(sys.argv[1]): pass"


@click.command()
@click.option("--out", type=Path, default=Path("out/watching"), help="folder of the report")
@click.option("--turns", default=7, help="how often the three runs are repeated")
def main(out: Path, turns: int) -> None:
    """Measure, and write the report."""
    spark = session(master="local[2]")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for side, seed in (("left", 1), ("right", 2)):
            _write(root / side, seed)
        _run(spark, root, watched=False)  # the JVM compiles
        seconds = list[tuple[float, float, float]]()
        for turn in range(turns):
            before, page, after = (
                _run(spark, root, watched=watched) for watched in (False, True, False)
            )
            seconds.append((before, page, after))
            print(f"turn {turn + 1}: {before:.3f} s, with a page {page:.3f} s, {after:.3f} s")
    ratios = [2 * page / (before + after) for before, page, after in seconds]
    noise = [after / before for before, _, after in seconds]
    report = {
        "seconds_per_batch": seconds,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "noise": noise,
        "load_average": os.getloadavg(),
    }
    write_report(out / "watching.json", report)
    print(f"a batch with a page over one without: {_words(ratios)}")
    print(f"one without over another without:     {_words(noise)}")
    print(f"load average {os.getloadavg()[0]:.1f}; report: {out / 'watching.json'}")


def _words(ratios: Sequence[float]) -> str:
    return f"median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"


def _write(folder: Path, seed: int) -> None:
    """One file, whose row groups are the batches; keys are skewed."""
    rng = np.random.default_rng(seed)
    rows = ROWS * BATCHES
    keys = np.minimum(rng.zipf(1.3, rows), 10_000)
    times = 1_700_000_000_000_000 + np.arange(rows) * 10_000
    stamps = pa.array(times).cast(pa.timestamp("us", "UTC"))
    table = pa.table({f"{folder.name}_key": keys, f"{folder.name}_at": stamps})
    in_files(table, folder, 1, row_group_size=ROWS)


def _run(spark: Any, root: Path, *, watched: bool) -> float:
    """The median seconds of a trigger."""
    left, right = (parquet_stream(spark, root / s, rows_per_interval=ROWS) for s in _SIDES)
    window = within("left_at", "right_at", lower="-5 s", upper="5 s", delay="1 s")
    joined = StreamJoin(
        left, right, on=equi("left_key", "right_key"), within=window, instances=INSTANCES
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        query, tab = started(joined, checkpoint), None
        if watched:
            events = query.live().url.replace("/?", "/events?")
            tab = subprocess.Popen([sys.executable, "-c", TAB, events])
        query.awaitTermination()
        if tab is not None:
            query.live().close()
            tab.wait()
        seconds = [record.trigger_s for record in query.batches()]
    assert len(seconds) == BATCHES, seconds
    return statistics.median(seconds[WARM:])


if __name__ == "__main__":
    main()
