"""The progress of a query: one line per batch for people, and Spark's own form for programs.

Why: Spark does not see the tuples of joinengine's own source, and knows nothing of state outside
its own stores. So the fields of its progress reports are filled from the records of batches; what
only Spark knows (its durations, offsets) stays. docs/metrics.md has all fields.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from joinengine.driver.figures import FIGURES
from joinengine.driver.records import BatchRecord, OperatorRecord
from joinengine.model.texts import counted, size_text
from joinengine.reporting.run_report import STEPS, batch_rows
from joinengine.reporting.words import hash_text

#: The name of joinengine's metrics in `observedMetrics`.
METRICS = "joinengine"
#: How many split keys a line names.
_MOST_NAMED = 3
#: Figures of an operator that Spark's progress has no place for.
CUSTOM: Mapping[str, Callable[[OperatorRecord], int]] = {
    **{name: one.of for name, one in FIGURES.items() if one.spark is None},
    "layout_versions": attrgetter("layout_versions"),
}


def batch_line(record: BatchRecord) -> str:
    """A batch in words, on one line."""
    joins = record.joins
    taken = whole_s(record)
    rows, size = sum(j.state.rows for j in joins), sum(j.state.size_bytes for j in joins)
    parts = [
        f"batch {record.batch}: {counted(record.input_rows, 'row')} in {taken:.2f} s "
        f"({record.input_rows / taken if taken else 0:,.0f} rows/s)",
        counted(record.output_rows, "result"),
        f"state {counted(rows, 'row')}, {size_text(size)}",
    ]
    for figure in FIGURES.values():
        count = sum(figure.of(join) for join in joins)
        parts += [f"{count:,} {figure.words}"] if count and figure.words else []
    if record.behind_rows:
        old = "" if record.behind_s is None else f" for up to {record.behind_s:,.1f} s"
        parts.append(f"{record.behind_rows:,} waiting in topics{old}")
    parts += _split_words(joins)
    if record.busiest is not None:
        busiest = record.busiest
        parts.append(
            f"layout {' and '.join(dict.fromkeys(join.layout for join in joins))}, load skew "
            f"{busiest.skew:.2f} (instance {busiest.instance} received {busiest.share:.0%} of the "
            f"rows and was busy for {busiest.busy_s:.2f} s)"
        )
    times = _event_time(joins)
    parts += [f"watermark {times['watermark']}"] if "watermark" in times else []
    return ", ".join(parts)


def _split_words(joins: Sequence[OperatorRecord]) -> list[str]:
    """How many keys several instances share, and the hottest of them by name."""
    split = sum(join.split_keys for join in joins)
    if not split:
        return []
    shared = [
        key
        for join in joins
        for key in join.heat.keys
        if key.listed and key.placement is not None and len(key.placement.homes) > 1
    ]
    shared.sort(key=lambda key: -key.rows)
    names = [f"#{hash_text(key.hash_)}" if key.text is None else key.text for key in shared]
    named = list(dict.fromkeys(names))[:_MOST_NAMED]
    more = [".."] if named and len(named) < split else []
    return [counted(split, "split key") + (f" ({', '.join([*named, *more])})" if named else "")]


def whole_s(record: BatchRecord) -> float:
    """Seconds of the whole trigger; until Spark reports them, seconds of joinengine's part."""
    return max(record.trigger_s, record.seconds.get("elapsed_s", 0.0))


def steps_of(record: BatchRecord) -> dict[str, float]:
    """Seconds of a batch by step; `other` is the rest: Spark's planning and logs, cleaning up."""
    steps = {step.removesuffix("_s"): record.seconds.get(step, 0.0) for step in STEPS}
    return steps | {"other": max(0.0, whole_s(record) - sum(steps.values()))}


