"""What one stage of an aggregation is, with all names resolved."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from joinengine.exchange.keying import Keying
from joinengine.model.aggregation import EventTime, Grouping, Stage
from joinengine.model.conditions import Equi
from joinengine.model.keys import Side
from joinengine.model.query import WINDOW_END, Input


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """One stage of an aggregation, with all names resolved.

    `schemas`: the schema of the input. `output_schema`: the columns of what the stage passes on.
    `merge_every`: partial results are passed on every so many batches.
    """

    index: int
    stage: Stage
    grouping: Grouping
    window: EventTime
    inputs: tuple[Input]
    schemas: tuple[pa.Schema]
    output_schema: pa.Schema
    instances: int
    merge_every: int = 1

    @property
    def condition(self) -> Equi:
        """Layouts bring tuples with equal keys together."""
        keys = self.keys(Side.LEFT)
        return Equi(keys, keys)

    @property
    def is_sketched(self) -> bool:
        """Whether partial results are sketches, which all meet at one aggregator."""
        return self.grouping.top is not None and self.grouping.top.error is not None

    @property
    def keying(self) -> Keying:
        """The keys are names of groups, and NULL is one."""
        keys = self.keys(Side.LEFT)
        return Keying((keys, keys), groups=True)

    def keys(self, side: Side) -> tuple[str, ...]:
        """The columns by which tuples are routed."""
        if self.stage is Stage.MERGE and self.is_sketched:
            return ()
        if self.stage is Stage.TOP:
            return (WINDOW_END,)
        return self.grouping.groups if self.stage is Stage.PARTIAL else self.grouping.places

    def times(self, side: Side) -> tuple[str, ...]:
        """The event time of tuples; partial results have none that could be late."""
        return self.window.times[0] if self.stage is Stage.PARTIAL else ()

    def carried_schema(self, side: Side) -> pa.Schema:
        """The columns with which a tuple travels."""
        if self.stage is not Stage.PARTIAL:
            return self.schemas[0]
        needed = {*self.grouping.groups, *self.grouping.columns, *self.times(side)}
        return pa.schema([field for field in self.schemas[0] if field.name in needed])
