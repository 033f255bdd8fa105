"""The facts of one stage of an aggregation, for its tasks and its driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from joinengine.exchange.finishing import Finish
from joinengine.exchange.keying import Keying
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.aggregation import AggregateFunction, EventTime, Grouping, Panes, Stage
from joinengine.model.conditions import Equi
from joinengine.model.durations import describe
from joinengine.model.keys import Side
from joinengine.model.query import WINDOW_END, Input
from joinengine.operators.timing import left_out_text

#: The nouns for aggregates in texts.
_NOUNS = {
    AggregateFunction.COUNT: "counts",
    AggregateFunction.SUM: "sums",
    AggregateFunction.MEAN: "means",
    AggregateFunction.MIN: "least values",
    AggregateFunction.MAX: "greatest values",
    AggregateFunction.HISTOGRAM: "histograms",
}


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """One stage of an aggregation, with all names resolved.

    `schemas`: the schema of the input. `output_schema`: the columns that the stage passes on.
    `merge_every`: partial results are passed on every so many batches. `finish`: the steps before
    results leave; None: none.
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
    finish: Finish | None = None

    @property
    def condition(self) -> Equi:
        """Layouts bring tuples with equal keys together."""
        keys = self.keys(Side.LEFT)
        return Equi(keys, keys)

    @property
    def is_sketched(self) -> bool:
        """Whether partial results are sketches, which meet at one aggregator."""
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
        return self.grouping.groups if self.stage.is_first else self.grouping.places

    def times(self, side: Side) -> tuple[str, ...]:
        """The event-time columns; empty for partial results, which cannot be late."""
        return self.window.times[0] if self.stage.is_first else ()

    def carried_schema(self, side: Side) -> pa.Schema:
        """The columns with which a tuple travels."""
        if not self.stage.is_first:
            return self.schemas[0]
        names = {*self.grouping.groups, *self.grouping.columns, *self.times(side)}
        return pa.schema([field for field in self.schemas[0] if field.name in names])

    def first_lines(self, source: str, choice: LayoutChoice, when: str) -> list[str]:
        """The lines of `explain` for a stage that gets the tuples of `source`."""
        time, late = " or ".join(self.times(Side.LEFT)), self.window
        left_out = left_out_text(self.inputs[0], source, late.delays_us[0], late.ahead_us)
        return [
            f"operator {self.index}: {self._in_words()}",
            f"  layout {choice.label} on {self.instances} instances: {choice.summary}",
            f"  {source}: added up by {time}; {when}{left_out}",
        ]

    def facts(self) -> dict[str, Any]:
        """The part of the account about groups, windows, aggregates and the stage."""
        grouping = self.grouping
        return {
            "on": f"{', '.join(grouping.groups) or 'nothing'} in {grouping.panes}",
            "aggregates": [
                [a.name, a.function, a.sql, *([a.bins] if a.bins else [])]
                for a in grouping.aggregates
            ],
            "how": f"aggregate: {self.stage.value}",
        }

    def _in_words(self) -> str:
        """The aggregates, groups and windows, in words."""
        panes, groups = self.grouping.panes, ", ".join(self.grouping.groups)
        nouns = dict.fromkeys(_NOUNS[aggregate.function] for aggregate in self.grouping.shown)
        stretches = str(panes)
        if isinstance(panes, Panes) and panes.slide_us == panes.size_us:
            stretches = f"windows of {describe(panes.size_us)}"
        by = f" by {groups}" if groups else ""
        return f"{' and '.join(nouns)}{by}, in {stretches}"
