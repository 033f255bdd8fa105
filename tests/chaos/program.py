"""A driver: it runs the query of a seed until a file says stop, and all of the streams is joined.

`python -m tests.chaos.program ROOT SEED STATE BUG`: `STATE`: where state lies, if not in the
checkpoint; `BUG`: one of the simulator's, planted into this driver. It ends with 0, or with 1 when
the query ended with a sentence of the engine.
"""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from pathlib import Path

from joinengine import JoinEngineError, StreamJoin, equi, parquet_stream, session, within
from tests.chaos.case import DELAY_S, REACH_S, ROWS, Case
from tests.chaos.streams import SIDES
from tests.simulator.bugs import BUGS

#: Executors that may be killed again and again, and second attempts as soon as a task is slow.
SETTINGS = {
    "spark__executor__memory": "700m",
    "spark__deploy__maxExecutorRetries": "-1",
    "spark__speculation": "true",
    "spark__speculation__interval": "50ms",
    "spark__speculation__quantile": "0.5",
    "spark__speculation__multiplier": "1.2",
    "spark__speculation__minTaskRuntime": "50ms",
}


def start(spark, root, case, state):
    """Start the query."""
    sides = [parquet_stream(spark, root / "in" / side, rows_per_interval=ROWS) for side in SIDES]
    reach, delay = f"{REACH_S} s", f"{DELAY_S} s"
    joined = StreamJoin(
        *sides,
        on=equi("lk", "rk"),
        within=within("lt", "rt", lower=f"-{reach}", upper=reach, delay=delay),
        how=case.how,
        layout=case.choice,
        instances=case.instances,
    )
    writer = joined.writeStream.format("parquet").trigger(processingTime="100 milliseconds")
    writer = writer.option("checkpointLocation", str(root / "checkpoint" / "query"))
    writer = writer.option("exchange", case.exchange).option("takeover", "take")
    if state:
        writer = writer.option("stateLocation", state).option("durability", case.durability)
    return writer.start(str(root / "out" / "results"))


def drive(root, case, state):
    """Run until the file says stop."""
    spark = session(master=f"local-cluster[{case.executors},1,1024]", **SETTINGS)
    query = start(spark, root, case, state)
    query.add_listener(lambda progress: print("batch", progress.batchId, flush=True))
    print("started", flush=True)
    while not (root / "stop").exists():
        query.awaitTermination(0.2)
    query.processAllAvailable()
    query.stop()
    print("done", flush=True)


def main():
    logging.getLogger("joinengine.failures").addHandler(logging.StreamHandler())
    root, seed, state, bug = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    with BUGS[bug]() if bug else nullcontext():
        try:
            drive(root, Case.of(seed), state)
        except JoinEngineError as error:
            print(f"ended {type(error).__name__}: {error}", flush=True)
            sys.exit(1)


if __name__ == "__main__":
    main()