def filled(
    progress: dict[str, Any],
    record: BatchRecord,
    before: BatchRecord | None,
    operators: Sequence[str],
) -> dict[str, Any]:
    """Spark's progress of a batch, as plain values, completed by joinengine's figures.

    `before`: the record of the batch before, in this run. `operators`: their names.
    """
    rates = _rates(record.input_rows, record, before)
    by_spark = sum(source.get("numInputRows", 0) for source in progress["sources"])
    ours = _rates(max(record.input_rows - by_spark, 0), record, before)
    metrics = {METRICS: _flat(batch_rows(record))}
    return {
        **progress,
        **rates,
        "eventTime": _event_time(record.joins),
        "stateOperators": [
            _state_operator(name, join) for name, join in zip(operators, record.joins, strict=True)
        ],
        "sources": [
            source if "numInputRows" in source else source | ours for source in progress["sources"]
        ],
        "sink": progress["sink"] | {"numOutputRows": record.output_rows},
        "observedMetrics": progress.get("observedMetrics", {}) | metrics,
    }


def _rates(rows: int, record: BatchRecord, before: BatchRecord | None) -> dict[str, float]:
    gap = record.started - before.started if before is not None else 0.0
    return {
        "numInputRows": rows,
        "inputRowsPerSecond": rows / gap if gap > 0 else 0.0,
        "processedRowsPerSecond": rows / whole_s(record) if whole_s(record) else 0.0,
    }


def outline(about: dict[str, Any], record: BatchRecord) -> dict[str, Any]:
    """The progress of a batch that Spark has not reported, to be `filled`.

    `about`: `id`, `runId` and `name` of the query. Its durations are those of joinengine's steps.
    """
    durations = {"triggerExecution": whole_s(record), "addBatch": whole_s(record)}
    durations |= {step: s for step, s in steps_of(record).items() if step != "other"}
    return {
        **about,
        "timestamp": _iso(record.started * 1e6),
        "batchId": record.batch,
        "batchDuration": round(whole_s(record) * 1e3),
        "durationMs": {name: round(seconds * 1e3) for name, seconds in durations.items()},
        "sources": [],
        "sink": {"description": METRICS, "numOutputRows": 0, "metrics": {}},
    }


def offsets(record: BatchRecord) -> dict[str, Any]:
    """Where a batch begins and ends, as one source for all of joinengine's own."""
    start, end = (_texts(position) for position in (record.start, record.end))
    ends = {"startOffset": start, "endOffset": end, "latestOffset": end}
    return {"description": METRICS, **ends, "metrics": {}}


def _texts(place: Any) -> Any:
    """A position, or positions by source, with text as keys, as in JSON."""
    return {str(k): _texts(v) for k, v in place.items()} if isinstance(place, Mapping) else place


def _state_operator(name: str, join: OperatorRecord) -> dict[str, Any]:
    return {
        "operatorName": name,
        **{figure.spark: figure.of(join) for figure in FIGURES.values() if figure.spark},
        "numRowsUpdated": sum(side.homed for side in join.sides),
        "allUpdatesTimeMs": round(sum(join.work.busy_s) * 1e3),
        "allRemovalsTimeMs": 0,
        "commitTimeMs": 0,
        "numShufflePartitions": join.instances,
        "numStateStoreInstances": join.instances,
        "customMetrics": {name: of(join) for name, of in CUSTOM.items()},
    }


def _event_time(joins: Sequence[OperatorRecord]) -> dict[str, str]:
    """The greatest event time so far, and the least watermark; unknown values are left out.

    The least watermark is unknown while some timed operator has no watermark yet.
    """
    newest = [side.newest for join in joins for side in join.sides if math.isfinite(side.newest)]
    watermark = min((join.watermark for join in joins if join.timed), default=-math.inf)
    times = ({"max": max(newest)} if newest else {}) | (
        {"watermark": watermark} if math.isfinite(watermark) else {}
    )
    texts = {name: _iso(time) for name, time in times.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _iso(time_us: float) -> str | None:
    """A time as Spark writes it; None: its year is out of the range of dates."""
    try:
        time = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=time_us)
    except OverflowError:
        return None
    return f"{time.isoformat(timespec='milliseconds')}Z"


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """The row with a struct as fields of its own: `latency_s.p50` is `latency_s_p50`."""
    flat = dict[str, Any]()
    for name, value in row.items():
        parts = value.items() if isinstance(value, dict) else [(None, value)]
        flat |= {name if part is None else f"{name}_{part}": field for part, field in parts}
    return flat
