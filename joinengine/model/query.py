"""The inputs of an operator, the columns of its results, and the join types.

Operators are numbered in the order in which they run; each reads sources or earlier operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import pyarrow as pa

from joinengine.model.columns import wider
from joinengine.model.keys import PAIR, Side
from joinengine.model.lateness import Delays
from joinengine.model.windows import Sliding, Window

#: The column with the number of each watched tuple, if no column of the user has this name.
ID = "__id"
WINDOW_START, WINDOW_END = "window_start", "window_end"
#: The column of results with their changes. A pair has the product of its tuples' changes.
CHANGE = "_change"


@dataclass(frozen=True, slots=True)
class FromSource:
    """Tuples of source `source`, as numbered in the query."""

    source: int


@dataclass(frozen=True, slots=True)
class FromOperator:
    """The results of operator `operator`, as numbered in the query."""

    operator: int


Input = FromSource | FromOperator


class Timed(Protocol):
    """Per side, the columns of event time and how late a tuple may be."""

    @property
    def times(self) -> tuple[tuple[str, ...], ...]:
        """Per side, the event-time columns."""

    @property
    def delays_us(self) -> Delays:
        """Per side, how far a tuple may lag behind the newest one."""

    @property
    def idle_after_us(self) -> int | None:
        """The silence after which a side no longer holds the watermark back; None: never."""

    @property
    def ahead_us(self) -> int | None:
        """How far a tuple may be ahead of the clock of its batch; None: without limit."""


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """Output column `name` is column `column` of `side`; None: an edge of the window, or CHANGE.

    `instead`: the equal column of the other side, which a right or full join under USING takes if
    `side` has no tuple.
    """

    name: str
    side: Side | None
    column: str
    instead: str | None = None


class JoinType(Enum):
    """Which pairs and which single tuples a join shows, by Spark's names."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    LEFT_SEMI = "left_semi"
    LEFT_ANTI = "left_anti"

    @property
    def watched(self) -> tuple[Side, ...]:
        """The sides whose tuples are followed until it is known whether they match.

        Outer and anti joins show the tuples that never match, semi joins the tuples that match.
        """
        match self:
            case JoinType.INNER:
                return ()
            case JoinType.RIGHT:
                return (Side.RIGHT,)
            case JoinType.FULL:
                return PAIR
            case JoinType.LEFT | JoinType.LEFT_SEMI | JoinType.LEFT_ANTI:
                return (Side.LEFT,)

    @property
    def makes_pairs(self) -> bool:
        """Whether matching pairs are results."""
        return self not in (JoinType.LEFT_SEMI, JoinType.LEFT_ANTI)

    @property
    def may_lack_left(self) -> bool:
        """Whether a result may have no left tuple, so that USING takes the right tuple's column."""
        return self in (JoinType.RIGHT, JoinType.FULL)


def output_schema(
    schemas: tuple[pa.Schema, pa.Schema],
    output: Sequence[OutputColumn],
    window: Window | None,
) -> pa.Schema:
    """The schema of the rows that a join with these `output` columns makes."""
    fields = list[pa.Field]()
    for column in output:
        if column.column == CHANGE and column.side is None:
            field = pa.field(column.name, pa.int64())
        elif column.side is None:
            assert window is not None
            field = schemas[0].field(window.times[0][0])
        else:
            field = schemas[column.side].field(column.column)
            if column.instead is not None:  # either side's value: the wider type holds both
                other = schemas[column.side.other].field(column.instead)
                field = field.with_type(wider(field.type, other.type))
        fields.append(field.with_name(column.name))
    return pa.schema(fields)


def output_lag_us(
    output: Sequence[OutputColumn],
    window: Window,
    watched: Sequence[Side],
    columns: Sequence[str],
) -> int | None:
    """How far the latest of the times in output `columns` may lag behind the watermark.

    None: without limit, or the columns do not hold the whole event time of a side. One tuple of a
    pair arrived in this batch, at or above the watermark; the other is at most a bound away. So a
    time that covers both sides is never below the watermark. A tuple without a partner has only the
    time of its own side. The time of a side whose tuples are kept for ever may be of any age.
    """
    named = {(column.side, column.column) for column in output if column.name in columns}
    if (None, WINDOW_END) in named:
        return 0
    if (None, WINDOW_START) in named:
        assert isinstance(window, Sliding)
        return window.size_us - 1
    covered = [side for side in PAIR if {(side, name) for name in window.times[side]} <= named]
    if not covered:
        return None
    lags = {side: window.output_lag_us(side) for side in covered}
    pairs = 0 if len(covered) == len(PAIR) else lags[covered[0]]
    alone = [lags[side] for side in watched if side in covered]
    known = [lag for lag in (pairs, *alone) if lag is not None]
    return max(known) if len(known) == 1 + len(alone) else None
