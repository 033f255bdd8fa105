"""`StreamAggregate`: windowed aggregates of a stream, or of a join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession

from joinengine.api import checks
from joinengine.api.column_checks import check_schema, check_slide
from joinengine.api.comparable import is_hashed
from joinengine.api.joins import StreamJoin, schema_of_side, timed_by
from joinengine.api.queries import StreamQuery, number_of, session_of
from joinengine.layouts import Hash, LayoutChoice, choose
from joinengine.model.aggregation import (
    Aggregate,
    AggregateFunction,
    EventTime,
    Grouping,
    Last,
    Panes,
    Sessions,
    Stage,
    Top,
    Windows,
    result_schema,
)
from joinengine.model.arguments import check_count, check_names, check_one_of, check_text
from joinengine.model.columns import require_column
from joinengine.model.conditions import Columns, Equi
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.lateness import Lateness
from joinengine.model.query import CHANGE, WINDOW_END, FromOperator, FromSource
from joinengine.model.windows import Sliding
from joinengine.operators import Aggregation, Running
from joinengine.operators.layout_policy import LayoutPolicy
from joinengine.predicates.grouping import compile_aggregate, of_changes, partial_schema
from joinengine.predicates.sketching import bound_names, sketch_schema
from joinengine.spark.session import session
from joinengine.spark.sources.inputs import Source


class StreamAggregate(StreamQuery):
    """Windowed counts and sums over a stream or a `StreamJoin`.

    `by`: the grouping columns; NULL is a group. If empty, all rows form one group.
    `aggregates`: output column -> `count(*)`, or `count`, `sum`, `min`, `max` or `avg` of an SQL
    expression, or `histogram(expression, bins)`.
    `window`: `windows(...)`, `session_windows(...)` or `last(...)`. If not given: the windows of
    the source, which must then be a tumbling or sliding join.
    `top`: keep only the groups with the greatest values of each window.
    `layout`: chooses the instance that adds up a row. If not given: `pkg`; for `last`: `hash`.
    `instances`: the number of instances that add up rows. If not given: one per core.
    `aggregators`: the number of instances that merge their partial results. If not given: as many
    as `instances`.
    `merge_every`: merge partial results after this many batches. A greater number means fewer
    partial results, and later results.
    `select`: the columns of the results, if not all: a list of names, or a mapping from new names
    to groups, aggregates or edges of the window.

    Results have the additional columns window_start and window_end, and are written when their
    window has ended. Sums of integers have 64 bits, and a greater sum is an error. Sums of decimals
    have 38 digits. Averages are doubles. Raises InvalidRequest for arguments that cannot be served,
    before anything runs.
    Source: partial results and their merging, Nasir et al., ICDE 2015, section 3.
    """

    def __init__(  # noqa: PLR0913
        self,
        source: Source | StreamJoin,
        *,
        by: Columns = (),
        aggregates: Mapping[str, str],
        window: Windows | None = None,
        top: Top | None = None,
        layout: str | LayoutChoice | None = None,
        instances: int | None = None,
        aggregators: int | None = None,
        merge_every: int = 1,
        select: Columns | Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(source, StreamJoin):
            checks.check_stream(source, ". Group it with Spark")
        self._source = source
        self._schema = schema_of_side(source)
        _check_kinds(aggregates, window, top)
        runs = window is not None and isinstance(window.panes, Last)
        self._choice = choose(("hash" if runs else "pkg") if layout is None else layout)
        self._instances, self._is_sized = number_of(instances), instances is not None
        self._aggregators = self._instances if aggregators is None else aggregators
        self._merges_sized = self._is_sized or aggregators is not None
        _check_merging(aggregators, merge_every, runs=runs)
        self._merge_every = merge_every
        exact, zone = session.case_sensitive(self._spark), session.zone(self._spark)
        is_net = isinstance(source, StreamJoin) and source._told is not None
        plain = self._schema.remove(len(self._schema) - 1) if is_net else self._schema
        fields = _groups(by, plain, exact=exact)
        groups = tuple(field.name for field in fields)
        self._choice.check(Equi(groups, groups), self._instances)
        LayoutPolicy(divides=not runs).check(self._choice)
        self._time, panes = self._settled(window, exact=exact)
        columns = list[tuple[Side, str]]()
        compiled = [
            compile_aggregate(name, text, plain, columns, zone, exact=exact)
            for name, text in aggregates.items()
        ]
        if not compiled:
            raise InvalidRequest(
                "aggregates: expected at least one, such as {'n': 'count(*)'}; found none"
            )
        added = _of_changes(compiled, columns, panes, top) if is_net else tuple(compiled)
        names = tuple(name for _, name in columns)
        self._grouping = Grouping(groups, added, panes, names, top, zone, is_net)
        if top is not None:
            self._check_top(top, fields)
        if top is not None and top.error is not None:
            low, high = bound_names(top)
            count = AggregateFunction.COUNT
            compiled += [Aggregate(name, count, None, pa.int64()) for name in (low, high)]
        kind = self._schema.field(self._time.times[0][0]).type
        self._output = result_schema(fields, compiled, kind)
        check_schema(self._output, "the result")
        if select is not None:
            self._finish = self._results.select((select,))

    @property
    def _is_sketched(self) -> bool:
        return self._grouping.top is not None and self._grouping.top.error is not None

    def _check_top(self, top: Top, groups: Sequence[pa.Field]) -> None:
        made = self._grouping.shown
        names = [
            aggregate.name
            for aggregate in made
            if aggregate.function is not AggregateFunction.HISTOGRAM
        ]
        if top.by not in names:
            raise InvalidRequest(
                f"top: expected one of the aggregates {', '.join(names)}, found {top.by!r}"
            )
        if not isinstance(self._grouping.panes, Panes):
            raise InvalidRequest(
                f"top: there are no greatest groups of {self._grouping.panes}, which are other "
                f"times for each group. Leave top out, or use windows(..)"
            )
        if top.error is not None:
            self._check_sketch(groups)

    def _check_sketch(self, groups: Sequence[pa.Field]) -> None:
        asked = [(aggregate.function, aggregate.sql) for aggregate in self._grouping.aggregates]
        plain = asked == [(AggregateFunction.COUNT, None)]
        if not plain or len(groups) != 1:
            raise InvalidRequest(
                "top: error= counts rows by one column; give by='column', and "
                "aggregates={'n': 'count(*)'} alone"
            )
        kind = groups[0].type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind)):
            raise InvalidRequest(
                f"top: error= needs a group of text, integers or dates, but {groups[0].name} is "
                f"{kind}"
            )

    def _settled(
        self, window: Windows | None, *, exact: bool
    ) -> tuple[EventTime, Panes | Sessions | Last]:
        """The columns of event time, and the windows over it."""
        if window is None:
            of_source = _window_of(self._source)
            if of_source is None:
                raise InvalidRequest(
                    "window: the source has no windows; give windows(time, size=...). Only "
                    "tumbling and sliding joins bring windows"
                )
            columns: tuple[str, ...] = (WINDOW_END,)
            panes = Panes(of_source.size_us, of_source.slide_us, given=True)
            window = Windows(columns, panes, Lateness())
        else:
            if isinstance(window.panes, Panes):
                check_slide("windows", window.panes.size_us, window.panes.slide_us)
            columns = tuple(
                require_column(self._schema, name, "windows", exact=exact).name
                for name in window.times
            )
        timed, names = timed_by(self._source, columns)
        source = None if isinstance(timed, StreamJoin) else (timed, names[0])
        if isinstance(timed, StreamJoin):
            timed._check_covers(names)
        late = window.late
        delay = checks.check_event_time(self._schema, columns, late.delays_us[0], source)
        before = self._source
        sources = before._flat()[1] if isinstance(before, StreamJoin) else [before]
        checks.check_ahead(late.ahead_us, "windows", sources)
        timing = EventTime((columns, ()), (delay, None), late.idle_after_us, late.ahead_us)
        return timing, window.panes

    @property
    def _spark(self) -> SparkSession:
        return session_of(self._source)

    def _flat(self) -> tuple[list[Any], list[Source]]:
        source = self._source
        before, sources = source._flat() if isinstance(source, StreamJoin) else ([], [source])
        return [*before, *(_StageNode(self, stage) for stage in self._stages)], sources

    @property
    def _stages(self) -> tuple[Stage, ...]:
        if isinstance(self._grouping.panes, Last):
            return (Stage.RUNNING,)
        has_top = self._grouping.top is not None and not self._is_sketched
        return (Stage.PARTIAL, Stage.MERGE, *[Stage.TOP] * has_top)

    def _output_schema(self) -> pa.Schema:
        return self._output


@dataclass(frozen=True)
class _StageNode:
    """One stage of an aggregation, among the operators of a query."""

    whole: StreamAggregate
    stage: Stage
    _first: ClassVar[Source | None] = None

    @property
    def _choice(self) -> LayoutChoice:
        return self.whole._choice if self.stage.is_first else Hash()

    @property
    def _is_sized(self) -> bool:
        whole = self.whole
        return whole._is_sized if self.stage.is_first else whole._merges_sized

    def _spec(
        self, number: int, index: dict[int, int], sources: list[Source]
    ) -> Aggregation | Running:
        whole, source = self.whole, self.whole._source
        grouping = whole._grouping
        if self.stage is Stage.TOP:  # its input is whole windows
            assert isinstance(grouping.panes, Panes)
            grouping = replace(grouping, panes=replace(grouping.panes, given=True))
        parts = sketch_schema() if whole._is_sketched else partial_schema(grouping, whole._schema)
        first = FromOperator(index[id(source)]) if isinstance(source, StreamJoin) else FromSource(0)
        taken = {Stage.MERGE: parts, Stage.TOP: whole._output}
        made = Running if self.stage is Stage.RUNNING else Aggregation
        return made(
            index=number,
            stage=self.stage,
            grouping=grouping,
            window=whole._time,
            inputs=(first if self.stage.is_first else FromOperator(number - 1),),
            schemas=(taken.get(self.stage, whole._schema),),
            output_schema=parts if self.stage is Stage.PARTIAL else whole._output,
            instances=whole._instances if self.stage.is_first else whole._aggregators,
            merge_every=whole._merge_every,
            finish=whole._finish if self.stage is whole._stages[-1] else None,
        )


def _groups(by: Columns, schema: pa.Schema, *, exact: bool) -> list[pa.Field]:
    """The columns that name a group.

    Refuses columns that have no hash to route by, and durations, whose type SQL does not preserve.
    """
    names = check_names(by, "by", "by='k'")
    fields = [require_column(schema, name, "by", exact=exact) for name in names]
    for field in fields:
        if not is_hashed(field.type) or pa.types.is_duration(field.type):
            raise InvalidRequest(
                f"by: {field.name} is {field.type}, which cannot name a group. Group by one of its "
                f"fields, or convert it to text with Spark"
            )
    return fields


def _check_kinds(aggregates: Any, window: Any, best: Any) -> None:
    """Refuse arguments of wrong kinds, with what to write."""
    if window is not None:
        check_one_of(window, [Windows], "window", "windows('time', '1 minute')")
    if best is not None:
        check_one_of(best, [Top], "top", "top(10, by='n')")
    check_one_of(aggregates, [Mapping], "aggregates", "{'n': 'count(*)'}")
    for name, text in aggregates.items():
        check_text(name, "aggregates: a name", "{'n': 'count(*)'}")
        check_text(text, f"aggregates: {name}", "'sum(x)'")


def _of_changes(
    aggregates: Sequence[Aggregate],
    columns: list[tuple[Side, str]],
    panes: Panes | Sessions | Last,
    best: Top | None,
) -> tuple[Aggregate, ...]:
    """The aggregates over changes; adds the column of the changes to `columns`.

    Refuses windows and counts that cannot be corrected when a row goes.
    """
    if not isinstance(panes, Panes):
        raise InvalidRequest(
            f"window: {panes} of changes are not served, since a row that goes may have held "
            f"others together; use windows(..)"
        )
    if best is not None and best.error is not None:
        raise InvalidRequest(
            "top: error= counts rows that stay, and the source is a join of changes; leave error "
            "out"
        )
    columns.append((Side.LEFT, CHANGE))
    return of_changes(aggregates, f"c{len(columns) - 1}")


def _check_merging(aggregators: int | None, merge_every: int, *, runs: bool) -> None:
    """Refuse impossible numbers; `runs`: the aggregate has no partial results."""
    given = {"merge_every": merge_every, "aggregators": 1 if aggregators is None else aggregators}
    for name, number in given.items():
        if check_count(number, name) < 1:
            raise InvalidRequest(f"{name}: expected at least 1, found {number}")
    if runs and (aggregators is not None or merge_every != 1):
        raise InvalidRequest(
            "aggregators, merge_every: last(..) has no partial results to merge; leave both out"
        )


def _window_of(source: Source | StreamJoin) -> Sliding | None:
    """The window whose edges are columns of the rows, also behind joins with tables."""
    while isinstance(source, StreamJoin):
        shown = {column.name: column.column for column in source._output}
        if [shown.get(name) for name in source._results.handed_on([WINDOW_END])] != [WINDOW_END]:
            return None
        if source._passing is None:
            return source._window if isinstance(source._window, Sliding) else None
        source = source._sides[source._passing]
    return None
