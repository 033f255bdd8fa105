"""The shape of a query: joins in order, and where the two sides of each come from.

Joins are numbered in the order in which they run; a join may read sources and earlier joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from joinengine.model.conditions import Condition, Distance, Predicate, equality
from joinengine.model.keys import Side
from joinengine.model.windows import Delays, Sliding, Window

#: A number of its own for each watched tuple, beside the user's columns.
ID = "__id"
WINDOW_START, WINDOW_END = "window_start", "window_end"


@dataclass(frozen=True, slots=True)
class FromSource:
    """Tuples of source `source`, as numbered in the query."""

    source: int


@dataclass(frozen=True, slots=True)
class FromJoin:
    """The results of join `join`."""

    join: int


Input = FromSource | FromJoin


class Timed(Protocol):
    """Where event time is, per side, and how late it may be."""

    @property
    def times(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns."""

    @property
    def delays_us(self) -> Delays:
        """How far a tuple may lag behind the newest one."""

    @property
    def idle_after_us(self) -> int | None:
        """After so long a silent side is left out."""


class Operator(Protocol):
    """A step of a query: a join, or a stage of an aggregation. Inputs and schemas are per side."""

    @property
    def index(self) -> int:
        """Its number in the query."""

    @property
    def sides(self) -> tuple[Side, ...]:
        """Its inputs: two, or LEFT alone."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Where tuples come from."""

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        """Their columns."""

    @property
    def filters(self) -> tuple[Predicate | None, ...]:
        """What they must fulfil to enter."""

    @property
    def window(self) -> Timed | None:
        """Event time; None: it does not matter."""

    @property
    def condition(self) -> Condition:
        """What layouts must bring together."""

    @property
    def how(self) -> str:
        """What kind of operator it is."""

    @property
    def instances(self) -> int:
        """How many it starts with."""

    @property
    def output_schema(self) -> pa.Schema:
        """What it makes."""

    def keys(self, side: Side) -> tuple[str, ...]:
        """By which columns tuples are routed."""

    def times(self, side: Side) -> tuple[str, ...]:
        """Which columns say whether a tuple is late."""

    def carried_schema(self, side: Side) -> pa.Schema:
        """The columns with which a tuple travels."""


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """Output column `name` is column `column` of `side`; of the window where `side` is None.

    `instead`: the column of the other side that is as good where `side` is missing (USING).
    """

    name: str
    side: Side | None
    column: str
    instead: str | None = None


