"""A driver for test_shuffled: joins through Spark's shuffle, whose executors are killed meanwhile.

Arguments: an empty folder, and the file for what was seen.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from joinengine import StreamJoin, equi, session, within
from joinengine.spark.jobs.shuffle_jobs import ShuffleJobs

N_ROWS, N_FILES = 600, 3
HOUR_US = 3_600_000_000


def write(folder, seed):
    """Files of (key, next key, value, time); key 0 is hot, and some rows are equal."""
    rng = random.Random(seed)
    folder.mkdir()
    for number in range(N_FILES):
        rows = [
            (
                0 if rng.random() < 0.2 else rng.randrange(200),
                rng.randrange(300),
                rng.randrange(40),
                rng.randrange(9) * HOUR_US // 9,
            )
            for _ in range(N_ROWS)
        ]
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        columns[3] = columns[3].cast(pa.timestamp("us", "UTC"))
        names = [f"{folder.name}{name}" for name in ("k", "n", "v", "t")]
        pq.write_table(pa.table(columns, names=names), folder / f"{number}.parquet")


def executors(spark):
    """The processes of the executors."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue  # it has ended
        ours = spark.sparkContext.applicationId in arguments
        if ours and any("CoarseGrainedExecutorBackend" in one for one in arguments):
            found.append(int(process.name))
    return found


class Watched(ShuffleJobs):
    """Jobs that kill an executor before the operator `kill_at`, and count what runs.

    `killed`: the batch of it, which is the first after batch 0 in which tuples have come (a batch
    may have none). `again`: per operator and batch, how many tasks of earlier stages its job has
    run again.
    """

    kill_at = None
    killed, again = [], {}

    def run(self, operator, tasks):
        spark, batch = self.spark, tasks[0].header.batch
        due = batch > 0 and not self.killed
        if operator.index == self.kill_at and due and self._shuffles:
            holder = max(executors(spark), key=self._parts)  # a quick one may have run all tasks
            assert self._parts(holder)
            os.kill(holder, signal.SIGKILL)
            self.killed.append(batch)
            while holder in executors(spark):
                time.sleep(0.1)
        group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
        tracker = spark.sparkContext.statusTracker()
        known = set(tracker.getJobIdsForGroup(group))
        reports = super().run(operator, tasks)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        new = set(tracker.getJobIdsForGroup(group)) - known
        stages = [s for job in new for s in tracker.getJobInfo(job).stageIds]
        infos = [tracker.getStageInfo(stage) for stage in sorted(stages)]
        ran = sum(info.numCompletedTasks for info in infos if info is not None)
        own = len(tasks) if operator.index == self.last else len(tasks) + 1  # and the reports'
        self.again[f"{operator.index}/{batch}"] = ran - own
        return reports

    def _parts(self, executor):
        """How many files of what was shuffled last lie in the folders of an executor."""
        number = self._shuffles[-1].rdd().dependencies().head().shuffleId()
        variables = Path(f"/proc/{executor}/environ").read_text().split("\0")
        (folders,) = (one for one in variables if one.startswith("SPARK_EXECUTOR_DIRS="))
        places = folders.partition("=")[2].split(os.pathsep)
        return sum(1 for place in places for _ in Path(place).rglob(f"shuffle_{number}_*.data"))


def source(spark, folder):
    schema = spark.read.parquet(str(folder)).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return files.parquet(str(folder)).repartition(7)


def run(spark, root, name, joined, kill_at, last, sql):
    """Run a query; whether DuckDB has the same rows, when it was killed and what ran again."""
    Watched.kill_at, Watched.killed, Watched.again, Watched.last = kill_at, [], {}, last
    out = root / name
    query = (
        joined.writeStream.format("parquet")
        .option("checkpointLocation", root / f"{name}-checkpoint")
        .option("exchange", "shuffle")
        .trigger(availableNow=True)
        .start(out)
    )
    query.awaitTermination()
    here = [f"select * from '{out}/*.parquet'", sql]
    extra = [
        duckdb.sql(f"select count(*) from ({one} except all {other})").fetchall()[0][0]
        for one, other in (here, reversed(here))
    ]
    rows = duckdb.sql(f"select count(*) from ({sql})").fetchall()[0][0]
    seen = {"killed": Watched.killed, "again": Watched.again, "differ": extra, "rows": rows}
    return seen


def main(root, report):
    from joinengine.spark.query import starting  # noqa: PLC0415

    spark = session(master="local-cluster[2,1,2048]", spark__executor__memory="1g")
    Watched.spark = spark
    starting._JOBS = {kind: Watched for kind in starting._JOBS}
    for seed, name in enumerate("abc"):
        write(root / name, seed)
    a, b, c = (source(spark, root / name) for name in "abc")
    table = {name: f"'{root / name}/*.parquet'" for name in "abc"}
    first = StreamJoin(a, b, on=equi("ak", "bk"), layout="shuffle", instances=4)
    joined_sql = f"select * from {table['a']} join {table['b']} on ak = bk"
    seen = {"one": run(spark, root, "one", first, 0, 0, joined_sql)}
    window = within("at", "bt", lower="-1 hour", upper="1 hour", delay="1 hour")
    semi = StreamJoin(
        a, b, on=equi("ak", "bk"), within=window, how="left_semi", layout="shuffle", instances=4
    )
    sql = f"select * from {table['a']} semi join {table['b']} on ak = bk"
    seen["semi"] = run(spark, root, "semi", semi, 0, 0, sql)
    only = "av < 2 and bv < 4"
    kept = StreamJoin(first, c, on=equi("bn", "cn"), left_where=only, layout="shuffle", instances=4)
    sql = f"select * from ({joined_sql}) join {table['c']} on bn = cn where {only}"
    seen["chain"] = run(spark, root, "chain", kept, 1, 1, sql)
    Path(report).write_text(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except Exception:
        Path(sys.argv[2]).write_text(json.dumps({"error": traceback.format_exc()[-3000:]}))
