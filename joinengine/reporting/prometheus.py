"""The figures of a query in Prometheus' text format, for an operator's tools to scrape.

Why from the manifest: counters are the totals that it holds, so they do not fall when the query
restarts; and the state, the watermark and the layouts are known before the first batch of a start.
Only the figures of the last batch (its seconds, the tuples that instances received) come from its
record, and are missing until there is one.

Law: no key, no value of a tuple and no name of a file is in the text, and the number of its lines
does not depend on keys, instances or batches. docs/metrics.md names every figure
(tests/unit/test_prometheus.py).

Source: the exposition formats of Prometheus and OpenMetrics, by the package prometheus_client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from joinengine.balancing.statistics import skew
from joinengine.driver.figures import FIGURES, SUMS, Figure
from joinengine.driver.records import BatchRecord, OperatorRecord
from joinengine.reporting.progress import steps_of
from joinengine.state.manifest import Manifest
from joinengine.state.operator_state import PENDING, OperatorState
from joinengine.state.partitions import Partitions
from joinengine.state.totals import OperatorTotals
from joinengine.world.world import MACHINE

#: Microseconds, in which event time is counted.
_S = 1e6


@dataclass(frozen=True, slots=True)
class Source:
    """A query at the moment when it is scraped.

    `query`: its name for people, the value of the label `query`. `query_id`: its id, the same at
    every start. `manifest`: that of the last committed batch. `record`: that of the last batch of
    this start; None: there is none yet. `forecast_bytes`: by operator, what its state will hold at
    its fullest; None, or missing: unknown.
    """

    query: str
    query_id: str
    manifest: Manifest
    record: BatchRecord | None = None
    running: bool = True
    forecast_bytes: Sequence[float | None] = ()


def answer(source: Source, accept: str) -> tuple[bytes, str]:
    """All figures in the format that a header `Accept` asks for, and its content type.

    That is OpenMetrics if the header names it, else Prometheus' text format, also for a header that
    cannot be parsed.
    """
    registry = CollectorRegistry()
    registry.register(_Figures(source))
    try:
        encode, content_type = choose_encoder(accept)
    except Exception:  # the package parses any version as a number
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


class _Operator(NamedTuple):
    """An operator of the query when it is scraped; fields as in `Source`."""

    state: OperatorState
    totals: OperatorTotals
    record: OperatorRecord | None
    forecast_bytes: float | None


#: What a figure describes: the query, or one of its operators.
_Of = TypeVar("_Of", Source, _Operator)
#: None: unknown. A mapping: a value for each value of the figure's own label.
_Value = float | Mapping[str, float] | None


class _Shown(NamedTuple, Generic[_Of]):
    """A figure of the query or of each operator. `label`: its own. Counters end in `_total`."""

    name: str
    meaning: str
    value: Callable[[_Of], _Value]
    label: str = ""


def _latency(source: Source) -> _Value:
    record = source.record
    if record is None or not record.left_at:
        return None
    return {str(part): record.latency_s(part) or 0.0 for part in (0.5, 0.99)}


def _skews(operator: _Operator) -> _Value:
    loads: dict[str, Sequence[float]] = {"stored": operator.state.held_per_instance()}
    if operator.record is not None:
        loads |= {"received": operator.record.work.received, "busy": operator.record.work.busy_s}
    return {of: skew(np.asarray(load, np.float64)) for of, load in loads.items() if any(load)}


def _seconds(time_us: float) -> float | None:
    """Seconds since the epoch; None: there is no such time."""
    return time_us / _S if math.isfinite(time_us) else None


def _newest_s(operator: _Operator) -> float | None:
    """The greatest event time so far; None: no side has brought one, or all have ended."""
    times = (side.newest for side in operator.state.clock.sides if math.isfinite(side.newest))
    return _seconds(max(times, default=math.inf))


def _watermark_s(operator: _Operator) -> float | None:
    return _seconds(operator.state.clock.watermark)


def _lag_s(operator: _Operator) -> float | None:
    newest, watermark = _newest_s(operator), _watermark_s(operator)
    if newest is None or watermark is None:
        return None
    return max(0.0, newest - watermark)  # the last batch of a stream lets the watermark go ahead


_QUERY: tuple[_Shown[Source], ...] = (
    _Shown(
        "joinengine_up",
        "1 while the query runs; 0 after its end, as long as its process lives.",
        lambda source: float(source.running),
    ),
    _Shown(
        "joinengine_query_info",
        "1; the label id is the query's id, which stays the same over all its starts.",
        lambda source: {source.query_id: 1.0},
        label="id",
    ),
    _Shown(
        "joinengine_batches_total",
        "Committed batches over all starts of the query.",
        lambda source: source.manifest.totals.batches,
    ),
    _Shown(
        "joinengine_input_rows_total",
        "Rows read from all sources, including late rows and rows without a key; tables do not "
        "count.",
        lambda source: source.manifest.totals.input_rows,
    ),
    _Shown(
        "joinengine_output_rows_total",
        "Rows of results.",
        lambda source: source.manifest.totals.output_rows,
    ),
    _Shown(
        "joinengine_skipped_files_total",
        "Entries of skipped_files: bad files and messages that were left out.",
        lambda source: source.manifest.totals.skipped_files,
    ),
    _Shown(
        "joinengine_batch_start_timestamp_seconds",
        "Start of the last batch of this start, in seconds since the epoch.",
        lambda source: None if source.record is None else source.record.started,
    ),
    _Shown(
        "joinengine_batch_seconds",
        "Seconds of the driver in each step of the last batch; their sum is the whole batch.",
        lambda source: None if source.record is None else steps_of(source.record),
        label="step",
    ),
    _Shown(
        "joinengine_result_latency_seconds",
        "Seconds from the start of the last batch until tasks had written this part of its "
        "results.",
        _latency,
        label="quantile",
    ),
)


def _counter(figure: Figure) -> _Shown[_Operator]:
    """The sum of a figure over all starts of the query."""
    kind = "operator_" if figure.name == "output_rows" else ""  # the query has its own

    def total(operator: _Operator) -> float:
        return operator.totals.get(figure.name, 0)

    meaning = f"{figure.meaning[0].upper()}{figure.meaning[1:]}."
    return _Shown(f"joinengine_{kind}{figure.name}_total", meaning, total)


_OPERATOR: tuple[_Shown[_Operator], ...] = (
    *(_counter(FIGURES[name]) for name in SUMS),
    _Shown(
        "joinengine_busy_seconds_total",
        "Seconds that tasks have worked, summed over the instances.",
        lambda one: one.totals.get("busy_s", 0.0),
    ),
    _Shown(
        "joinengine_layout_info",
        "1; the label layout is the layout of the next batch.",
        lambda one: {one.state.layouts.newest.choice.label: 1.0},
        label="layout",
    ),
    _Shown(
        "joinengine_instances",
        "Instances in the next batch.",
        lambda one: one.state.layouts.newest.layout.instances,
    ),
    _Shown(
        "joinengine_layout_versions",
        "Layouts that hold state; more than 1 under lazy moves.",
        lambda one: len(one.state.layouts.live_versions),
    ),
    _Shown(
        "joinengine_routing_entries",
        "Keys in the routing table: keys that are not whole at their base home.",
        lambda one: len(one.state.layouts.newest.layout.table.placements),
    ),
    _Shown(
        "joinengine_split_keys",
        "Keys that several instances share.",
        lambda one: one.state.layouts.newest.layout.table.split_keys,
    ),
    _Shown(
        "joinengine_state_rows", "Copies of rows in the state.", lambda one: one.state.shelves.rows
    ),
    _Shown(
        "joinengine_state_bytes",
        "Size of these copies on disk, in bytes.",
        lambda one: one.state.shelves.size_bytes,
    ),
    _Shown(
        "joinengine_forecast_state_bytes",
        "Bytes that the state will hold at its largest, if rows arrive as they did in this start.",
        lambda one: one.forecast_bytes,
    ),
    _Shown(
        "joinengine_pending_rows",
        "Rows of outer, semi and anti joins that may still find a match.",
        lambda one: one.state.shelves.live_rows(PENDING),
    ),
    _Shown(
        "joinengine_pending_bytes",
        "Size on disk of these rows, and of the marks of rows that have matched, in bytes.",
        lambda one: one.state.shelves.pending_bytes,
    ),
    _Shown(
        "joinengine_unbacked_keys",
        "Keys that have no second copy at present, because an instance was lost.",
        lambda one: None if one.record is None else one.record.lost.unbacked_keys,
    ),
    _Shown(
        "joinengine_newest_timestamp_seconds",
        "Greatest event time so far, in seconds since the epoch.",
        _newest_s,
    ),
    _Shown(
        "joinengine_watermark_timestamp_seconds",
        "Watermark of the next batch: an event time, in seconds since the epoch.",
        _watermark_s,
    ),
    _Shown(
        "joinengine_watermark_lag_seconds",
        "Seconds of event time by which the watermark lags behind the greatest event time.",
        _lag_s,
    ),
    _Shown(
        "joinengine_load_skew",
        "Maximum over mean load of the instances: rows received and busy time in the last batch, "
        "copies stored after it.",
        _skews,
        label="of",
    ),
)


class _OfPartition(NamedTuple):
    """A figure that each partition of a source has."""

    name: str
    meaning: str
    value: Callable[[Partitions, int], float | None]


_PARTITION = (
    _OfPartition(
        "joinengine_partition_behind_rows",
        "Messages of a topic that wait behind the last batch.",
        lambda one, partition: one.behind.get(partition, 0),
    ),
    _OfPartition(
        "joinengine_partition_lag_seconds",
        "Age of the last message read from a partition in which others wait; 0 if none waits.",
        lambda one, partition: one.lag_s(partition, MACHINE.now_s()),
    ),
    _OfPartition(
        "joinengine_partition_newest_timestamp_seconds",
        "Greatest event time that a partition has brought, in seconds since the epoch.",
        lambda one, partition: _seconds(one.clocks[partition][0]),
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class _Figures:
    """One scrape, as a registry asks for it."""

    source: Source

    def collect(self) -> Iterator[Metric]:
        """A family for each figure; the family of an unknown figure has no samples."""
        for ours in _QUERY:
            yield _family(ours, ["query"], [([self.source.query], ours.value(self.source))])
        yield from _partitions(self.source)
        operators = _operators(self.source)
        for figure in _OPERATOR:
            values = [
                ([self.source.query, str(number)], figure.value(operator))
                for number, operator in enumerate(operators)
            ]
            yield _family(figure, ["query", "operator"], values)


def _partitions(source: Source) -> Iterator[Metric]:
    """The figures of the partitions of sources; none if no source has partitions."""
    for name, meaning, value in _PARTITION:
        family = GaugeMetricFamily(name, meaning, labels=["query", "source", "partition"])
        for number, progress in source.manifest.partitions.items():
            for partition in progress.clocks:
                number_shown = value(progress, partition)
                if number_shown is not None:
                    family.add_metric([source.query, str(number), str(partition)], number_shown)
        if family.samples:
            yield family


def _operators(source: Source) -> list[_Operator]:
    states, totals = source.manifest.operators, source.manifest.totals.operators
    records = () if source.record is None else source.record.joins
    known = len(totals), len(records), len(source.forecast_bytes)
    return [
        _Operator(
            state,
            totals[n] if n < known[0] else {},
            records[n] if n < known[1] else None,
            source.forecast_bytes[n] if n < known[2] else None,
        )
        for n, state in enumerate(states)
    ]


def _family(
    figure: _Shown[Any], labels: list[str], values: Sequence[tuple[list[str], _Value]]
) -> Metric:
    """`values`: for each query or operator its labels' values, and its figure."""
    kind = CounterMetricFamily if figure.name.endswith("_total") else GaugeMetricFamily
    own = [figure.label] if figure.label else []
    family = kind(figure.name, figure.meaning, labels=[*labels, *own])
    for names, value in values:
        if isinstance(value, Mapping):
            for name, number in value.items():
                family.add_metric([*names, name], number)
        elif value is not None:
            family.add_metric(names, value)
    return family
