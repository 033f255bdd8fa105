"""Joinengine as a system of the comparison."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from benchmarks.peers.jobs import REACH, Batch, Job, Outcome
from benchmarks.peers.sessions import file_stream, users_session
from benchmarks.peers.stream import SIDES, WARM_BATCHES
from joinengine import StreamJoin, band, equi, parquet_stream, session, within
from joinengine.driver.records import BatchRecord
from joinengine.spark.sources.inputs import recorded_stream

INSTANCES = 8
#: The part of a batch's rows that a `parquet_stream` is asked for. It takes whole row groups until
#: it has as many; files have four groups of equal size, so it takes them all.
FILLED = 0.9


class Ours(NamedTuple):
    """Joinengine, from its own source or from Spark's Parquet source.

    `from_frames`: the latter. `in_users_session`: in a session that joinengine has not made; its
    own source is a `parquet_stream` there, and else one that has the batches of all others.
    """

    layout: str = "hash"
    from_frames: bool = False
    in_users_session: bool = False

    def run(self, job: Job) -> list[Outcome]:
        """Run it, query by query, in one session."""
        spark = users_session() if self.in_users_session else session(master="local[2]")
        return [self._query(spark, job) for _ in range(job.queries)]

    def _query(self, spark: Any, job: Job) -> Outcome:
        near = band("o_orderkey", "l_orderkey", lower=-REACH, upper=REACH)
        joined = StreamJoin(
            *(self._side(spark, Path(job.folder), name) for name in SIDES),
            on=near if job.is_band else equi("o_orderkey", "l_orderkey"),
            within=within("o_ts", "l_ts", lower="0 s", upper=f"{job.upper_us} us", delay="0 s"),
            how=job.how,
            layout=self.layout,
            instances=INSTANCES,
        )
        with tempfile.TemporaryDirectory(prefix="joinengine-bench-") as checkpoint:
            writer = joined.writeStream.format("noop").option("checkpointLocation", checkpoint)
            begin = time.time()
            query = writer.trigger(availableNow=True).start()
            started = time.time()
            query.awaitTermination()
            ended = time.time()
            records = query.batches()
        return Outcome(
            start_s=started - begin,
            first_s=records[0].started + records[0].trigger_s - started,
            whole_s=ended - begin,
            batches=[Batch(record.input_rows, record.trigger_s) for record in records],
            results=sum(record.output_rows for record in records),
            split=_split([record for record in records[WARM_BATCHES:] if record.input_rows]),
        )

    def _side(self, spark: Any, folder: Path, name: str) -> Any:
        if self.from_frames:
            return file_stream(spark, folder / name)
        if self.in_users_session:
            rows = [pq.read_metadata(file).num_rows for file in (folder / name).iterdir()]
            each = round(FILLED * statistics.median(rows))
            return parquet_stream(spark, folder / name, rows_per_interval=each)
        schema = pq.read_schema(folder / name / "00000.parquet")
        return recorded_stream(spark, folder / f"{name}.json", schema)


def _split(records: list[BatchRecord]) -> dict[str, float]:
    """Where the time of batches went, as parts of their triggers.

    Tasks run on two cores, so half of their work counts. The rest of the route and join jobs is
    scheduling, and the idle time of the core that finishes first.
    """
    total = sum(record.trigger_s for record in records)
    if not total:
        return {}
    work = {
        part: sum(record.work_s[part] for record in records) / 2
        for part in sorted({part for record in records for part in record.work_s})
    }
    spent = {step: sum(record.seconds[step] for record in records) for step in records[0].seconds}
    parts = work | {
        "both steps, beside work": spent["route_s"] + spent["join_s"] - sum(work.values()),
        "plan": spent["plan_s"],
        "commit": spent["commit_s"],
        "sink and clean-up": spent["sink_s"] + spent["clean_s"],
        "Spark's logs and planning": total - spent["elapsed_s"],
    }
    return {name: seconds / total for name, seconds in parts.items()}
