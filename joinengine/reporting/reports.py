"""Batch records as the rows and totals of the JSON report (the public keys)."""

from __future__ import annotations

from typing import Any

from joinengine.reporting.records import BatchRecord


def batch_rows(record: BatchRecord) -> dict[str, Any]:
    """One row of `batches`."""
    joins = record.joins
    return {
        "batch": record.batch,
        "input_rows": record.input_rows,
        "output_rows": record.output_rows,
        "elapsed_s": record.trigger_s,
        "route_s": record.seconds["route_s"],
        "join_s": record.seconds["join_s"],
        "sink_s": record.seconds["sink_s"],
        "commit_s": record.seconds["commit_s"],
        "plan_s": record.seconds["plan_s"],
        "state_rows": sum(join.state_rows for join in joins),
        "state_bytes": sum(join.state_bytes for join in joins),
        "moved_rows": sum(join.moved_rows for join in joins),
        "moved_bytes": sum(join.moved_bytes for join in joins),
        "routing_entries": sum(join.routing_entries for join in joins),
        "split_keys": sum(join.split_keys for join in joins),
        "probe_copies": sum(join.probe_copies for join in joins),
        "expired_rows": sum(join.expired_rows for join in joins),
        "late_rows": sum(join.late_rows for join in joins),
        "null_rows": sum(join.null_rows for join in joins),
        "latency_s": {"p50": record.latency_s(0.5), "p99": record.latency_s(0.99)},
    }
