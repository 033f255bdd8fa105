"""Computes how far event time has come on a side, from its source or the operator that it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joinengine.model.durations import describe
from joinengine.model.keys import Side
from joinengine.model.query import FromOperator, FromSource, Input, Timed
from joinengine.model.windows import Window
from joinengine.state.operator_state import OperatorState
from joinengine.state.spine import WINDOW_PART

if TYPE_CHECKING:
    from joinengine.operators.base import Operator

#: With more batches than this in the state, their number is estimated, not computed step by step.
MOST_STEPS = 10_000
#: The least and the greatest time that both a float and an int64 can hold.
_EDGES = -(2.0**63), math.nextafter(2.0**63, 0)


class Flow(NamedTuple):
    """How tuples have arrived at a side so far; `newest_us`: the greatest event time seen.

    `batch_rows`, `batch_us`: the mean of copies that a batch stores, and of event time that it
    covers. `lag_us`: how far the watermark stays behind the newest tuple; None: unknown.
    `copy_bytes`: the mean size of a copy in the state. Only batches that brought tuples count.
    """

    batch_rows: float
    batch_us: float
    newest_us: float
    lag_us: float | None = None
    copy_bytes: float = 0.0

    @property
    def rows_per_s(self) -> float:
        """Copies stored per second of event time."""
        return self.batch_rows / self.batch_us * 1e6


def batches_held(window: Window, side: Side, flow: Flow) -> float:
    """How many batches of a side the state holds at its fullest, if `flow` continues.

    A batch is dropped as a whole when its newest tuple expires, by the watermark of the previous
    batch. Merging delays this on average by a sixteenth of the window, if batches are short enough
    to be merged (`joinengine.state.spine`). If the edge of the window falls on that of a batch, it
    is open whether the state holds one more batch: half of it counts.

    >>> from joinengine.model.windows import within
    >>> hour = 3_600_000_000
    >>> window = within("a", "b", lower="0 s", upper="1 hour")
    >>> batches_held(window, Side.LEFT, Flow(20_000, 4 * hour, 40 * hour, lag_us=hour / 12))
    2.0
    """
    lag = (window.delays_us[side] or 0) if flow.lag_us is None else flow.lag_us
    # If the window has only one bound, that bound decides how long this side is kept.
    span_us = abs(window.last_partners(side, 0)) if window.span_us is None else window.span_us
    if 3 * flow.batch_us <= span_us / WINDOW_PART:
        lag += span_us / WINDOW_PART / 2
    whole = (span_us + lag) / flow.batch_us
    if whole > MOST_STEPS:  # one batch more or less makes no difference
        return whole + 1
    steps = math.ceil(whole) + 2
    edges = flow.newest_us + flow.batch_us * np.arange(-2 * steps, 1)
    leaves = window.last_partners(side, np.clip(edges, *_EDGES).astype(np.int64))
    ends = np.arange(steps, 2 * steps + 1)
    held = [
        ends + 1 - np.searchsorted(leaves, edges[ends - 1] - lag + shift * flow.batch_us)
        for shift in (-0.1, 0.1)
    ]
    return float(np.mean([max(batches.max(), 1) for batches in held]))


class Limit(NamedTuple):
    """How far event time has come on a side (us); `lags`: how many batches late tuples may come."""

    time: float
    lags: int = 0


@dataclass(frozen=True)
class Upstream:
    """The values from which the limit of a side is computed.

    `operators`: all of the query. `states`: after this batch, of the operators before this one.
    `before`: all states at the start of this batch. `progress`: source -> the event time below
    which no tuple follows. `slowest`: source -> the newest event time (us) of its slowest partition
    that is not idle.
    """

    operators: Sequence[Operator]
    states: Sequence[OperatorState]
    before: Sequence[OperatorState]
    progress: Mapping[int, float]
    slowest: Mapping[int, float] = field(default_factory=dict)


def limit_of_side(operator: Operator, side: Side, newest: float, upstream: Upstream) -> Limit:
    """The limit of a side that reads tuples with event time.

    If the side reads a source, the limit is the greatest time seen minus the delay, or the progress
    that the source promises, if that is later. If the side reads results, the limit is the
    watermark of the operator that makes them, minus the lag of its output.
    """
    window = operator.window
    assert window is not None
    path = followed(upstream.operators, operator, side)
    source = path.source
    if isinstance(source, FromSource):
        newest = min(newest, upstream.slowest.get(source.source, math.inf))
        seen = newest - (window.delays_us[side] or 0)
        return Limit(max(seen, upstream.progress.get(source.source, -math.inf)), path.lags)
    before = upstream.operators[source.operator]
    lag = before.output_lag_us(_made(before, path.columns))
    if lag is None:
        return Limit(-math.inf, path.lags)
    return Limit(upstream.states[source.operator].clock.watermark - lag, path.lags)


def late_text(inputs: Sequence[Input], names: Sequence[str], window: Timed) -> str:
    """Which rows a join of streams leaves out, in words (see `limit_of_side`).

    `names`: of the inputs; the name of a source begins with its kind.

    >>> from joinengine.model.windows import within
    >>> window = within("a", "b", upper="1 hour", delay=("5 minutes", "0 s"), idle_after="9 s")
    >>> print(late_text([FromSource(0), FromOperator(0)], ["folder /a", "operator 0"], window))
    rows before the watermark are left out: the newest left row - 5 min or the earliest row that \
