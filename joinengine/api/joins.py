"""`StreamJoin`: two inputs, the condition that makes a pair, the window and the join type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from joinengine.api import checks
from joinengine.api.column_checks import (
    check_condition,
    check_filter,
    check_predicate,
    check_schema,
    check_type,
    found_columns,
    join_type,
    output_columns,
    selected_columns,
)
from joinengine.api.queries import StreamQuery, number_of
from joinengine.layouts import LayoutChoice, asked_or_auto
from joinengine.model.conditions import Columns, Condition, condition
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.query import (
    FromOperator,
    FromSource,
    Input,
    output_lag_us,
    output_schema,
)
from joinengine.model.windows import Window
from joinengine.operators import Join
from joinengine.spark.session import session
from joinengine.spark.sources.inputs import Source, schema_of


class StreamJoin(StreamQuery):
    """A join of two streams, or of a stream with another `StreamJoin` or a table.

    `left`, `right`: streaming DataFrames, `Stream`s or `StreamJoin`s. If both are the same object,
    it is read once and joined with itself; each row then also meets itself. One side may be a
    bounded DataFrame: a *table*, read once before the first batch. Rows joined with a table keep
    the stream's event time.
    `on`: `equi(...)`, `band(...)`, a list of one of each, `theta(...)`, or column names that both
    sides have. Each of these names is one output column.
    `within`: the window: `within(...)`, `tumbling(...)` or `sliding(...)`. None keeps all rows for
    ever.
    `how`: inner, left, right, full, left_semi or left_anti, or another of Spark's names for them.
    A row without a partner becomes a result when its window has closed.
    `where`: a predicate over both sides that a pair must also fulfil. If both sides have a column,
    write `left.name` or `right.name`.
    `left_where`, `right_where`: predicates that a row of that side must fulfil to enter the join.
    `suffixes`: added to column names that both sides have. Without it, such names are an error.
    `select`: the columns of the results, if not all: a list of names, or a mapping of the name of a
    result to a column (`{"id": "left.id"}`).
    `layout`: a name, with settings if wanted (`mnrt:imbalance=0.02`), or an object of
    `joinengine.layouts`. If not given: the checkpoint's layout, or `auto` for a new checkpoint.
    `instances`: the number of logical workers. If not given: one per core; an existing checkpoint
    keeps a greater number.

    Raises InvalidRequest for arguments that cannot be served, before anything runs.
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
        select: Columns | Mapping[str, str] | None = None,
        layout: str | LayoutChoice | None = None,
        instances: int | None = None,
    ) -> None:
        self._sides = (left, right)
        for side in self._sides:
            if not isinstance(side, StreamJoin):
                checks.check_source(side)
        if select is not None and suffixes is not None:
            raise InvalidRequest("select: suffixes has no effect beside select; leave it out")
        self._table = checks.table_side(left, right)
        self._choice = asked_or_auto(layout)
        self._instances, self._is_sized = number_of(instances), instances is not None
        written, exact, zone = condition(on), session.case_sensitive(), session.zone()
        self._how = join_type(how)
        self._choice.check(written, self._instances)
        self._schemas = (schema_of_side(left), schema_of_side(right))
        self._condition = found_columns(written, self._schemas, exact=exact)
        self._choice = self._choice.serving(self._condition)
        self._distance = check_condition(self._condition, self._schemas)
        self._predicate = check_predicate(self._condition, where, self._schemas, zone, exact=exact)
        self._filters = tuple(
            check_filter(text, side, self._schemas[side], zone, exact=exact)
            for side, text in zip(Side, (left_where, right_where), strict=True)
        )
        checks.check_kind(within)
        self._window = None if within is None else self._settle(within)
        check_type(self._how, self._window, self._table)
        self._output = (
            output_columns(self._schemas, self._condition, suffixes, self._how, self._window)
            if select is None
            else selected_columns(
                select, self._schemas, self._condition, self._how, self._window, exact=exact
            )
        )
        self._is_selected = select is not None

    def _flat(self) -> tuple[list[Any], list[Source]]:
        joins, sources = list[Any](), list[Source]()
        for side in self._sides:
            inner_joins, inner_sources = (
                side._flat() if isinstance(side, StreamJoin) else ([], [side])
            )
            if any(join in joins for join in inner_joins):
                raise InvalidRequest("the same StreamJoin is on both sides; build two of them")
            joins += inner_joins
            sources += [s for s in inner_sources if not any(s is other for other in sources)]
        return [*joins, self], sources

    def _spec(self, number: int, index: dict[int, int], sources: list[Source]) -> Join:
        inputs: list[Input] = [
            FromOperator(index[id(side)])
            if isinstance(side, StreamJoin)
            else FromSource(next(n for n, source in enumerate(sources) if source is side))
            for side in self._sides
        ]
        return Join(
            index=number,
            condition=self._condition,
            window=self._window,
            how=self._how,
            inputs=(inputs[0], inputs[1]),
            schemas=self._schemas,
            output=self._output,
            is_selected=self._is_selected,
            instances=self._instances,
            distance=self._distance,
            predicate=self._predicate,
            filters=(self._filters[0], self._filters[1]),
            table=self._table,
        )

    def _output_schema(self) -> pa.Schema:
        return output_schema(self._schemas, self._output, self._window)

    def _settle(self, window: Window) -> Window:
        if self._table is not None:
            raise InvalidRequest(
                f"within: the {self._table.name.lower()} side is a table, which has no event time. "
                f"Leave within out; joined rows keep the event time of the stream"
            )
        window = checks.found_times(window, self._schemas, exact=session.case_sensitive())
        timed = [
            timed_by(side, columns) for side, columns in zip(self._sides, window.times, strict=True)
        ]
        for side, columns in timed:
            if isinstance(side, StreamJoin):
                side._check_covers(columns)
        checks.check_ahead(window.ahead_us, "within", self._flat()[1])
        sources = [
            None if isinstance(side, StreamJoin) else (side, columns[0]) for side, columns in timed
        ]
        return checks.check_window(window, self._schemas, (sources[0], sources[1]))

    def _check_covers(self, columns: Sequence[str]) -> None:
        """Refuse a later join's window if it cannot bound the age of this join's rows."""
        if self._window is None:
            raise InvalidRequest(
                f"within: {', '.join(columns)} comes from a full-history join, whose rows may have "
                f"any age. Give that join a window, or leave within out"
            )
        if output_lag_us(self._output, self._window, (), columns) is None:
            endless = self._window.endless
            if endless is not None:
                kept, other = endless.name.lower(), endless.other.name.lower()
                raise InvalidRequest(
                    f"within: {', '.join(columns)} may have any age, because the interval of the "
                    f"previous join is open and keeps all of its {kept} side. Name the event time "
                    f"of its {other} side: {', '.join(self._window.times[endless.other])}"
                )
            left, right = (", ".join(times) for times in self._window.times)
            raise InvalidRequest(
                f"within: ({', '.join(columns)}) is not the event time of joined rows; name all "
                f"time columns of one side of that join, ({left}) or ({right}), or of both"
            )


def timed_by(
    side: Source | StreamJoin, columns: tuple[str, ...]
) -> tuple[Source | StreamJoin, tuple[str, ...]]:
    """The source of the event time in `columns`, behind joins with tables; their names there."""
    while isinstance(side, StreamJoin) and side._table is not None:
        stream = side._table.other
        named = {c.name: c.column for c in side._output if c.side is stream}
        for name in columns:
            if name not in named and name in side._output_schema().names:
                raise InvalidRequest(
                    f"within: {name} comes from a table side; name the event time of the stream"
                )
        # `check_window` refuses a missing column, with a list of the columns that there are.
        side, columns = side._sides[stream], tuple(named.get(name, name) for name in columns)
    return side, columns


def schema_of_side(side: Source | StreamJoin) -> pa.Schema:
    """The columns of an input, each named once."""
    found = side._output_schema() if isinstance(side, StreamJoin) else schema_of(side)
    return check_schema(found)
