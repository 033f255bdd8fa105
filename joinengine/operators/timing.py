"""How far event time has come on a side of an operator, by its source or the operator before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from joinengine.model.keys import Side
from joinengine.model.query import FromOperator, FromSource, Input
from joinengine.state.operator_state import OperatorState

if TYPE_CHECKING:
    from joinengine.operators.base import Operator


class Limit(NamedTuple):
    """How far event time has come on a side; `lags`: its tuples may come a batch late."""

    time: float
    lags: bool = False


@dataclass(frozen=True)
class Upstream:
    """What the limit of a side is computed from.

    `operators`: all of the query. `states`: after this batch, of the operators that come before.
    `before`: all states as they were in this batch. `progress`: source -> no earlier event time
    follows.
    """

    operators: Sequence[Operator]
    states: Sequence[OperatorState]
    before: Sequence[OperatorState]
    progress: Mapping[int, float]


def limit_of_side(operator: Operator, side: Side, newest: float, upstream: Upstream) -> Limit:
    """The limit of a side that reads tuples with event time.

    If the side reads a source, the limit is the greatest time seen less the delay, or the progress
    that the source promises. If it reads results, the limit follows from the watermark of the
    operator that makes them.
    """
    window = operator.window
    assert window is not None
    source, columns, lags = followed(upstream.operators, operator.inputs[side], window.times[side])
    if isinstance(source, FromSource):
        seen = newest - (window.delays_us[side] or 0)
        return Limit(max(seen, upstream.progress.get(source.source, -math.inf)), lags)
    lag = upstream.operators[source.operator].output_lag_us(columns)
    if lag is None:
        return Limit(-math.inf, lags)
    return Limit(upstream.states[source.operator].clock.watermark - lag, lags)


def followed(
    operators: Sequence[Operator], source: Input, columns: Sequence[str]
) -> tuple[Input, Sequence[str], bool]:
    """Where event time comes from: the source, or the operator that does not just hand it on.

    Returns that input, the names of the time columns there, and whether an operator on the way
    (that one included) shows results a batch after their cause.
    """
    lags = False
    while isinstance(source, FromOperator):
        before = operators[source.operator]
        lags = lags or bool(before.watched)
        through = before.time_through(columns)
        if through is None:
            break
        side, columns = through
        source = before.inputs[side]
    return source, columns, lags