operator 0 can still bring, whichever is earlier; a side that is silent for 9 s does not count, \
unless all are
    """
    limits = [
        f"the earliest row that operator {source.operator} can still bring"
        if isinstance(source, FromOperator)
        else f"{_newest(side, name)} - {describe(window.delays_us[side] or 0)}"
        for side, source, name in zip(Side, inputs, names, strict=False)
    ]
    text = f"rows before the watermark are left out: {' or '.join(limits)}, whichever is earlier"
    if window.idle_after_us is not None:
        idle = describe(window.idle_after_us)
        text += f"; a side that is silent for {idle} does not count, unless all are"
    if window.ahead_us is not None:
        text += f"; so are rows more than {describe(window.ahead_us)} ahead of the clock"
    return text


def _newest(side: Side, name: str) -> str:
    """The row of a source whose time counts, in words.

    >>> _newest(Side.LEFT, "folder /clicks"), _newest(Side.LEFT, "kafka clicks")
    ('the newest left row', 'the newest row of the slowest left partition')
    """
    word = side.name.lower()
    if _is_topic(name):
        return f"the newest row of the slowest {word} partition"
    return f"the newest {word} row"


def _is_topic(name: str) -> bool:
    """Whether an input is a topic of Kafka: then the slowest partition counts."""
    return name.startswith("kafka ")


def left_out_text(source: Input, name: str, delay_us: int | None, ahead_us: int | None) -> str:
    """Which rows of an input are left out, as the end of a line of `explain`.

    >>> left_out_text(FromSource(0), "folder /clicks", 300_000_000, None)
    '; a row is late only if it is more than 5 min behind the newest'
    >>> left_out_text(FromSource(0), "kafka clicks", 300_000_000, None)
    '; a row is late only if it is more than 5 min behind the newest of the slowest partition'
    >>> left_out_text(FromOperator(0), "operator 0", 0, None)
    ''
    """
    parts = list[str]()
    if not isinstance(source, FromOperator):
        lag = describe(delay_us or 0)
        of = " of the slowest partition" if _is_topic(name) else ""
        parts.append(f"; a row is late only if it is more than {lag} behind the newest{of}")
    if ahead_us is not None:
        parts.append(f"; left out if more than {describe(ahead_us)} ahead of the clock")
    return "".join(parts)


class Followed(NamedTuple):
    """The origin of the event time of a side.

    `source`: a source, or the last operator that does not only pass event time on. `columns`: the
    names of the time columns there. `lags`: how many operators on the way, the origin included,
    emit results a batch after their cause. `seer`: the (operator, side) whose reports say how far
    event time has come: the reader of the source, unless it goes by other time columns.
    """

    source: Input
    columns: Sequence[str]
    lags: int
    seer: tuple[int, Side]


def followed(operators: Sequence[Operator], operator: Operator, side: Side) -> Followed:
    """The origin of the event time of a side of an operator that has a window."""
    assert operator.window is not None
    source, lags = operator.inputs[side], 0
    columns: Sequence[str] = operator.window.times[side]
    own = reader = operator.index, side
    while isinstance(source, FromOperator):
        before = operators[source.operator]
        lags += before.lags
        through = before.time_through(_made(before, columns))
        if through is None:
            return Followed(source, columns, lags, own)
        side, columns = through
        source, reader = before.inputs[side], (before.index, side)
    index, side = reader
    sees = operators[index].admission(side).times in ((), tuple(columns))
    return Followed(source, columns, lags, reader if sees else own)


class Noted(NamedTuple):
    """What an operator reports for a later operator; the fields are those of `Admission`."""

    times: tuple[str, ...]
    ahead_us: int | None


def noted(operators: Sequence[Operator]) -> Mapping[tuple[int, Side], Noted]:
    """(operator, side) -> what it notes, for each side that reads a source and passes times on.

    The later operator sees only the tuples that pass. Without the notes, its watermark would stand
    still while none do.
    """
    notes = dict[tuple[int, Side], Noted]()
    for operator in operators:
        for side in tuple(Side)[: len(operator.inputs)] if operator.window is not None else ():
            path = followed(operators, operator, side)
            index, of = path.seer
            if index != operator.index and not operators[index].admission(of).times:
                notes[path.seer] = Noted(tuple(path.columns), operator.admission(side).ahead_us)
    return notes


def _made(operator: Operator, columns: Sequence[str]) -> Sequence[str]:
    """The names that an operator gives to `columns` of the rows that leave it."""
    return columns if operator.finish is None else operator.finish.origins(columns)
