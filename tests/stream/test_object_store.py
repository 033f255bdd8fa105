"""Queries whose state, sources and results lie in an object store, without the S3 jar of Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.world import buckets
from joinengine.world.world import MACHINE
from tests.objects import environment, make_bucket, s3_server

pytestmark = pytest.mark.spark

#: Runs the query of the arguments' places with each sink, then with more files, then once more.
PROGRAM = """
import json, sys
from pyspark.sql import functions as f
from joinengine import InvalidRequest, StreamJoin, parquet_stream, session
from joinengine.world.world import MACHINE

bucket, root = sys.argv[1:]
spark = session(master="local[2]")
spark.sparkContext.setLogLevel("ERROR")

def joined():
    left, right = (parquet_stream(spark, f"{bucket}/in/{one}", rows_per_interval=100)
                   for one in ("left", "right"))
    return StreamJoin(left, right, on="key", layout="mnrt", instances=2)

def run(name, writer, path=None, disk=None):
    writer = writer.option("checkpointLocation", f"{root}/{disk or name}")
    writer = writer.option("stateLocation", f"{bucket}/state/{name}").trigger(availableNow=True)
    query = writer.start(path) if path else writer.start()
    query.awaitTermination()
    return sum(row["output_rows"] for row in query.metrics().to_pylist())

def refused(name, writer, disk):
    try:
        run(name, writer, disk=disk)
    except InvalidRequest as error:
        return str(error)

told = {"parquet": [run("parquet", joined().writeStream.format("parquet"), f"{bucket}/out")]}
collected = []
def collect(frame, batch):
    collected.extend(json.loads(row) for row in frame.toJSON().collect())
run("function", joined().writeStream.foreachBatch(collect))
told["function"] = collected
run("memory", joined().writeStream.format("memory").queryName("seen"))
told["memory"] = [json.loads(row) for row in spark.table("seen").toJSON().collect()]
def odd(frame):
    return frame.where("key % 2 = 1").withColumn("part", f.col("key") % 3)
odds = joined().transform(odd).writeStream.format("parquet").partitionBy("part")
run("transformed", odds, f"{bucket}/odd")
for side in ("left", "right"):
    storage = MACHINE.storage(bucket)
    storage.copy(f"later/{side}.parquet", f"in/{side}/later.parquet")
def again(disk):
    results = joined().writeStream.format("parquet")
    told["parquet"].append(run("parquet", results, f"{bucket}/out", disk))

again("elsewhere")  # an empty disk
again("parquet")  # a disk that is older than the state

def from_files():
    files = spark.readStream.schema("key long, left long").parquet(f"{root}/input")
    right = parquet_stream(spark, f"{bucket}/in/right")
    return StreamJoin(files, right, on="key", instances=2).writeStream.format("noop")

def from_frames():
    left, right = (parquet_stream(spark, f"{bucket}/in/{one}") for one in ("left", "right"))
    return StreamJoin(left.to_df(), right, on="key", instances=2).writeStream.format("noop")

run("files", from_files())
run("frames", from_frames())
told["refused"] = [refused("files", from_files(), "empty"),
                   refused("frames", from_frames(), "files")]
json.dump(told, open(f"{root}/told.json", "w"))
"""


def tuples(side, start):
    rows = range(start, start + 100)
    columns = {"key": [n * n % 17 for n in rows], side: list(rows)}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


@pytest.fixture(scope="module")
def server():
    with s3_server() as values, environment(values):
        yield values
    buckets.store_of.cache_clear()


@pytest.fixture(scope="module")
def ran(server, tmp_path_factory):
    root, bucket = tmp_path_factory.mktemp("driver"), make_bucket(server)
    storage = MACHINE.storage(bucket)
    tables = dict[str, list[pa.Table]]()
    for side in ("left", "right"):
        tables[side] = [tuples(side, 0), tuples(side, 100)]
        for name, table in zip((f"in/{side}/first", f"later/{side}"), tables[side], strict=True):
            with storage.output(f"{name}.parquet") as sink:
                pq.write_table(table, sink, row_group_size=30)
    (root / "input").mkdir()
    pq.write_table(tables["left"][0], str(root / "input" / "one.parquet"))
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, bucket, str(root)],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | server,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return bucket, json.loads((root / "told.json").read_text()), tables, root


def expected(tables, files):
    left, right = (pa.concat_tables(tables[side][:files]) for side in ("left", "right"))
    assert left.num_rows == right.num_rows
    with duckdb.connect() as db:
        db.register("l", left)
        db.register("r", right)
        sql = 'select l.key, l."left", r."right" from l join r on l.key = r.key'
        return sorted(db.sql(sql).fetchall())


def visible(place):
    files = [one for one in buckets.files_below(place) if "/_" not in one[0][len(place) :]]
    folders = [one[0][len(place) + 1 :].split("/")[:-1] for one in files]
    rows = [pq.read_table(buckets.reader_of(one[0])) for one in files]
    return folders, pa.concat_tables(rows)


def as_rows(table):
    return sorted(
        zip(*(table.column(n).to_pylist() for n in ("key", "left", "right")), strict=True)
    )


def test_results_are_there_once_also_after_a_restart_with_new_files(ran):
    bucket, told, tables, _ = ran
    _, found = visible(f"{bucket}/out")
    assert as_rows(found) == expected(tables, 2)
    first = len(expected(tables, 1))
    assert told["parquet"] == [first, found.num_rows - first, 0]
    assert told["parquet"][1] > 0


def test_a_disk_that_does_not_belong_to_the_state_is_refused(ran):
    of_files, of_others = ran[1]["refused"]
    assert "/empty is empty, but the state in" in of_files
    assert "Spark's file source keeps its progress in that folder only" in of_files
    assert "belong to two different queries" in of_others


@pytest.mark.parametrize("sink", ["function", "memory"])
def test_sinks_that_take_frames(ran, sink):
    _, told, tables, _ = ran
    rows = sorted((row["key"], row["left"], row["right"]) for row in told[sink])
    assert rows == expected(tables, 1)


def test_transformed_results_in_folders(ran):
    bucket, _, tables, _ = ran
    folders, found = visible(f"{bucket}/odd")
    assert {tuple(one) for one in folders} == {("part=0",), ("part=1",)}
    assert as_rows(found) == [row for row in expected(tables, 1) if row[0] % 2]


def test_nothing_is_on_the_drivers_disk_but_sparks_own_logs(ran):
    bucket, _, _, root = ran
    for name, has_frames in (("parquet", False), ("frames", True)):
        assert not (root / name / "joinengine").exists()
        assert (root / name / "offsets").is_dir() is has_frames
    theirs = MACHINE.storage(f"{bucket}/state/parquet/joinengine").names()
    assert {"manifest", "runs", "query.json", "generations", "sources"} <= set(theirs)
