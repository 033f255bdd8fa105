"""EQ5 at many instances: `python -m benchmarks.peers.instances LAYOUT SIZE` prints one JSON line.

The cost of each instance in a batch shows if instances are many and have few tuples.
"""

from __future__ import annotations

import json
import statistics
import sys

from benchmarks.peers.stream import WARM_BATCHES
from joinengine import session
from joinengine.lab.queries import Options, find
from joinengine.lab.queries.named_query import layout_of
from joinengine.lab.queries.runs import Places, run

INSTANCES, ZIPF = 512, 0.8
#: TPC-H's scale and the rows of a batch at size 1.
SCALE, ROWS = 0.1, 60_000


def main() -> None:
    """Run it once; seconds of a batch are the median of the batches that are full."""
    layout, size = sys.argv[1], float(sys.argv[2])
    rows = round(ROWS * size)
    options = Options(
        scale=SCALE * size,
        zipf=ZIPF,
        interval_rows=rows,
        instances=INSTANCES,
        layout=layout_of(layout),
    )
    spark = session(master="local[2]")
    report = run(spark, find("eq5"), options, Places())
    spark.stop()
    full = [batch for batch in report["batches"][WARM_BATCHES:] if batch["input_rows"] >= rows]
    batch_s = statistics.median(batch["elapsed_s"] for batch in full)
    print("\n" + json.dumps({"batch_s": batch_s, "results": report["output_rows"]}))


if __name__ == "__main__":
    main()
