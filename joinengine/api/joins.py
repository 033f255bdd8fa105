"""`StreamJoin`: two inputs, the condition that makes a pair, the window and the join type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from typing_extensions import override

from joinengine.api import change_checks, checks
from joinengine.api.change_checks import Told
from joinengine.api.column_checks import (
    check_as_of,
    check_cap,
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
from joinengine.api.latest import Latest
from joinengine.api.queries import StreamQuery, number_of, session_of
from joinengine.layouts import LayoutChoice, asked_or_auto
from joinengine.model.arguments import check_truth
from joinengine.model.conditions import AsOf, Columns, Condition, condition
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Side
from joinengine.model.lateness import Duration
from joinengine.model.query import (
    FromOperator,
    FromSource,
    Input,
    OutputColumn,
    Timed,
    output_lag_us,
    output_schema,
)
from joinengine.model.windows import Window
from joinengine.operators import AsOfJoin, Join
from joinengine.spark.session import session
from joinengine.spark.sources.inputs import Source, schema_of


class StreamJoin(StreamQuery):
    """A join of two streams, or of a stream with another `StreamJoin` or a table.

    `left`, `right`: streaming DataFrames, `Stream`s or `StreamJoin`s. If both are the same object,
    it is read once and joined with itself; each row then also meets itself. One side may be a
    bounded DataFrame: a *table*, read once before the first batch. Rows joined with a table keep
    the stream's event time. The right side may be `latest(...)`: a changing table.
    `on`: `equi(...)`, `band(...)`, a list of one of each, `theta(...)`, `asof(...)`, or column
    names that both sides have. Each of these names is one output column.
    `within`: the window: `within(...)`, `tumbling(...)` or `sliding(...)`. None keeps all rows for
    ever.
    `keep`: in place of `within`, how long a row waits for partners, in event time: one value, or
    (left, right), None being for ever. Both inputs need `withWatermark`.
    `how`: inner, left, right, full, left_semi or left_anti, or another of Spark's names for them.
    A row without a partner becomes a result when its window has closed.
    `where`: a predicate over both sides that a pair must also fulfil. If both sides have a column,
    write `left.name` or `right.name`.
    `left_where`, `right_where`: predicates that a row of that side must fulfil to enter the join.
    `suffixes`: added to column names that both sides have. Without it, such names are an error.
    `select`: the columns of the results, if not all: a list of names, or a mapping from new names
    to columns (`{"id": "left.id"}`).
    `layout`: a name, with settings if wanted (`mnrt:imbalance=0.02`), or an object of
    `joinengine.layouts`. If not given: the checkpoint's layout, or `auto` for a new checkpoint.
    `instances`: the number of logical workers. If not given: one per core; an existing checkpoint
    keeps a greater number.

    `max_pairs_per_key`: the most pairs of a key that the rows of a side make in a batch, at an
    instance. Further pairs are left out and counted. None: no limit.
    `changes`: a column of both sides, or (left, right), that says whether a row comes or goes: +1
    and -1, a greater number for several equal rows, or a word of a change data feed (insert,
    delete, update_preimage, update_postimage). None: rows of that side only come. The results have
    `_change` at the end: -1 takes back a result of +1. Only for inner joins.

    `multiway`: whether this join and the joins that it reads may become one operator, if all are
    inner joins on one key.

    Raises InvalidRequest for arguments that cannot be served, before anything runs.
    """

    def __init__(  # noqa: PLR0913
        self,
        left: Source | StreamJoin,
        right: Source | StreamJoin | Latest,
        *,
        on: Condition | Columns | Sequence[Condition],
        within: Window | None = None,
        keep: Duration | tuple[Duration | None, Duration | None] | None = None,
        how: str = "inner",
        where: str | None = None,
        left_where: str | None = None,
        right_where: str | None = None,
        suffixes: tuple[str, str] | None = None,
        select: Columns | Mapping[str, str] | None = None,
        layout: str | LayoutChoice | None = None,
        instances: int | None = None,
        max_pairs_per_key: int | None = None,
        changes: str | tuple[str | None, str | None] | None = None,
        multiway: bool = True,
    ) -> None:
        if isinstance(left, Latest):
            raise InvalidRequest("latest: it is the right side of a join; swap the sides")
        self._latest = right if isinstance(right, Latest) else None
        right = right.stream if isinstance(right, Latest) else right
        self._sides = (left, right)
        for side in self._sides:
            if not isinstance(side, StreamJoin):
                checks.check_source(side)
        self._table = checks.table_side(left, right)
        self._choice = asked_or_auto(layout)
        self._instances, self._is_sized = number_of(instances), instances is not None
        written, spark = condition(on), self._spark
        exact, zone = session.case_sensitive(spark), session.zone(spark)
        self._how, self._schemas = join_type(how), (schema_of_side(left), schema_of_side(right))
        self._told = self._told_by(changes, written, exact=exact)
        plain = change_checks.without(self._told, self._schemas)
        if self._latest is None:
            self._choice.check(written, self._instances)
        self._condition = found_columns(written, plain, exact=exact)
        if self._latest is not None:
            self._condition = self._latest.meaning(self._condition)
            self._choice.check(self._condition, self._instances)
        self._choice = self._choice.serving(self._condition)
        self._distance = check_condition(self._condition, self._schemas)
        self._predicate = check_predicate(self._condition, where, plain, zone, exact=exact)
        self._filters = tuple(
            check_filter(text, side, self._schemas[side], zone, exact=exact)
            for side, text in zip(PAIR, (left_where, right_where), strict=True)
        )
        self._deleted = None if self._latest is None else self._latest.gone(zone, exact=exact)
        if self._told is not None:
            change_checks.check_changes(self._condition, self._how, max_pairs_per_key)
        if keep is not None:
            within = checks.kept(keep, within, self._sides, self._condition)
        checks.check_kind(within)
        self._window = self._timed(within, where)
        self._max_pairs = check_cap(max_pairs_per_key, self._condition, self._how)
        self._is_selected = select is not None
        self._is_apart = not check_truth(multiway, "multiway")
        self._output = self._shown(plain, select, suffixes, exact=exact)

    def _check_read_first(self) -> None:
        """Refuse one stream on both sides: its versions would be read before its left rows."""
        left, right = self._sides
        sources = left._flat()[1] if isinstance(left, StreamJoin) else [left]
        reads_both = any(right is source for source in sources)
        if reads_both:
            raise InvalidRequest(
                "latest: the left side reads the same stream, whose versions are to be read before "
                "left rows; open it a second time for one of the sides"
            )

    def _told_by(self, changes: Any, written: Condition, *, exact: bool) -> Told | None:
        """The columns with the changes of both sides; None: rows only come."""
        names = None
        if changes is not None:
            names = change_checks.told_by(changes, self._schemas, exact=exact)
        for side in PAIR:
            source = self._sides[side]
            if isinstance(source, StreamJoin) and source._told is not None:
                takes_one = self._latest is not None or isinstance(written, AsOf)
                change_checks.check_told(side, names, takes_one=takes_one)
        return names

    def _shown(
        self,
        schemas: tuple[pa.Schema, pa.Schema],
        select: Columns | Mapping[str, str] | None,
        suffixes: tuple[str, str] | None,
        *,
        exact: bool,
    ) -> tuple[OutputColumn, ...]:
        """The columns of the results, of those in `schemas`; that of changes comes last."""
        of_join = (self._condition, self._how, self._window)
        if select is not None and suffixes is not None:
            raise InvalidRequest("select: suffixes has no effect beside select; leave it out")
        if select is None:
            shown = output_columns(schemas, of_join[0], suffixes, *of_join[1:])
        else:
            shown = selected_columns(select, schemas, *of_join, exact=exact)
        if self._told is None:
            return shown
        matching = change_checks.matching(self._condition, self._predicate, self._window)
        change_checks.check_lasting(
            matching, self._told, self._sides, "match by columns of the row itself"
        )
        return change_checks.with_change(shown, self._told, self._sides)

    def _timed(self, within: Window | None, where: str | None) -> Window | None:
        """The window with its delays settled; an as-of join has none, and its condition has them.

        Refuses what the join cannot have.
        """
        if isinstance(self._condition, AsOf):
            name = "asof" if self._latest is None else "latest"
            check_as_of(name, self._how, within, where, self._table)
            self._condition = self._timed_as_of(self._condition)
            return None
        window = None if within is None else self._settle(within)
        check_type(self._how, window, self._table)
        return window

    @property
    def _passing(self) -> Side | None:
        """The side whose rows meet the rows that are there and leave at once; None: both wait."""
        if isinstance(self._condition, AsOf) and self._condition.is_latest:
            return Side.LEFT
        return None if self._table is None else self._table.other

    @property
    @override
    def _is_changelog(self) -> bool:
        """Whether this is a join of changes."""
        return self._told is not None

    @property
    @override
    def _first(self) -> Source | None:
        """The stream of `latest`, which is read before all others."""
        return None if self._latest is None else self._latest.stream

    @property
    @override
    def _spark(self) -> SparkSession:
        return session_of(next(side for side in self._sides if not checks.is_table(side)))

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

    def _spec(self, number: int, index: dict[int, int], sources: list[Source]) -> Join | AsOfJoin:
        inputs: list[Input] = [
            FromOperator(index[id(side)])
            if isinstance(side, StreamJoin)
            else FromSource(next(n for n, source in enumerate(sources) if source is side))
            for side in self._sides
        ]
        common: dict[str, Any] = {
            "index": number,
            "how": self._how,
            "inputs": (inputs[0], inputs[1]),
            "schemas": self._schemas,
            "output": self._output,
            "instances": self._instances,
            "filters": (self._filters[0], self._filters[1]),
            "table": self._table,
            "is_selected": self._is_selected,
            "finish": self._finish,
        }
        if isinstance(self._condition, AsOf):
            until_us = None if self._latest is None else self._latest.until_us
            common |= {"deleted": self._deleted, "until_us": until_us}
            return AsOfJoin(condition=self._condition, **common)
        return Join(
            condition=self._condition,
            window=self._window,
            distance=self._distance,
            predicate=self._predicate,
            max_pairs=self._max_pairs,
            changes=self._told,
            **common,
        )

    def _output_schema(self) -> pa.Schema:
        return output_schema(self._schemas, self._output, self._window)

    def _settle(self, window: Window) -> Window:
        if self._table is not None:
            raise InvalidRequest(
                f"within: the {self._table.name.lower()} side is a table, which has no event time. "
                "If it is to be a stream, read it with spark.readStream or parquet_stream; else "
                "leave within out: joined rows keep the event time of the stream"
            )
        exact = session.case_sensitive(self._spark)
        window = checks.found_times(window, self._schemas, exact=exact)
        checks.check_ahead(window.ahead_us, "within", self._flat()[1])
        return checks.check_window(window, self._schemas, self._sources_of_time(window))

    def _timed_as_of(self, on: AsOf) -> AsOf:
        """The condition with its delays settled."""
        if on.is_latest:
            self._check_read_first()
            return on
        if self._table is not None:
            return checks.check_times(on, self._schemas, "asof")
        return checks.check_window(on, self._schemas, self._sources_of_time(on), "asof")

    def _sources_of_time(self, window: Timed) -> tuple[checks.Timed | None, checks.Timed | None]:
        """Per side the stream that event time comes from; None: an operator."""
        timed = [
            timed_by(side, columns) for side, columns in zip(self._sides, window.times, strict=True)
        ]
        for side, columns in timed:
            if isinstance(side, StreamJoin):
                side._check_covers(columns)
        sources = [
            None if isinstance(side, StreamJoin) else (side, columns[0]) for side, columns in timed
        ]
        return sources[0], sources[1]

    def _check_covers(self, columns: Sequence[str]) -> None:
        """Refuse a later join's window if it cannot bound the age of this join's rows."""
        text, columns = ", ".join(columns), self._results.origins(columns)
        if isinstance(self._condition, AsOf):
            self._check_covers_as_of(self._condition, columns, text)
            return
        if self._window is None:
            raise InvalidRequest(
                f"within: {text} comes from a full-history join, whose rows may have "
                f"any age. Give that join a window, or leave within out"
            )
        if output_lag_us(self._output, self._window, (), columns) is None:
            endless = self._window.endless
            if endless is not None:
                kept, other = endless.name.lower(), endless.other.name.lower()
                raise InvalidRequest(
                    f"within: {text} may have any age, because the interval of the previous join "
                    f"is open and keeps all of its {kept} side. Name the event time of its "
                    f"{other} side: {self._leaving(endless.other, self._window)}"
                )
            left, right = (self._leaving(side, self._window) for side in PAIR)
            raise InvalidRequest(
                f"within: ({text}) is not the event time of joined rows; name all "
                f"time columns of one side of that join, ({left}) or ({right}), or of both"
            )

    def _leaving(self, side: Side, window: Timed) -> str:
        """The name of a side's event time in the rows that leave, if they have it."""
        names = {(c.side, c.column): c.name for c in self._output}
        steps = self._results
        left = {made: n for n in steps.schema.names for made in steps.handed_on([n])}
        made = ((time, names.get((side, time), time)) for time in window.times[side])
        return ", ".join(left.get(name, time) for time, name in made)

    def _check_covers_as_of(self, on: AsOf, columns: Sequence[str], text: str) -> None:
        (time,), _ = on.times
        shown = tuple(c.name for c in self._output if (c.side, c.column) == (Side.LEFT, time))
        if columns != shown:
            raise InvalidRequest(
                f"{text} is not the event time of as-of joined rows, which is that of their left "
                f"rows; name {self._leaving(Side.LEFT, on)} in its place"
            )
        if on.reach_us is None:
            raise InvalidRequest(
                f"{text} may have any age, because an asof that looks {on.direction} "
                f"without tolerance waits for any time; give asof(.., tolerance=..)"
            )