#: Which sides' unmatched, or once matched, tuples are results.
_WATCHED: dict[str, tuple[Side, ...]] = {
    "inner": (),
    "left": (Side.LEFT,),
    "right": (Side.RIGHT,),
    "full": (Side.LEFT, Side.RIGHT),
    "left_semi": (Side.LEFT,),
    "left_anti": (Side.LEFT,),
}


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """One join, with all names resolved.

    `distance` is what a band means for its columns; `predicate` what else a pair must fulfil;
    `filters` what a tuple of each side must, to enter the join at all; `table` the side that is
    bounded and read whole before the first batch.
    """

    index: int
    condition: Condition
    window: Window | None
    how: str
    inputs: tuple[Input, Input]
    schemas: tuple[pa.Schema, pa.Schema]
    output: tuple[OutputColumn, ...]
    instances: int
    distance: Distance | None = None
    predicate: Predicate | None = None
    filters: tuple[Predicate | None, Predicate | None] = (None, None)
    table: Side | None = None

    @property
    def sides(self) -> tuple[Side, ...]:
        """There are two."""
        return tuple(Side)

    def keys(self, side: Side) -> tuple[str, ...]:
        """The equality columns of `side`."""
        equal = equality(self.condition)
        return equal.left if side is Side.LEFT else equal.right

    def times(self, side: Side) -> tuple[str, ...]:
        """The event-time columns of `side`; none without a window."""
        return () if self.window is None else self.window.times[side]

    def passes_by(self, side: Side) -> bool:
        """Whether tuples of `side` are not stored: no later one of the other side will come."""
        return self.table is not None and side is not self.table

    @property
    def watched(self) -> tuple[Side, ...]:
        """The sides of which a tuple's fate, matched or not, is a result by itself."""
        return _WATCHED[self.how]

    @property
    def makes_pairs(self) -> bool:
        """Whether matching pairs are results."""
        return self.how not in ("left_semi", "left_anti")

    @property
    def windows_each(self) -> int:
        """How many windows hold a tuple at most."""
        return self.window.most_windows if isinstance(self.window, Sliding) else 1

    def carried_schema(self, side: Side) -> pa.Schema:
        """The columns with which a tuple travels to its instances."""
        shown = {c.column for c in self.output if c.side is side}
        shown |= {c.instead for c in self.output if c.side is side.other and c.instead}
        return self._with_id(side, self._asked(side) | shown)

    def stored_schema(self, side: Side) -> pa.Schema:
        """The columns with which a tuple waits for partners."""
        if self.makes_pairs:
            return self.carried_schema(side)
        return self._with_id(side, self._asked(side))

    def _asked(self, side: Side) -> set[str]:
        """The columns that decide whether a tuple matches."""
        asked = {*self.keys(side), *self.times(side)}
        if self.distance is not None:
            asked.add(self.distance.column(side))
        if self.predicate is not None:
            asked |= {name for owner, name in self.predicate.columns if owner is side}
        return asked

    def _with_id(self, side: Side, names: set[str]) -> pa.Schema:
        fields = [field for field in self.schemas[side] if field.name in names]
        own = [pa.field(ID, pa.uint64())] if side in self.watched else []
        return pa.schema([*fields, *own])

    @property
    def output_schema(self) -> pa.Schema:
        """The schema of the joined rows."""
        return output_schema(self.schemas, self.output, self.window)

    def output_lag_us(self, columns: Sequence[str]) -> int | None:
        """How far the time that is the latest of `columns` may lag behind the watermark."""
        assert self.window is not None
        return output_lag_us(self.output, self.window, self.watched, columns)


def output_schema(
    schemas: tuple[pa.Schema, pa.Schema],
    output: Sequence[OutputColumn],
    window: Window | None,
) -> pa.Schema:
    """The schema of the rows that a join with these `output` columns makes."""
    fields = list[pa.Field]()
    for column in output:
        if column.side is None:
            assert window is not None
            field = schemas[0].field(window.times[0][0])
        else:
            field = schemas[column.side].field(column.column)
            if column.instead is not None:  # either side's value: the wider type holds both
                other = schemas[column.side.other].field(column.instead)
                field = max(field, other, key=lambda one: getattr(one.type, "bit_width", 0))
        fields.append(field.with_name(column.name))
    return pa.schema(fields)


def output_lag_us(
    output: Sequence[OutputColumn],
    window: Window,
    watched: Sequence[Side],
    columns: Sequence[str],
) -> int | None:
    """How far the time that is the latest of output `columns` may lag behind the watermark.

    None where it does not hold the whole event time of a side. One tuple of a pair arrived in this
    batch, at or above the watermark; the other is at most a bound away: a time that covers both
    sides is never below the watermark. A tuple without a partner has its own side's time alone.
    """
    named = {(column.side, column.column) for column in output if column.name in columns}
    if (None, WINDOW_END) in named:
        return 0
    if (None, WINDOW_START) in named:
        return window.span_us - 1
    covered = [side for side in Side if {(side, name) for name in window.times[side]} <= named]
    if not covered:
        return None
    pairs = 0 if len(covered) == len(Side) else min(window.output_lag_us(s) for s in covered)
    alone = [window.output_lag_us(side) for side in watched if side in covered]
    return max([pairs, *alone])


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """All operators of one streaming query, joins mostly; the last one's results are the query's.

    `tables`: the sources that are bounded, and read whole before the first batch.
    """

    joins: tuple[Operator, ...]
    sources: tuple[str, ...]
    tables: frozenset[int] = frozenset()

    def roles_of(self, source: Input) -> list[tuple[Operator, Side]]:
        """Which sides of which joins read `source`."""
        return [
            (join, side)
            for join in self.joins
            for side in join.sides
            if join.inputs[side] == source
        ]
