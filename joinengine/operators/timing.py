"""How far event time has come on a side of an operator: as its source or what precedes it says."""

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
    """How far event time has come on a side; `lags`: its tuples may come a batch later."""

    time: float
    lags: bool = False


@dataclass(frozen=True)
class Upstream:
    """What a side's limit may follow from.

    `operators`: those of the query, and `states` those of them that come before, after this batch;
    `before`: all states as they were in it. `progress`: source -> no earlier event time follows.
    """

    operators: Sequence[Operator]
    states: Sequence[OperatorState]
    before: Sequence[OperatorState]
    progress: Mapping[int, float]


def limit_of_side(operator: Operator, side: Side, newest: float, upstream: Upstream) -> Limit:
    """The limit of a side that reads tuples with event time.

    That of a source is the greatest time seen less the delay, or the progress that the source
    promises; that of earlier results follows from their operator's watermark.
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
    """Where event time comes from: through operators that hand it on, to a source or another one.

    With it the columns as they are called there, and whether any operator on the way, that one
    included, lets tuples go a batch after their cause.
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
