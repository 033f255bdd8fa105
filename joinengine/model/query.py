"""The shape of a query: joins in order, and where the two sides of each come from.

Joins are numbered in the order in which they run; a join may read sources and earlier joins.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from joinengine.model.conditions import Condition, Distance, Predicate, equality
from joinengine.model.keys import Side
from joinengine.model.windows import Within


@dataclass(frozen=True, slots=True)
class FromSource:
    """Tuples of source `source`, as numbered in the query."""

    source: int


@dataclass(frozen=True, slots=True)
class FromJoin:
    """The results of join `join`."""

    join: int


Input = FromSource | FromJoin


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """Output column `name` is column `column` of `side`."""

    name: str
    side: Side
    column: str


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """One join, with all names resolved.

    `distance` is what a band means for its columns; `predicate` what else a pair must fulfil;
    `filters` what a tuple of each side must, to enter the join at all.
    """

    index: int
    condition: Condition
    window: Within | None
    how: str
    inputs: tuple[Input, Input]
    schemas: tuple[pa.Schema, pa.Schema]
    output: tuple[OutputColumn, ...]
    instances: int
    distance: Distance | None = None
    predicate: Predicate | None = None
    filters: tuple[Predicate | None, Predicate | None] = (None, None)

    def keys(self, side: Side) -> tuple[str, ...]:
        """The equality columns of `side`."""
        equal = equality(self.condition)
        return equal.left if side is Side.LEFT else equal.right

    def times(self, side: Side) -> tuple[str, ...]:
        """The event-time columns of `side`; none without a window."""
        return () if self.window is None else self.window.times[side]

    @property
    def output_schema(self) -> pa.Schema:
        """The schema of the joined rows."""
        fields = [
            self.schemas[column.side].field(column.column).with_name(column.name)
            for column in self.output
        ]
        return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """All joins of one streaming query; the last one's results are the query's."""

    joins: tuple[JoinSpec, ...]
    sources: tuple[str, ...]

    def roles_of(self, source: Input) -> list[tuple[JoinSpec, Side]]:
        """Which sides of which joins read `source`."""
        return [(join, side) for join in self.joins for side in Side if join.inputs[side] == source]
