"""Checkpoints of older versions, which later ones go on with: `python -m tests.golden.kept` writes.

One for each combination of formats. A checkpoint names the files of its sources by their paths, so
these are the same on every machine.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from joinengine import StreamAggregate, StreamJoin, equi, parquet_stream, session, windows, within
from joinengine.exchange import sourcelog
from joinengine.state import manifest, run_file

KEPT = Path(__file__).parent / "checkpoints"
#: Where the queries of kept checkpoints have their folders.
HOME = Path("/tmp/joinengine-golden")
ROWS, FILES = 40, 3
TIME = pa.timestamp("us", "UTC")
_START_US = 1_700_000_000_000_000


def formats():
    """The formats that this version writes, as the name of a kept checkpoint."""
    (run,) = re.findall(rb"\d+", run_file.RUN_FORMAT)
    (log,) = re.findall(r"log (\d+)", sourcelog._HEADER.pattern.decode())
    return f"manifest-{manifest.FORMAT}-run-{run.decode()}-sources-{log}"


def rows(side, number):
    """The tuples of a file: key, event time, value; one key is hot, and some have no match."""
    random = np.random.default_rng([side == "r", number])
    keys = np.where(random.random(ROWS) < 0.3, 0, random.integers(1, 60, ROWS))
    times = _START_US + (number * ROWS + np.arange(ROWS)) * 10_000_000
    return list(zip(keys.tolist(), times.tolist(), range(ROWS), strict=True))


def write_input(number):
    """File `number` of both sides, with a time of modification that an archive keeps."""
    for side in "lr":
        keys, times, values = zip(*rows(side, number), strict=True)
        columns = {f"{side}k": pa.array(keys), f"{side}t": pa.array(times, TIME)}
        table = pa.table({**columns, f"{side}v": pa.array(values)})
        path = HOME / "in" / side / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        os.utime(path, (_START_US // 1_000_000 + number,) * 2)


def queries(spark):
    """Name -> query, over the same streams."""

    def joined(how, window):
        sides = (parquet_stream(spark, HOME / "in" / one, rows_per_interval=ROWS) for one in "lr")
        on = equi("lk", "rk")
        return StreamJoin(*sides, on=on, how=how, within=window, layout="mnrt", instances=3)

    pairs = within("lt", "rt", lower="-5 minutes", upper="5 minutes", delay="0 s")
    sums = StreamAggregate(
        joined("inner", pairs),
        by="lk",
        aggregates={"n": "count(*)", "v": "sum(lv)"},
        window=windows("lt", size="10 minutes", delay="0 s"),
        instances=3,
    )
    return {"outer": joined("full", pairs), "sums": sums}


def run(query, name):
    """Run a query over the files that are there, to results in two batches a file."""
    writer = query.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("compactEvery", 2) if name == "sums" else writer
    started = writer.option("checkpointLocation", str(HOME / name)).start(str(HOME / f"{name}-out"))
    started.awaitTermination()


def unpack(kept):
    """Put a kept checkpoint, its sources and its results where they were."""
    shutil.rmtree(HOME, ignore_errors=True)
    with tarfile.open(kept) as archive:
        archive.extractall(HOME, filter="data")


def main():
    """Keep checkpoints of the formats that this version writes."""
    path = KEPT / f"{formats()}.tar.gz"
    assert not path.exists(), f"{path} is kept for ever"
    shutil.rmtree(HOME, ignore_errors=True)
    for number in range(FILES):
        write_input(number)
    spark = session(master="local[2]")
    for name, query in queries(spark).items():
        run(query, name)
    for marker in HOME.glob("*/joinengine/generations/*"):
        marker.write_text('{"host": "kept", "pid": 1}')
    KEPT.mkdir(exist_ok=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file in sorted(HOME.rglob("*")):
            if file.is_file() and file.suffix != ".crc":
                archive.add(file, file.relative_to(HOME), filter=_nobody)
    path.write_bytes(packed.getvalue())
    print(f"{path}: {len(packed.getvalue()):,} bytes")


def _nobody(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()
