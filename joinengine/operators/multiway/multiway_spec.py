"""The facts of one multiway join, for its tasks and its driver, and the columns of its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from typing_extensions import override

from joinengine.exchange.finishing import Finish
from joinengine.exchange.keying import Keying, scales_of
from joinengine.kernels.comparing import latest_time
from joinengine.kernels.probing import Ints
from joinengine.model.conditions import Multiway, Predicate
from joinengine.model.keys import Side
from joinengine.model.query import Input, OutputColumn
from joinengine.operators.multiway.nearness import Nearness
from joinengine.state.upkeep import Shelf


@dataclass(frozen=True)
class MultiwaySpec:
    """An inner join of three to eight streams whose keys, all of one type, must all be equal.

    Tuples, one per side, are a result if their keys are equal and, with `nearness`, their times are
    near enough. `filters`: per side, what a tuple must fulfil to enter. `chain`: the numbers of the
    joins that this one replaces. `finish`: the steps before results leave; None: none.
    """

    index: int
    condition: Multiway
    nearness: Nearness | None
    inputs: tuple[Input, ...]
    schemas: tuple[pa.Schema, ...]
    output: tuple[OutputColumn, ...]
    instances: int
    filters: tuple[Predicate | None, ...]
    chain: tuple[int, ...]
    is_selected: bool = False
    finish: Finish | None = None

    @property
    def sides(self) -> tuple[Side, ...]:
        """All sides, in the order in which a batch processes their tuples."""
        return tuple(Side)[: len(self.inputs)]

    @cached_property
    def keying(self) -> Keying:
        """Tuples are stored, and meet others, under the hash of the keys."""
        keys, none = self.condition.keys, tuple(() for _ in self.inputs)
        return Keying(keys, scales=scales_of(self.key_fields), required=none)

    @property
    def key_fields(self) -> list[pa.Field]:
        """The key columns; those of all sides have the same types."""
        return [self.schemas[Side.LEFT].field(name) for name in self.condition.keys[Side.LEFT]]

    def keys(self, side: Side) -> tuple[str, ...]:
        """The key columns of `side`."""
        return self.condition.keys[side]

    def times(self, side: Side) -> tuple[str, ...]:
        """The event-time column of `side`; empty without windows."""
        return () if self.nearness is None else self.nearness.times[side]

    @cached_property
    def carried(self) -> tuple[pa.Schema, ...]:
        """Per side, the columns with which a tuple travels and is stored."""
        shown = {(column.side, column.column) for column in self.output}
        return tuple(
            pa.schema(
                field
                for field in schema
                if field.name in {*self.keys(side), *self.times(side)}
                or (side, field.name) in shown
            )
            for side, schema in zip(self.sides, self.schemas, strict=True)
        )

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The schema of the results."""
        fields = list[pa.Field]()
        for column in self.output:
            assert column.side is not None
            fields.append(self.schemas[column.side].field(column.column).with_name(column.name))
        return pa.schema(fields)

    def output_lag_us(self, columns: Sequence[str]) -> int | None:
        """How far the latest of `columns` may lag behind the watermark (us); None: no bound."""
        if self.nearness is None:
            return None
        covered = [
            column.side
            for column in self.output
            if column.side is not None
            and column.name in columns
            and column.column in self.times(column.side)
        ]
        return self.nearness.lag_us(covered) if covered else None


@dataclass(frozen=True, slots=True)
class MultiwayShelf(Shelf):
    """The tuples of all sides that may still be part of a result."""

    spec: MultiwaySpec

    @property
    @override
    def label(self) -> str:
        return f"multiway-{self.spec.index}"

    @property
    @override
    def span_us(self) -> int | None:
        """How long a tuple may be needed (us); None: for ever."""
        return None if self.spec.nearness is None else self.spec.nearness.span_us

    @override
    def schema(self, side: Side) -> pa.Schema:
        return self.spec.carried[side]

    @override
    def times(self, side: Side, columns: pa.RecordBatch) -> Ints | None:
        names = self.spec.times(side)
        return latest_time(columns, names) if names else None

    @override
    def last_needed(self, side: Side, times: Ints) -> Ints:
        """(n,) the last event time (us) that a tuple may have that meets each."""
        assert self.spec.nearness is not None
        return self.spec.nearness.last_partners(side, times)
