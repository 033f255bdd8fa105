"""The systems that are compared, and the process that runs a job in one of them.

    python -m benchmarks.peers.systems SYSTEM JOB

prints a JSON list: an `Outcome` for each query. All systems read the same files, one file for each
side and micro-batch, and hand their results to a sink that drops them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import duckdb

from benchmarks.peers.jobs import REACH, Batch, Job, Outcome
from benchmarks.peers.ours import Ours
from benchmarks.peers.sparks import ROCKSDB, Sparks


class System(Protocol):
    """A system that can run a job."""

    def run(self, job: Job) -> list[Outcome]:
        """Run it, query by query."""


class Duck(NamedTuple):
    """DuckDB: the join as one batch query over the same files, results in Arrow. The limit."""

    def run(self, job: Job) -> list[Outcome]:
        """Run it, query by query, after one that is not counted."""
        # Two bounds, which its range join uses; abs() would have it look at every pair within time.
        on = f"l_orderkey between o_orderkey - {REACH} and o_orderkey + {REACH}"
        on = on if job.is_band else "o_orderkey = l_orderkey"
        sql = (
            f"select * from '{job.folder}/orders/*.parquet' {job.how} "
            f"join '{job.folder}/lineitem/*.parquet' "
            f"on {on} and epoch_us(l_ts) - epoch_us(o_ts) between 0 and {job.upper_us}"
        )
        rows = sum(json.loads(Path(job.folder, "batches.json").read_text()))
        with duckdb.connect(":memory:", config={"threads": 2}) as db:
            db.sql(sql).to_arrow_table()
            return [_timed(db, sql, rows) for _ in range(job.queries)]


def _timed(db: duckdb.DuckDBPyConnection, sql: str, rows: int) -> Outcome:
    begin = time.perf_counter()
    results = db.sql(sql).to_arrow_table().num_rows
    seconds = time.perf_counter() - begin
    return Outcome(0.0, seconds, seconds, [Batch(rows, seconds)], results, {})


OURS = "joinengine"
MEMORY = "Spark, in memory"
SYSTEMS: Mapping[str, System] = {
    OURS: Ours(),
    f"{OURS}, mnrt": Ours(layout="mnrt"),
    f"{OURS}, user's session": Ours(in_users_session=True),
    f"{OURS}, Parquet source": Ours(from_frames=True),
    f"{OURS}, Parquet source, user's session": Ours(from_frames=True, in_users_session=True),
    MEMORY: Sparks({}),
    "Spark, RocksDB 2": Sparks(ROCKSDB | {"spark.sql.streaming.join.stateFormatVersion": "2"}),
    "Spark, RocksDB 4": Sparks(ROCKSDB | {"spark.sql.streaming.join.stateFormatVersion": "4"}),
    "DuckDB, one batch": Duck(),
}


def main() -> None:
    """Run a job in one system."""
    name, job = sys.argv[1:]
    outcomes = SYSTEMS[name].run(Job(**json.loads(job)))
    print("\n" + json.dumps([outcome._asdict() for outcome in outcomes]))


if __name__ == "__main__":
    main()
