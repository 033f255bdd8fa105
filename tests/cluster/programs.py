"""Programs that tests run on a driver's machine: `python -m tests.cluster.programs NAME ..`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from joinengine import JoinEngineError, StreamJoin, parquet_stream, session


def join(master, folder, checkpoint, out):
    """Join two small streams; prints what has become of it as JSON."""
    spark = session(master=master)
    left, right = (parquet_stream(spark, f"{folder}/{side}") for side in ("left", "right"))
    joined = StreamJoin(left, right, on="key", instances=3)
    writer = joined.writeStream.format("parquet").trigger(availableNow=True)
    query, said = None, {"error": None, "message": ""}
    try:
        query = writer.option("checkpointLocation", checkpoint).start(out)
        query.awaitTermination()
    except JoinEngineError as error:
        said = {"error": type(error).__name__, "message": str(error)}
    said["started"] = query is not None
    said["left_behind"] = sorted(map(str, Path(checkpoint).parent.glob("*")))
    print(json.dumps(said))
    spark.stop()


def query(master, name, places, report):
    """Run a query of the command line in small batches, and say how many are done.

    `places`: the arguments of `Places`, as JSON; `report`: the file of its report.
    """
    from joinengine.lab.queries import Options, find  # noqa: PLC0415
    from joinengine.lab.queries.runs import Followers, Places, run  # noqa: PLC0415

    def watch(rows, total, batches):
        if batches != watch.said:
            watch.said = batches
            print("done", batches)

    watch.said = None
    spark = session(master=master)
    options = Options(scale=0.01, zipf=1.0, instances=6, interval_rows=3000)
    given = json.loads(places)
    where = Places(**{what: at if what == "state" else Path(at) for what, at in given.items()})
    found = run(spark, find(name), options, where, validate=True, followers=Followers(print, watch))
    Path(report).write_text(json.dumps(found))
    spark.stop()


def sinks(master, bucket, shared):
    """Bring one join's results to each sink, in turn; prints the keys that each has, as JSON.

    Streams and state lie in the bucket. What Spark writes itself goes to the folder `shared`.
    """
    spark = session(master=master, spark__sql__warehouse__dir=f"{shared}/warehouse")
    sides = ("left", "right")
    streams = [parquet_stream(spark, f"{bucket}/in/{one}", rows_per_interval=2) for one in sides]
    joined = StreamJoin(*streams, on="key", instances=3)
    found, batches = {}, {}

    def run(sink, results, make):
        writer = results.writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"/tmp/driver/checkpoints/{sink}")
        make(writer.option("stateLocation", f"{bucket}/state/{sink}")).awaitTermination()

    def take(frame, batch):
        batches[batch] = sorted(row.key for row in frame.collect())

    def parquet(folder, **options):
        return lambda w: w.format("parquet").options(**options).start(f"{bucket}/out/{folder}")

    run("parquet", joined, parquet("parquet"))
    run("by day", joined, lambda w: parquet("by-day")(w.partitionBy("day")))
    run("held", joined, parquet("held", compactEvery=5))
    run("transformed", joined.transform(lambda f: f.where("key > 1")), parquet("transformed"))
    run("noop", joined, lambda w: w.format("noop").start())
    run("console", joined, lambda w: w.format("console").start())
    run("foreachBatch", joined, lambda w: w.foreachBatch(take).start())
    run("memory", joined, lambda w: w.format("memory").queryName("in_memory").start())
    run("table", joined, lambda w: w.toTable("in_table"))
    run("json", joined, lambda w: w.format("json").start(f"{shared}/json"))
    found["foreachBatch"] = [batches[number] for number in sorted(batches)]
    for sink, frame in {
        "memory": spark.table("in_memory"),
        "table": spark.table("in_table"),
        "json": spark.read.json(f"{shared}/json"),
    }.items():
        found[sink] = sorted(row.key for row in frame.collect())
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    {"join": join, "query": query, "sinks": sinks}[sys.argv[1]](*sys.argv[2:])
