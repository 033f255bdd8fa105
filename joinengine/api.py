"""The Python face: `StreamJoin`.

A `StreamJoin` checks everything that can be known before a job starts, at the line that says it; it
does nothing until its writer is started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from joinengine.layouts import LayoutChoice, choose
from joinengine.model.conditions import Columns, Condition, condition
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.query import FromJoin, FromSource, Input, JoinSpec, QuerySpec
from joinengine.model.windows import Window, Within
from joinengine.reporting.explain import explain
from joinengine.spark import checks, types
from joinengine.spark.bookkeeping import covered_sides
from joinengine.spark.inputs import Source, Stream, schema_of
from joinengine.spark.session import parallelism
from joinengine.spark.sink import Transform
from joinengine.spark.writer import JoinWriter, ResolvedJoin


class StreamJoin:
    """A join of two streams, or of a stream and another `StreamJoin`.

    `left`, `right`: streaming DataFrames, `Stream`s, or `StreamJoin`s; the same object twice is a
    self-join: it is read once, and a tuple meets itself. `on`: `equi(...)`, `band(...)`, a list of
    one of each, `theta(...)`, or column names that both sides have (one output column each).
    `where`: a predicate over both sides (`left.` and `right.` where both have a name) that a pair
    must fulfil too; `left_where`, `right_where`: what a tuple must to enter the join. `within`:
    `within(...)`, None for the full history. `suffixes`: for columns that clash; without them a
    clash is refused.
    `layout`: a name or an object of `joinengine.layouts`. `instances`: logical join workers; None:
    as many as Spark has cores.

    Raises InvalidRequest, before anything runs, for whatever cannot be served.
    """

    def __init__(  # noqa: PLR0913
        self,
        left: Source | StreamJoin,
        right: Source | StreamJoin,
        *,
        on: Condition | Columns | Sequence[Condition],
        within: Window | None = None,
        how: str = "inner",
        where: str | None = None,
        left_where: str | None = None,
        right_where: str | None = None,
        suffixes: tuple[str, str] | None = None,
        layout: str | LayoutChoice = "mnrt",
        instances: int | None = None,
    ) -> None:
        self._sides = (left, right)
        for side in self._sides:
            if not isinstance(side, StreamJoin):
                checks.check_source(side)
        checks.check_bounded(left, right)
        self._choice = choose(layout)
        self._instances = _default_instances() if instances is None else instances
        self._condition = condition(on)
        self._how = checks.join_type(how)
        self._choice.check(self._condition, self._how, self._instances)
        self._schemas = (_schema(left), _schema(right))
        self._distance = checks.check_condition(self._condition, self._schemas)
        self._predicate = checks.check_predicate(self._condition, where, self._schemas)
        self._filters = tuple(
            checks.check_filter(text, side, self._schemas[side])
            for side, text in zip(Side, (left_where, right_where), strict=True)
        )
        self._window = None if within is None else self._settle(within)
        self._output = checks.output_columns(self._schemas, self._condition, suffixes)
        self._transform: Transform | None = None

    @property
    def schema(self) -> Any:
        """The Spark schema of the joined rows (before `transform`)."""
        return types.spark_schema(self._output_schema())

    @property
    def writeStream(self) -> JoinWriter:
        """Where to, and how: then `.start()`."""
        joins, sources = self._flat()
        first = sources[0]
        resolved = ResolvedJoin(
            spark=first.spark if isinstance(first, Stream) else first.sparkSession,
            query=self.query(),
            choices=[join._choice for join in joins],
            sources=sources,
            schema=self._output_schema(),
            transform=self._transform,
        )
        return JoinWriter(resolved)

    def transform(self, function: Transform) -> StreamJoin:
        """Apply a stateless DataFrame function to each batch's results, before the sink."""
        other = object.__new__(StreamJoin)
        other.__dict__ = dict(self.__dict__)
        before = self._transform
        other._transform = function if before is None else lambda frame: function(before(frame))
        return other

    def explain(self) -> str:
        """The joins, their layouts, and when a tuple leaves the state, as text."""
        return explain(self.query(), [join._choice for join in self._flat()[0]])

    def query(self) -> QuerySpec:
        """The whole query, resolved: this join and those that it reads."""
        joins, sources = self._flat()
        index = {id(join): number for number, join in enumerate(joins)}
        specs = tuple(join._spec(number, index, sources) for number, join in enumerate(joins))
        return QuerySpec(specs, tuple(_describe(source) for source in sources))

    def _flat(self) -> tuple[list[StreamJoin], list[Source]]:
        """The joins in the order in which they run, and the distinct sources."""
        joins, sources = list[StreamJoin](), list[Source]()
        for side in self._sides:
            inner_joins, inner_sources = (
                side._flat() if isinstance(side, StreamJoin) else ([], [side])
            )
            if any(join in joins for join in inner_joins):
                raise InvalidRequest("the same StreamJoin is given twice; build it twice instead")
            joins += inner_joins
            sources += [s for s in inner_sources if not any(s is other for other in sources)]
        return [*joins, self], sources

    def _spec(self, number: int, index: dict[int, int], sources: list[Source]) -> JoinSpec:
        inputs: list[Input] = [
            FromJoin(index[id(side)])
            if isinstance(side, StreamJoin)
            else FromSource(next(n for n, source in enumerate(sources) if source is side))
            for side in self._sides
        ]
        return JoinSpec(
            index=number,
            condition=self._condition,
            window=self._window,
            how=self._how,
            inputs=(inputs[0], inputs[1]),
            schemas=self._schemas,
            output=self._output,
            instances=self._instances,
            distance=self._distance,
            predicate=self._predicate,
            filters=(self._filters[0], self._filters[1]),
        )

    def _output_schema(self) -> pa.Schema:
        fields = [self._schemas[c.side].field(c.column).with_name(c.name) for c in self._output]
        return pa.schema(fields)

    def _settle(self, window: Window) -> Within:
        left, right = (None if isinstance(s, StreamJoin) else s for s in self._sides)
        settled = checks.check_window(window, self._schemas, (left, right))
        for side, columns in zip(self._sides, settled.times, strict=True):
            if isinstance(side, StreamJoin):
                side._check_covers(columns)
        return settled

    def _check_covers(self, columns: tuple[str, ...]) -> None:
        """Refuse a later window whose bound on this join's rows cannot be known."""
        if self._window is None:
            raise InvalidRequest(
                f"within: {', '.join(columns)} comes from a full-history join, whose rows may be "
                f"of any age: give that join a window, or this one none"
            )
        if not covered_sides(self._output, self._window.times, columns):
            left, right = (", ".join(times) for times in self._window.times)
            raise InvalidRequest(
                f"within: {', '.join(columns)} is not the whole event time of a side of the inner "
                f"join: name {left}, or {right}, or all of them"
            )


def _schema(side: Source | StreamJoin) -> pa.Schema:
    found = side._output_schema() if isinstance(side, StreamJoin) else schema_of(side)
    return checks.check_schema(found)


def _default_instances() -> int:
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise InvalidRequest("instances: no Spark session is active; give a number")
    return parallelism(spark)


def _describe(source: Source) -> str:
    if isinstance(source, Stream):
        where = "" if source.reading.where is None else f" where {source.reading.where}"
        return f"{source.feed['kind']} {source.feed['path']}{where}"
    return "dataframe"
