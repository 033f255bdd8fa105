"""A driver for test_fence: runs a join for each root that it reads, until a file says stop."""

from __future__ import annotations

import sys
from pathlib import Path

from joinengine import (
    CheckpointMismatch,
    StreamJoin,
    TakenOver,
    equi,
    parquet_stream,
    session,
)


def start(spark, root):
    left, right = (
        parquet_stream(spark, str(root / side), rows_per_interval=1000)
        for side in ("left", "right")
    )
    on = equi("l_key", "r_key")
    join = StreamJoin(left, right, on=on, layout="mnrt", instances=3)
    writer = join.writeStream.option("checkpointLocation", root / "checkpoint")
    writer = writer.option("takeover", "take")  # of drivers that are paused, too
    writer = writer.trigger(processingTime="50 milliseconds").format("parquet")
    return writer.start(str(root / "out"))


def drive(spark, root):
    """Run until the file says stop; returns the driver's last line."""
    while True:
        query = start(spark, root)
        try:
            while not (root / "stop").exists():
                query.awaitTermination(0.05)
            query.processAllAvailable()
            query.stop()
            return "done"
        except TakenOver as error:
            return str(error)
        except CheckpointMismatch as error:
            assert "Start this query again" in str(error)
            print(error, file=sys.stderr, flush=True)


if __name__ == "__main__":
    spark = session(master="local[1]")
    print("ready", flush=True)
    for line in sys.stdin:
        print(drive(spark, Path(line.strip())), flush=True)
