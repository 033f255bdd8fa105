"""What one as-of join is, with all names resolved, and the columns of its state."""

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
    first batch. `deleted`: a predicate over right tuples that are as good as none, if they are the
    nearest. `until_us`: the time of right tuples that must have come before any left one is read.
    `finish`: what becomes of the results; None: nothing.
    The others are as in `JoinSpec`.
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
        """Whether left tuples wait until their nearest is known; else they pass by, as they come.

        They do not wait for a table, nor where the newest tuple that is there is meant.
        """
        return self.table is None and not self.condition.is_latest

    def order(self, side: Side, columns: pa.RecordBatch) -> Ints:
        """(n,) what right tuples are ordered by, and where left ones stand among them.

        Instants in microseconds, dates in days, or whole numbers. If no column orders them, all
        right tuples come before each left one.
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
        """Per side the columns with which a tuple travels and waits; of right ones also numbers."""
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
        """How far the left time among output `columns` may lag; None: no bound, or not there."""
        times = self.condition.times[Side.LEFT]
        shown = {c.name for c in self.output if c.side is Side.LEFT and c.column in times}
        return self.condition.reach_us if shown & {*columns} else None


@dataclass(frozen=True, slots=True)
class AsOfShelf(Shelf):
    """Left tuples that wait until their nearest is known, and right ones that may be nearest."""

    spec: AsOfSpec

    @property
    @override
    def label(self) -> str:
        return f"asof-{self.spec.index}"

    @property
    @override
    def span_us(self) -> int | None:
        """How long a right tuple may be the nearest."""
        return self.spec.condition.tolerance_us

    @override
    def schema(self, side: Side) -> pa.Schema:
        return self.spec.carried[side]

    @override
    def times(self, side: Side, columns: pa.RecordBatch) -> Ints | None:
        """(n,) event times; None: no tuple leaves by its time."""
        return self.spec.order(side, columns) if self.spec.waits else None

    @override
    def last_needed(self, side: Side, times: Ints) -> Ints:
        """(n,) left tuples leave by themselves; right ones once they are too far from all."""
        on = self.spec.condition
        if side is Side.LEFT:
            return np.full(len(times), INT_MAX)
        if on.direction is Direction.FORWARD:
            return times
        if on.tolerance_us is None:
            return np.full(len(times), INT_MAX)
        # A left tuple below the watermark may still wait for one that comes after it.
        waits = 2 if on.direction is Direction.NEAREST else 1
        return plus_held(times, min(waits * on.tolerance_us, INT_MAX))[0]

    @override
    def reduced(
        self, side: Side, page: Page, spines: Ints, watermark: float
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_]] | None:
        """Without right tuples below the watermark that are not the newest of these of their key.

        All left tuples below the watermark have been settled, or have no right tuple between them
        and the watermark, so an older one is nearest to none. (Unless one of the same time is none:
        then the limit is the oldest left tuple that may still wait.) Of the latest, all but one.
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
        for name in self.spec.keys(side):  # others may share the hash
            column = page.columns.column(name)
            outdone = outdone[equal_at(column, old[outdone], column, newest[outdone])]
        kept = np.ones(len(times), bool)
        kept[old[outdone]] = False
        return (page.columns, kept) if len(outdone) else None
