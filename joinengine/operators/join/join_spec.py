"""The facts of one join, with all names resolved, for its tasks and its driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from joinengine.exchange.finishing import Finish
from joinengine.exchange.keying import Keying, scales_of
from joinengine.model.columns import compared_fields, name_beside
from joinengine.model.conditions import Condition, Distance, Predicate, equality
from joinengine.model.keys import PAIR, Side
from joinengine.model.query import (
    ID,
    Input,
    JoinType,
    OutputColumn,
    output_lag_us,
    output_schema,
)
from joinengine.model.windows import Sliding, Window


@dataclass(frozen=True)
class JoinSpec:
    """One join, with all names resolved.

    `distance`: the band in the units of its columns. `predicate`: what else a pair must fulfil.
    `filters`: per side, what a tuple must fulfil to enter the join. `table`: the bounded side,
    which is read whole before the first batch. `max_pairs`: how many pairs of a key the tuples that
    arrive on a side in a batch may make at an instance; None: any number. `is_selected`: the user
    has named the columns. `changes`: per side, the column that says how many rows come or go, or
    None if rows only come; None: no side has one. `finish`: the steps before results leave; None:
    none.
    """

    index: int
    condition: Condition
    window: Window | None
    how: JoinType
    inputs: tuple[Input, Input]
    schemas: tuple[pa.Schema, pa.Schema]
    output: tuple[OutputColumn, ...]
    instances: int
    distance: Distance | None = None
    predicate: Predicate | None = None
    filters: tuple[Predicate | None, Predicate | None] = (None, None)
    table: Side | None = None
    max_pairs: int | None = None
    is_selected: bool = False
    changes: tuple[str | None, str | None] | None = None
    finish: Finish | None = None

    @cached_property
    def keying(self) -> Keying:
        """Under which hashes tuples are stored and probed."""
        keys = self.keys(Side.LEFT), self.keys(Side.RIGHT)
        left, right = (tuple(filter(None, [self.change_of(side)])) for side in PAIR)
        scales = scales_of(self.key_fields)
        return Keying(keys, self.distance, scales=scales, required=(left, right))

    @property
    def key_fields(self) -> list[pa.Field]:
        """The left key columns, in the types in which both sides are compared."""
        return compared_fields((self.keys(Side.LEFT), self.keys(Side.RIGHT)), self.schemas)

    def keys(self, side: Side) -> tuple[str, ...]:
        """The equality columns of `side`."""
        equal = equality(self.condition)
        return equal.left if side is Side.LEFT else equal.right

    def times(self, side: Side) -> tuple[str, ...]:
        """The event-time columns of `side`; empty without a window."""
        return () if self.window is None else self.window.times[side]

    def change_of(self, side: Side) -> str | None:
        """The column that says how many rows of `side` come or go; None: they only come."""
        return None if self.changes is None else self.changes[side]

    def passes_by(self, side: Side) -> bool:
        """Whether tuples of `side` are not stored, because the other side is a table."""
        return self.table is not None and side is not self.table

    @property
    def watched(self) -> tuple[Side, ...]:
        """The sides whose unmatched or matched tuples are results by themselves."""
        return self.how.watched

    @property
    def makes_pairs(self) -> bool:
        """Whether matching pairs are results."""
        return self.how.makes_pairs

    @property
    def windows_each(self) -> int:
        """The greatest number of windows that hold one tuple."""
        return self.window.most_windows if isinstance(self.window, Sliding) else 1

    def carried_schema(self, side: Side) -> pa.Schema:
        """The columns with which a tuple travels; on a watched side, its number comes last."""
        return self._carried[side]

    def stored_schema(self, side: Side) -> pa.Schema:
        """The columns with which a tuple is stored."""
        return self._stored[side]

    @cached_property
    def _carried(self) -> tuple[pa.Schema, pa.Schema]:
        left, right = (self._with_id(side, self._shown(side)) for side in PAIR)
        return left, right

    @cached_property
    def _stored(self) -> tuple[pa.Schema, pa.Schema]:
        if self.makes_pairs:
            return self._carried
        left, right = (self._with_id(side, self._asked(side)) for side in PAIR)
        return left, right

    def _shown(self, side: Side) -> set[str]:
        """The columns that decide whether a tuple matches, and those that results have."""
        shown = {c.column for c in self.output if c.side is side}
        shown |= {c.instead for c in self.output if c.side is side.other and c.instead}
        return self._asked(side) | shown

    def _asked(self, side: Side) -> set[str]:
        """The columns that decide whether a tuple matches."""
        names = {*self.keys(side), *self.times(side)}
        if self.distance is not None:
            names.add(self.distance.column(side))
        if self.predicate is not None:
            names |= {name for owner, name in self.predicate.columns if owner is side}
        return names | {*filter(None, [self.change_of(side)])}

    def cancel_by(self, side: Side) -> tuple[str, ...]:
        """The columns in which changes that cancel each other are equal; empty: none cancel.

        Rows with nested columns are not compared.
        """
        carried, change = self._carried[side], self.change_of(side)
        if change is None or any(pa.types.is_nested(field.type) for field in carried):
            return ()
        return tuple(name for name in carried.names if name != change)

    def _with_id(self, side: Side, names: set[str]) -> pa.Schema:
        change = self.change_of(side)
        fields = [
            field.with_type(pa.int64()) if field.name == change else field
            for field in self.schemas[side]
            if field.name in names
        ]
        # The name avoids all columns of the side, so it is the same even if some are left out.
        number = name_beside(self.schemas[side].names, ID)
        ids = [pa.field(number, pa.uint64())] if side in self.watched else []
        return pa.schema([*fields, *ids])

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The schema of the joined rows."""
        return output_schema(self.schemas, self.output, self.window)

    def output_lag_us(self, columns: Sequence[str]) -> int | None:
        """How far the latest of `columns` may lag behind the watermark (us); None: no bound."""
        if self.window is None:
            return None
        return output_lag_us(self.output, self.window, self.watched, columns)
