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
    from joinengine.queries import Options, find  # noqa: PLC0415
    from joinengine.queries.running import Places, run  # noqa: PLC0415

    def watch(rows, total, batches):
        if batches != watch.said:
            watch.said = batches
            print("done", batches)

    watch.said = None
    spark = session(master=master)
    options = Options(scale=0.01, zipf=1.0, instances=6, interval_rows=3000)
    given = json.loads(places)
    where = Places(**{what: at if what == "state" else Path(at) for what, at in given.items()})
    found = run(spark, find(name), options, where, validate=True, watch=watch, say=print)
    Path(report).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    {"join": join, "query": query}[sys.argv[1]](*sys.argv[2:])
