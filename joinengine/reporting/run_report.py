"""The JSON report of a run, made from batch records: the public keys and what they mean.

The per-instance figures and the load skew at the top are those of the operator that received most
tuples; `joins` has them for each operator. Received: deliveries to an instance. Stored: copies held
after the last batch that brought tuples. Skew: greatest over mean, over the whole run and over the
last half of the batches that brought tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.balancing.statistics import skew
from joinengine.driver.figures import FIGURES, OF_BATCH, SUMS
from joinengine.driver.records import BatchRecord, OperatorRecord, latency_s

#: The version of the report; it rises if a key changes its meaning, or a page needs a new key.
FORMAT = 2
STEPS = ("route_s", "join_s", "sink_s", "commit_s", "plan_s")
#: How much waits in a partition of a source.
_BEHIND = pa.struct(
    [(name, pa.int64()) for name in ("source", "partition", "rows")] + [("seconds", pa.float64())]
)
#: The columns of `batch_rows`.
BATCH_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("batch", "input_rows", "output_rows")]
    + [(name, pa.float64()) for name in ("elapsed_s", *STEPS, "recovery_s")]
    + [(name, pa.int64()) for name in (*OF_BATCH, "layout_versions")]
    + [("layouts", pa.list_(pa.string())), ("load_skew", pa.float64())]
    + [("busiest_instance", pa.int64()), ("busiest_share", pa.float64())]
    + [("busiest_s", pa.float64())]
    + [("latency_s", pa.struct([("p50", pa.float64()), ("p99", pa.float64())]))]
    + [("skipped_files", pa.list_(pa.string())), ("tasks", pa.string())]
    + [("behind_rows", pa.int64()), ("behind_s", pa.float64()), ("behind", pa.list_(_BEHIND))]
)


def batch_rows(record: BatchRecord) -> dict[str, Any]:
    """One row of `batches`."""
    joins, busiest = record.joins, record.busiest
    return {
        "batch": record.batch,
        "input_rows": record.input_rows,
        "output_rows": record.output_rows,
        "elapsed_s": record.trigger_s,
        **{step: record.seconds[step] for step in STEPS},
        "recovery_s": record.recovery_s,
        **{name: sum(FIGURES[name].of(join) for join in joins) for name in OF_BATCH},
        "layout_versions": max(join.layout_versions for join in joins),
        "layouts": [join.layout for join in joins],
        "load_skew": None if busiest is None else busiest.skew,
        "busiest_instance": None if busiest is None else busiest.instance,
        "busiest_share": None if busiest is None else busiest.share,
        "busiest_s": None if busiest is None else busiest.busy_s,
        "latency_s": _latency_s([record]),
        "skipped_files": [f"{skip.file}: {skip.reason}" for skip in record.skipped],
        "tasks": record.tasks,
        "behind_rows": record.behind_rows,
        "behind_s": record.behind_s,
        "behind": behind(record),
    }


def behind(record: BatchRecord) -> list[dict[str, Any]]:
    """How much waited in each partition of the sources when the batch began."""
    return [
        {
            **{"source": source, "partition": number, "rows": rows},
            "seconds": progress.lag_s(number, record.started),
        }
        for source, progress in record.partitions.items()
        for number, rows in progress.behind.items()
    ]


def run_report(records: Sequence[BatchRecord]) -> dict[str, Any]:
    """The figures of a run; the caller adds `made_by`."""
    joins = list(map(_join_figures, zip(*(record.joins for record in records), strict=True)))
    largest = max(
        joins, key=lambda join: sum(join["received_per_instance"]), default=_join_figures([])
    )
    input_rows = sum(record.input_rows for record in records)
    busy = sum(record.trigger_s for record in records)
    checksum = sum(record.checksum for record in records) % (1 << 64)
    output_rows = sum(record.output_rows for record in records)
    return {
        "format": FORMAT,
        "input_rows": input_rows,
        "output_rows": output_rows,
        "elapsed_s": _elapsed(records),
        "rows_per_s": input_rows / busy if busy else 0.0,
        "latency_s": _latency_s(records),
        "batches": [batch_rows(record) for record in records],
        **{key: largest[key] for key in _PER_INSTANCE},
        **{name: sum(join[name] for join in joins) for name in SUMS if name != "output_rows"},
        "plan_s": sum(record.seconds["plan_s"] for record in records),
        "moved_fraction": _moved_fraction(records),
        "report_bytes": {
            way: sum(join["report_bytes"][way] for join in joins) for way in ("up", "down")
        },
        "result_checksum": checksum_text(output_rows, checksum),
        "joins": joins,
    }


def checksum_text(rows: int, total: int) -> str:
    """Number of rows and sum of row hashes: equal for equal multisets.

    >>> checksum_text(2, 255)
    '2:00000000000000ff'
    """
    return f"{rows}:{total:016x}"


_PER_INSTANCE = (
    "received_per_instance",
    "stored_per_instance",
    "busy_s_per_instance",
    "candidates_per_instance",
    "results_per_instance",
    "instances_used",
    "load_skew",
)


def _latency_s(records: Sequence[BatchRecord]) -> dict[str, float | None]:
    return {"p50": latency_s(records, 0.5), "p99": latency_s(records, 0.99)}


def _join_figures(batches: Sequence[OperatorRecord]) -> dict[str, Any]:
    """One operator over all batches."""
    working = [b for b in batches if sum(b.work.received)]
    half = working[len(working) // 2 :]
    received, busy, held = (
        [_per_batch(part, name) for part in (working, half)]
        for name in ("work.received", "work.busy_s", "state.held")
    )
    return {
        "received_per_instance": _summed(working, "work.received"),
        "stored_per_instance": list(working[-1].state.held) if working else [],
        "busy_s_per_instance": _total(_per_batch(batches, "work.busy_s")).round(6).tolist(),
        "instances_used": working[-1].instances if working else 0,
        "load_skew": {
            name: {"run": skew(_total(whole)), "last_half": skew(_total(last))}
            for name, (whole, last) in (("received", received), ("stored", held), ("busy", busy))
        },
        "candidates_per_instance": _summed(batches, "work.compared"),
        "results_per_instance": _summed(batches, "work.made"),
        "input_rows": int(sum(sum(b.work.received) for b in batches)),
        **{name: sum(FIGURES[name].of(b) for b in batches) for name in SUMS},
        "received_by_batch": _per_batch(batches, "work.received").astype(int).tolist(),
        "busy_s_by_batch": _per_batch(batches, "work.busy_s").round(6).tolist(),
        "backed_by_batch": _backed(batches),
        "report_bytes": {
            "up": sum(b.told.up_bytes for b in batches),
            "down": sum(b.told.down_bytes for b in batches),
        },
        "report_bytes_by_batch": [[b.told.up_bytes, b.told.down_bytes] for b in batches],
    }


def _backed(batches: Sequence[OperatorRecord]) -> list[list[int]]:
    """Per batch, the tuples that each instance kept as backups; empty without backups."""
    if not any(sum(b.work.backed) for b in batches):
        return []
    backed: list[list[int]] = _per_batch(batches, "work.backed").astype(int).tolist()
    return backed


def _per_batch(batches: Sequence[OperatorRecord], name: str) -> NDArray[np.float64]:
    """(batches, N) figures per instance; 0 for an instance that did not exist in a batch."""
    amounts = np.zeros((len(batches), max((b.instances for b in batches), default=0)))
    listed = attrgetter(name)
    for row, batch in zip(amounts, batches, strict=True):
        figures = listed(batch)
        row[: len(figures)] = figures
    return amounts


def _summed(batches: Sequence[OperatorRecord], name: str) -> list[int]:
    """Counts per instance, over the batches."""
    sums: list[int] = _total(_per_batch(batches, name)).astype(int).tolist()
    return sums


def _total(per_batch: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(per_batch.sum(axis=0)) if len(per_batch) else np.zeros(0)


def _moved_fraction(records: Sequence[BatchRecord]) -> float:
    """Moved tuples over the tuples of the state before the move, mean over the moves."""
    moves = [j for r in records for j in r.joins if j.moved.from_rows]
    return float(np.mean([j.moved.rows / j.moved.from_rows for j in moves])) if moves else 0.0


def _elapsed(records: Sequence[BatchRecord]) -> float:
    """Seconds from the first trigger to the last commit."""
    if not records:
        return 0.0
    first, last = records[0], records[-1]
    before = first.trigger_s - first.seconds["elapsed_s"]
    return last.started + last.seconds["elapsed_s"] - first.started + before
