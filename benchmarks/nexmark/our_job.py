"""A query of Nexmark in joinengine: `python -m benchmarks.nexmark.our_job JOB LAYOUT`."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace

from benchmarks.nexmark.jobs import Job
from joinengine import session
from joinengine.lab.queries import Options, find
from joinengine.layouts import choose


def main() -> None:
    """Run it; on a line of its own, say when it begins and when it has ended, and wait."""
    job, layout = Job(**json.loads(sys.argv[1])), sys.argv[2]
    query, spark = find(job.query), session(master="local[2]")
    options = replace(Options(scale=job.scale), layout=choose(layout))
    joined = query.build(spark, query.stream(options).record(), options)
    with tempfile.TemporaryDirectory(prefix="joinengine-nexmark-") as checkpoint:
        writer = joined.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        print("BEGIN", flush=True)
        writer.trigger(availableNow=True).start(job.out).awaitTermination()
        print("END", flush=True)
        sys.stdin.readline()
    spark.stop()


if __name__ == "__main__":
    main()
