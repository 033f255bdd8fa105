"""The facts of one as-of join, for its tasks and its driver, and the columns of its state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from joinengine.exchange.finishing import Finish
from joinengine.exchange.keying import Keying, scales_of
from joinengine.kernels.comparing import equal_at, latest_time
from joinengine.kernels.hashing import key_hash
from joinengine.kernels.probing import Ints
from joinengine.model.columns import compared_fields, name_beside
from joinengine.model.conditions import AsOf, Direction, Predicate
from joinengine.model.keys import PAIR, Side
from joinengine.model.query import ID, Input, JoinType, OutputColumn, output_schema
from joinengine.model.windows import INT_MAX, plus_held
from joinengine.state.run_file import Page
from joinengine.state.upkeep import Shelf


@dataclass(frozen=True)
class AsOfSpec:
    """One as-of join, with all names resolved.

    `how` is INNER or LEFT. `table`: RIGHT if that side is a table, which is read whole before the
    first batch. `deleted`: a predicate over right tuples; if the nearest fulfils it, the left tuple
    has no partner. `until_us`: the event time that the right side must reach before any left tuple
    is read. `finish`: the steps before results leave; None: none. Other fields: as in `JoinSpec`.
    """

    index: int
    condition: AsOf
    how: JoinType
    inputs: tuple[Input, Input]
    schemas: tuple[pa.Schema, pa.Schema]
    output: tuple[OutputColumn, ...]
    instances: int
    filters: tuple[Predicate | None, Predicate | None] = (None, None)
    table: Side | None = None
    is_selected: bool = False
    deleted: Predicate | None = None
    until_us: int | None = None
    finish: Finish | None = None

    @property
    def waits(self) -> bool:
        """Whether left tuples wait until their nearest is known; otherwise they are not stored.

        They do not wait if the right side is a table, or if the latest right tuple is wanted.
        """
        return self.table is None and not self.condition.is_latest

    def order(self, side: Side, columns: pa.RecordBatch) -> Ints:
        """(n,) the values by which right tuples are ordered, and left ones placed among them.

        Instants in microseconds, dates in days, or integers. If no column orders them, all right
        tuples precede each left one.
        """
        names = self.condition.times[side]
        if not names:
            return np.full(columns.num_rows, INT_MAX if side is Side.LEFT else 0)
        column = columns.column(names[0])
        if pa.types.is_timestamp(column.type):
            return latest_time(columns, names)
        whole = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
        return np.asarray(whole.cast(pa.int64()).fill_null(0).to_numpy())

    @cached_property
    def keying(self) -> Keying:
        """Tuples are stored under the hash of the keys."""
        keys, scales = (self.condition.by.left, self.condition.by.right), scales_of(self.key_fields)
        return Keying(keys, scales=scales, required=self.condition.times)

    @property
    def key_fields(self) -> list[pa.Field]:
        """The left key columns, in the types in which both sides are compared."""
        by = self.condition.by
        return compared_fields((by.left, by.right), self.schemas)

    def keys(self, side: Side) -> tuple[str, ...]:
        """The key columns of `side`."""
        return self.keying.keys[side]

    @cached_property
    def carried(self) -> tuple[pa.Schema, pa.Schema]:
        """Per side, the columns with which a tuple travels and is stored; right: and its number."""
        left, right = (self._needed(side) for side in PAIR)
        number = pa.field(name_beside(self.schemas[Side.RIGHT].names, ID), pa.uint64())
        return pa.schema(left), pa.schema([*right, number])

    def _needed(self, side: Side) -> list[pa.Field]:
        shown = {column.column for column in self.output if column.side is side}
        names = {*self.keys(side), *self.condition.times[side]} | shown
        if self.deleted is not None:
            names |= {name for owner, name in self.deleted.columns if owner is side}
        return [field for field in self.schemas[side] if field.name in names]

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The schema of the results."""
        return output_schema(self.schemas, self.output, None)

    def output_lag_us(self, columns: Sequence[str]) -> int | None:
        """How far the left time in output `columns` may lag (us); None: no bound, or not there."""
        times = self.condition.times[Side.LEFT]
        shown = {c.name for c in self.output if c.side is Side.LEFT and c.column in times}
        return self.condition.reach_us if shown & {*columns} else None


@dataclass(frozen=True, slots=True)
class AsOfShelf(Shelf):
    """Left tuples that wait until their nearest is known, and right tuples that may be nearest."""

    spec: AsOfSpec

    @property
    @override
    def label(self) -> str:
        return f"asof-{self.spec.index}"

    @property
    @override
    def span_us(self) -> int | None:
        """How long a right tuple may be the nearest (us); None: no bound."""
        return self.spec.condition.tolerance_us

    @property
    @override
    def divides_sides(self) -> bool:
        """Left tuples wait for the watermark; right ones stay as long as they may be nearest."""
        return self.spec.waits

    @override
    def schema(self, side: Side) -> pa.Schema:
        return self.spec.carried[side]

    @override
    def times(self, side: Side, columns: pa.RecordBatch) -> Ints | None:
        """(n,) event times; None: no tuple leaves by its time."""
        return self.spec.order(side, columns) if self.spec.waits else None

    @override
    def last_needed(self, side: Side, times: Ints) -> Ints:
        """(n,) the last time at which a right tuple may be nearest; the greatest for left tuples.

        Left tuples do not expire: they leave when they are settled.
        """
        on = self.spec.condition
        if side is Side.LEFT:
            return np.full(len(times), INT_MAX)
        if on.direction is Direction.FORWARD:
            return times
        if on.tolerance_us is None:
            return np.full(len(times), INT_MAX)
        # A left tuple below the watermark may still wait for a later right tuple.
        waits = 2 if on.direction is Direction.NEAREST else 1
        return plus_held(times, min(waits * on.tolerance_us, INT_MAX))[0]

    @override
    def reduced(
        self, side: Side, page: Page, spines: Ints, watermark: float
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_]] | None:
        """Drops right tuples that are outdone: a newer one of their key is below the watermark.

        Left tuples below the watermark are settled, or no right tuple lies between them and the
        watermark. So an outdone tuple is nearest to none of them. If a right tuple of the same time
        does not count, the limit is the oldest left tuple that may still wait, not the watermark.
        If the latest right tuple is wanted, only one of each key stays.
        """
        on = self.spec.condition
        if side is Side.LEFT or self.spec.table is not None:
            return None
        if on.is_latest:
            watermark = math.inf
        if on.direction is Direction.NEAREST and on.strict:
            watermark -= math.inf if on.tolerance_us is None else on.tolerance_us
        times = self.spec.order(side, page.columns)
        old = np.flatnonzero(times < watermark)
        if len(old) < 2:
            return None
        numbers = page.columns.column(page.columns.num_columns - 1).to_numpy()[old]
        groups = key_hash(page.words)[old]
        order = np.lexsort((numbers, times[old], groups, spines[old]))
        groups, owners, old = groups[order], spines[old][order], old[order]
        heads = np.ones(len(old), bool)
        heads[1:] = (groups[1:] != groups[:-1]) | (owners[1:] != owners[:-1])
        ends = np.append(np.flatnonzero(heads)[1:], len(old)) - 1
        newest = old[np.repeat(ends, np.diff(np.append(np.flatnonzero(heads), len(old))))]
        outdone = np.flatnonzero(old != newest)
        for name in self.spec.keys(side):  # unequal keys may share the hash
            column = page.columns.column(name)
            outdone = outdone[equal_at(column, old[outdone], column, newest[outdone])]
        kept = np.ones(len(times), bool)
        kept[old[outdone]] = False
        return (page.columns, kept) if len(outdone) else None
