"""Checkpoints of older versions, which later ones go on with: `python -m tests.golden.kept` writes.

For each combination of formats there is one of queries that have ended, and one of queries that
were cut short. A checkpoint names the files of its sources by their paths, so these are the same on
every machine.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from joinengine import (
    JoinEngineError,
    StreamAggregate,
    StreamJoin,
    equi,
    parquet_stream,
    session,
    windows,
    within,
)
from joinengine.driver.batch import BatchRunner
from joinengine.driver.recovery.durability import Uploaded
from joinengine.sources import sourcelog
from joinengine.state import manifests, run_file
from joinengine.state.checkpoint import Checkpoint

KEPT = Path(__file__).parent / "checkpoints"
#: Where the queries of kept checkpoints have their folders.
HOME = Path("/tmp/joinengine-golden")
ROWS, FILES = 40, 3
TIME = pa.timestamp("us", "UTC")
_START_US = 1_700_000_000_000_000


def formats():
    """The formats that this version writes, as the name of a kept checkpoint."""
    (run,) = re.findall(rb"\d+", run_file.RUN_FORMAT)
    (log,) = re.findall(r"log (\d+)", sourcelog._SEGMENT.decode())
    return f"manifest-{manifests.FORMAT}-run-{run.decode()}-sources-{log}"


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


#: Queries that are cut short: in their last batch, or they lose what is not in their state.
CUT = ("own", "frame", "apart", "replicas")
#: The batch in which "own" is cut short, and the micro-batch of Spark's in which "frame" is.
LAST = 2


def cut_query(spark, name):
    """A query that is cut short: `frame` has a right side that Spark reads."""
    left = parquet_stream(spark, HOME / "in" / "l", rows_per_interval=ROWS)
    right = parquet_stream(spark, HOME / "in" / "r", rows_per_interval=ROWS)
    if name == "frame":
        files = spark.readStream.schema("rk long, rt timestamp, rv long")
        right = files.option("maxFilesPerTrigger", 1).parquet(str(HOME / "in" / "r"))
    pairs = within("lt", "rt", lower="-5 minutes", upper="5 minutes", delay="0 s")
    layout = "ftlb" if name == "replicas" else "mnrt"
    return StreamJoin(left, right, on=equi("lk", "rk"), within=pairs, layout=layout, instances=4)


def run_cut(spark, name, durability="batch"):
    """Run a query that is or was cut short over the files that are there."""
    writer = cut_query(spark, name).writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(HOME / name))
    if name == "apart":
        writer = writer.option("stateLocation", str(HOME / f"{name}-state"))
    writer = writer.option("durability", durability)
    writer.start(str(HOME / f"{name}-out")).awaitTermination()


def _cut_short(spark, name):
    """Leave a checkpoint as a driver leaves it that is killed."""
    if name == "apart":
        run_cut(spark, name)
        shutil.rmtree(HOME / name)
        return
    if name == "replicas":
        with _stalled_uploads():
            run_cut(spark, name, durability="replicas")
        _lose(name)
        return
    real = BatchRunner._commit

    def commit(self, draft):
        handed = draft.outcome.handed
        if LAST == (draft.outcome.batch if handed is None else handed.batch):
            raise OSError("killed")
        return real(self, draft)

    with patch.object(BatchRunner, "_commit", commit):
        try:
            run_cut(spark, name)
        except JoinEngineError as error:
            assert "killed" in str(error), error
    assert (HOME / name / f"offsets/{LAST}").exists() is (name == "frame")
    newest = manifests.newest(Checkpoint.below(str(HOME / name)).manifests)
    assert LAST - 1 == (newest.batch if newest.handed is None else newest.handed.batch)


@contextmanager
def _stalled_uploads():
    """The driver sees no upload that comes after the first batch."""
    look = Uploaded._look

    def stalled(self):
        if self._line[-1].batch < 1:
            look(self)

    with patch.object(Uploaded, "_look", stalled), patch.object(Uploaded, "settle", lambda _: None):
        yield


def _lose(name):
    """Remove what executors had not uploaded when they ended."""
    checkpoint = Checkpoint.below(str(HOME / name))
    newest = manifests.newest(checkpoint.manifests)
    assert newest.batch - newest.restorable > 1, newest.restorable
    kept = {stored.name for one in newest.operators for stored in one.layouts.history}
    if newest.restorable >= 0:
        kept |= manifests.read(checkpoint.manifests, newest.restorable).named_files()
    lost = newest.named_files() - kept
    assert lost
    for file in lost:
        checkpoint.runs.delete(file)


def unpack(kept):
    """Put a kept checkpoint, its sources and its results where they were."""
    shutil.rmtree(HOME, ignore_errors=True)
    with tarfile.open(kept) as archive:
        archive.extractall(HOME, filter="data")


def main():
    """Keep checkpoints of the formats that this version writes."""
    with FileLock(f"{HOME}.lock"):
        _keep(f"{formats()}.tar.gz", lambda spark: [run(q, n) for n, q in queries(spark).items()])
        _keep(f"{formats()}-cut.tar.gz", lambda spark: [_cut_short(spark, n) for n in CUT])


def _keep(name, make):
    path = KEPT / name
    if path.exists():
        print(f"{path} is kept for ever")
        return
    shutil.rmtree(HOME, ignore_errors=True)
    for number in range(FILES):
        write_input(number)
    spark = session(master="local-cluster[2,1,1024]", spark__executor__memory="512m")
    make(spark)
    spark.stop()
    for marker in HOME.glob("**/joinengine/generations/*"):
        marker.write_text('{"host": "kept", "pid": 1}')
    KEPT.mkdir(exist_ok=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file in sorted(HOME.rglob("*")):
            if file.suffix != ".crc":
                archive.add(file, file.relative_to(HOME), recursive=False, filter=_nobody)
    path.write_bytes(packed.getvalue())
    print(f"{path}: {len(packed.getvalue()):,} bytes")


def _nobody(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()
