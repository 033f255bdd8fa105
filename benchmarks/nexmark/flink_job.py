"""A query of Nexmark in Flink's SQL: `flink_job.py JOB` in an environment that has PyFlink.

JOB is JSON (`benchmarks.nexmark.jobs.Job`). Two subtasks, state on the heap, checkpoints as often
as Flink's own runs of Nexmark have them. Nothing of joinengine is imported here.
"""

import json
import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

CHECKPOINTS = "180 s"
TYPES = {"int": "BIGINT", "text": "STRING"}
QUERIES = {
    "nexmark-q3": """
        SELECT P.name, P.city, P.state, A.`number`
        FROM auction A JOIN person P ON A.seller = P.`number`
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "nexmark-q8": """
        SELECT P.`number`, P.name, 1000 * UNIX_TIMESTAMP(CAST(P.starttime AS STRING))
        FROM (SELECT `number`, name, window_start AS starttime, window_end AS endtime
              FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(`at`), INTERVAL '10' SECOND))
              GROUP BY `number`, name, window_start, window_end) P
        JOIN (SELECT seller, window_start AS starttime, window_end AS endtime
              FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(`at`), INTERVAL '10' SECOND))
              GROUP BY seller, window_start, window_end) A
        ON P.`number` = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime""",
    "nexmark-q20": """
        SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.`dateTime`, B.extra, A.itemName,
               A.description, A.initialBid, A.reserve, A.`dateTime`, A.expires, A.seller,
               A.category, A.extra
        FROM bid B JOIN auction A ON B.auction = A.`number` WHERE A.category = 10""",
}


def main():
    """Run it; on a line of its own, say when it begins and when it has ended, and wait."""
    job = json.loads(sys.argv[1])
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    asked = {
        "parallelism.default": "2",
        "execution.checkpointing.interval": CHECKPOINTS,
        "execution.checkpointing.storage": "filesystem",  # in memory they may have 5 MB
        "execution.checkpointing.dir": Path(f"{job['out']}-checkpoints").absolute().as_uri(),
        # A busy machine is not a failure, and a restarted run gives no figure.
        "heartbeat.timeout": "600 s",
        "restart-strategy.type": "none",
        "table.local-time-zone": "UTC",
    }
    for name, value in asked.items():
        env.get_config().set(name, value)
    for table, columns in job["tables"].items():
        listed = [f"`{name}` {TYPES[kind]}" for name, kind in columns.items()]
        if "dateTime" in columns:
            listed.append("`at` AS TO_TIMESTAMP_LTZ(`dateTime`, 3)")
            listed.append("WATERMARK FOR `at` AS `at` - INTERVAL '4' SECOND")
        place = Path(job["folder"], f"{table}.csv").absolute().as_uri()
        env.execute_sql(
            f"CREATE TABLE {table} ({', '.join(listed)}) "
            f"WITH ('connector' = 'filesystem', 'path' = '{place}', 'format' = 'csv')"
        )
    columns = ", ".join(f"`{name}` {TYPES[kind]}" for name, kind in job["results"].items())
    place = Path(job["out"]).absolute().as_uri()
    env.execute_sql(
        f"CREATE TABLE results ({columns}) "
        f"WITH ('connector' = 'filesystem', 'path' = '{place}', 'format' = 'csv')"
    )
    print("BEGIN", flush=True)
    env.execute_sql(f"INSERT INTO results {QUERIES[job['query']]}").wait()
    print("END", flush=True)
    sys.stdin.readline()


main()