def timed_by(
    side: Source | StreamJoin, columns: tuple[str, ...]
) -> tuple[Source | StreamJoin, tuple[str, ...]]:
    """The source of the event time in `columns`, behind joins with tables; their names there."""
    while isinstance(side, StreamJoin) and side._passing is not None:
        stream = side._passing
        named = {c.name: c.column for c in side._output if c.side is stream}
        columns = side._results.origins(columns)
        for name in columns:
            if name not in named and name in side._output_schema().names:
                raise InvalidRequest(
                    f"within: {name} comes from a table side; name the event time of the stream"
                )
        # `check_window` refuses a missing column, with a list of the columns that there are.
        side, columns = side._sides[stream], tuple(named.get(name, name) for name in columns)
    return side, columns


def schema_of_side(side: Source | StreamJoin) -> pa.Schema:
    """The columns of an input, each named once.

    Raises InvalidRequest for a query with a `transform`: an operator that reads the query would get
    rows from before it.
    """
    if isinstance(side, StreamJoin) and side._transform is not None:
        raise InvalidRequest(
            "transform: a query whose results Spark transforms cannot be an input of another; "
            "transform the results of the last operator"
        )
    schema = side._results.schema if isinstance(side, StreamJoin) else schema_of(side)
    return check_schema(schema)
