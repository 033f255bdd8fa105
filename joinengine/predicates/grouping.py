"""Aggregation by DuckDB: from tuples to partial results, and from these to results.

Why partial results: a group's tuples may be at several instances (split keys, candidates, shuffle).
Each instance adds up its own tuples; the sums, counts and extremes of the parts give those of the
whole. A session is found in the same way: each instance finds pieces of it, and pieces that overlap
are one session.

Inside, columns are numbered: a group is g0, g1, .., an aggregate a0, a1, ..; only results have the
names that the user gave. So these may be any names.

Law: however tuples are divided, the parts add up to the same result (except for the rounding of
floating-point sums).
Cost: one hash aggregation over the tuples, and one over the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa

from joinengine.model.aggregation import (
    BEGINNING,
    ENDLESS_VALUES,
    PANE,
    Aggregate,
    AggregateFunction,
    Grouping,
    Last,
    Sessions,
    partial_fields,
)
from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.model.keys import Side
from joinengine.model.query import WINDOW_END
from joinengine.model.texts import quoted
from joinengine.model.windows import Times
from joinengine.predicates.dialect import Translation, evaluated_type, parsed
from joinengine.predicates.engine import over, reason_of
from joinengine.predicates.histograms import BINS_TYPE, asked_bins, gathered, with_bins
from joinengine.predicates.syntax import arguments_of

#: Prefix of a column of partial results -> SQL of the values that it counts.
_ENDLESS = {
    part: f"'{value}'::double"
    for part, value in zip(ENDLESS_VALUES, ("inf", "-inf", "nan"), strict=True)
}
#: SQL's names of the functions; avg is MEAN.
FUNCTIONS = {function.value: function for function in AggregateFunction}
FUNCTIONS |= {"count_star": AggregateFunction.COUNT, "avg": AggregateFunction.MEAN}
#: The functions whose results are whole numbers if their values are.
_WHOLE = (AggregateFunction.SUM, AggregateFunction.COUNT)
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
#: The functions that sums over changes can compute.
_SUMMED = (AggregateFunction.COUNT, AggregateFunction.SUM, AggregateFunction.MEAN)


def compile_aggregate(
    name: str,
    text: str,
    schema: pa.Schema,
    columns: list[tuple[Side, str]],
    zone: str = "UTC",
    *,
    exact: bool = False,
) -> Aggregate:
    """Column `name`, which is `text`: an aggregate of an expression, or count(*).

    The columns that the expression needs are added to `columns`; `zone` as for predicates. Raises
    InvalidRequest for any other text.
    """
    what = f"aggregates: {name}"
    tree = parsed(text, what)
    (root,) = tree["statements"][0]["node"]["select_list"]
    function = FUNCTIONS.get(root.get("function_name", ""))
    plain = not (
        root.get("distinct") or root.get("filter") or root.get("order_bys", {}).get("orders")
    )
    if root.get("class") != "FUNCTION" or function is None or not plain:
        raise InvalidRequest(
            f"{what}: expected count, sum, min, max, avg or histogram of an expression, or "
            f"count(*), found {quoted(text)}"
        )
    arguments, bins = arguments_of(root), 0
    if function is AggregateFunction.HISTOGRAM:
        bins = asked_bins(arguments, f"{what}: histogram in {quoted(text)}")
        arguments = arguments[:1]
    if len(arguments) != 1 and root["function_name"] != "count_star":
        given_instead = f"{len(arguments)} expressions" if arguments else "none"
        raise InvalidRequest(
            f"{what}: {root['function_name']} in {quoted(text)} needs one expression, found "
            f"{given_instead}. Give one, or count rows with count(*)"
        )
    if not arguments:
        return Aggregate(name, AggregateFunction.COUNT, None, pa.int64())
    tree["statements"][0]["node"]["select_list"] = arguments
    reading = Translation(text, (schema,), what, zone, columns, exact)
    select, kind = reading.select(tree)
    sql = select.removeprefix("SELECT ")
    if function is AggregateFunction.COUNT:
        return Aggregate(name, function, sql, pa.int64())
    if function in (AggregateFunction.MIN, AggregateFunction.MAX):
        return Aggregate(name, function, sql, _arrow_type(select, reading))
    sums = _type_of_sum(kind, f"{what}: {quoted(text)}")
    if function is AggregateFunction.HISTOGRAM:
        return Aggregate(name, function, sql, BINS_TYPE, bins=bins)
    if function is AggregateFunction.MEAN:
        return Aggregate(name, function, sql, pa.float64(), sums)
    whole = {"DOUBLE": pa.float64(), "DECIMAL(38,0)": pa.int64()}
    is_decimal = kind not in (*_INTEGERS, "DOUBLE", "FLOAT")
    return Aggregate(name, function, sql, _decimal(sums) if is_decimal else whole[sums], sums)


def of_changes(aggregates: Sequence[Aggregate], change: str) -> tuple[Aggregate, ...]:
    """The aggregates over the changes in column `change`, and at the end a count of rows.

    Raises InvalidRequest for aggregates that sums alone cannot compute.
    """
    for aggregate in aggregates:
        if aggregate.function not in _SUMMED:
            raise InvalidRequest(
                f"aggregates: {aggregate.name}: the {aggregate.function} of rows that may go "
                "again is not known, since only sums are kept; leave it out, or ask a table that "
                "mergeKeys writes"
            )
    rows = Aggregate("", AggregateFunction.COUNT, None, pa.int64())
    return tuple(replace(aggregate, weight=change) for aggregate in (*aggregates, rows))


def _type_of_sum(kind: str, what: str) -> str:
    """A type in which sums are exact (of floats: as exact as floats are)."""
    if kind in _INTEGERS:
        return "DECIMAL(38,0)"
    if kind in ("DOUBLE", "FLOAT"):
        return "DOUBLE"
    if kind.startswith("DECIMAL("):
        return f"DECIMAL(38,{kind.removesuffix(')').split(',')[1]})"
    raise InvalidRequest(f"{what} needs numbers, found values of type {kind}; cast them first")


def _arrow_type(select: str, reading: Translation) -> pa.DataType:
    """The type of a result; a bare column keeps its own type."""
    plain = {
        f"SELECT c{i}": reading.schemas[0].field(n).type for i, (_, n) in enumerate(reading.columns)
    }
    result = query_parts(f"{select} from parts", reading.empty(), reading.zone)
    kind = plain.get(select, result.schema.field(0).type)
    if pa.types.is_interval(kind) or pa.types.is_duration(kind):
        raise InvalidRequest(
            f"{reading.what}: {quoted(reading.text)} is a length of time, which no column holds; "
            "take the times themselves, or datediff"
        )
    return kind


def partial_schema(grouping: Grouping, schema: pa.Schema) -> pa.Schema:
    """The columns of partial results: groups, pane, and the sums, counts and extremes so far."""
    places = zip(grouping.groups, grouping.places, strict=True)
    groups = [schema.field(name).with_name(place) for name, place in places]
    fields = [pa.field(edge, pa.int64()) for edge in grouping.edges]
    for number, aggregate in enumerate(grouping.aggregates):
        kind = pa.int64() if aggregate.function is AggregateFunction.COUNT else aggregate.kind
        if aggregate.sums:
            kind = pa.float64() if aggregate.sums == "DOUBLE" else _decimal(aggregate.sums)
        fields.append(pa.field(f"p{number}", kind))
        fields += [pa.field(f"{part}{number}", pa.int64()) for part in aggregate.parts[1:]]
    return pa.schema([*groups, *fields])


def _decimal(name: str) -> pa.DataType:
    precision, scale = name.removeprefix("DECIMAL(").removesuffix(")").split(",")
    return pa.decimal128(int(precision), int(scale))


def add_tuples(grouping: Grouping, tuples: pa.RecordBatch, times: Times) -> pa.Table:
    """Tuples, and (n,) the time of each -> partial results, one for each group and pane.

    Under sessions they are pieces of sessions, at most one for each stretch as long as a gap.
    """
    assert not isinstance(grouping.panes, Last)
    panes = grouping.panes.pane_of(times)
    columns = evaluated_columns(grouping, tuples) | {PANE: pa.array(panes)}
    keys, edges = [*grouping.places, PANE], [PANE]
    if isinstance(grouping.panes, Sessions):
        # Two tuples in one stretch as long as a gap are always in one session.
        stretches = pa.array(times // grouping.panes.gap_us)
        columns |= {BEGINNING: pa.array(times), "stretch": stretches}
        keys = [*grouping.places, "stretch"]
        edges = [f"min({BEGINNING}) as {BEGINNING}", f"max({PANE}) as {PANE}"]
    sums = list[str]()
    for number, aggregate in enumerate(grouping.aggregates):
        sums.append(f"{_first_added(aggregate)} as p{number}")
        if aggregate.counts_values:
            sums.append(f"{_number_of_values(aggregate)} as n{number}")
        if aggregate.counts_endless:
            sums += [f"{_number_of(aggregate, part)} as {part}{number}" for part in ENDLESS_VALUES]
    selected = ", ".join([*grouping.places, *edges, *sums])
    sql = f"select {selected} from parts group by {', '.join(keys)}"
    return with_bins(grouping, query_parts(sql, pa.table(columns), of=grouping), "p")


def _first_added(aggregate: Aggregate) -> str:
    """SQL of an aggregate of tuples."""
    value = "*" if aggregate.sql is None else aggregate.sql
    if aggregate.function is AggregateFunction.COUNT:
        return _number_of_values(aggregate)
    if aggregate.function is AggregateFunction.HISTOGRAM:
        return gathered(value)
    if aggregate.function not in (AggregateFunction.SUM, AggregateFunction.MEAN):
        return f"{aggregate.function}({value})"
    if aggregate.weight:
        wide = {"DOUBLE": "double", "DECIMAL(38,0)": "hugeint"}.get(aggregate.sums)
        value = f"({value})" if wide is None else f"cast({value} as {wide})"
        whole = f"{value} * {aggregate.weight}"
        if aggregate.counts_endless:
            whole = f"case when isfinite({value}) then {whole} when {value} is not null then 0 end"
        value = whole
    return f"cast(sum({value}) as {aggregate.sums})"


def _number_of_values(aggregate: Aggregate) -> str:
    """SQL of how many tuples have a value."""
    if not aggregate.weight:
        return f"count({'*' if aggregate.sql is None else aggregate.sql})"
    known = "" if aggregate.sql is None else f" filter (({aggregate.sql}) is not null)"
    return f"cast(coalesce(sum({aggregate.weight}){known}, 0) as bigint)"


def _number_of(aggregate: Aggregate, part: str) -> str:
    """SQL of how many tuples have the infinity or NaN that `part` counts."""
    same = f"cast({aggregate.sql} as double) = {_ENDLESS[part]}"
    return f"cast(coalesce(sum({aggregate.weight}) filter ({same}), 0) as bigint)"


def evaluated_columns(grouping: Grouping, tuples: pa.RecordBatch) -> dict[str, pa.Array]:
    """The groups and the inputs of expressions, by their places, in types that SQL computes in."""
    groups = zip(grouping.places, map(tuples.column, grouping.groups), strict=True)
    inputs = zip(grouping.inputs, map(tuples.column, grouping.columns), strict=True)
    return dict(groups) | {
        name: column.cast(evaluated_type(column.type)) for name, column in inputs
    }


def add_parts(grouping: Grouping, parts: pa.Table) -> pa.Table:
    """Partial results -> fewer of them: one for each group and pane."""
    keys = [*grouping.places, *grouping.edges]
    sql = f"select {_sums(grouping, keys)} from {_parts(grouping)} group by {', '.join(keys)}"
    return with_bins(grouping, query_parts(sql, parts, of=grouping), "p")


def due_sessions(grouping: Grouping, parts: pa.Table, until: int) -> pa.Table:
    """Partial results -> one row for each session that has a part which ends by `until`.

    A row has the edges of its session as far as `parts` know it. A session that ends after `until`
    has other parts, too.
    """
    groups = grouping.places
    same = (
        " and ".join(f"parts.{group} is not distinct from due.{group}" for group in groups)
        or "true"
    )
    due = f"select {', '.join([*groups, PANE])} from parts where {PANE} <= {until}"
    near = f"(select * from parts semi join ({due}) due on {same})"
    keys = [*groups, *grouping.edges]
    whole = f"(select *, {PANE} as own_end from {near})"
    whole = _parts(grouping, whole)
    sql = f"select {_sums(grouping, keys)} from {whole} where own_end <= {until}"
    sums = query_parts(f"{sql} group by {', '.join(keys)}", parts, of=grouping)
    return with_bins(grouping, sums, "p")


def _sums(grouping: Grouping, keys: Sequence[str]) -> str:
    """SQL for the columns of partial results that are added up from others."""
    fields = partial_fields(grouping.aggregates)
    return ", ".join([*keys, *(f"{_added(grouping, name, how)} as {name}" for name, how in fields)])


def _parts(grouping: Grouping, source: str = "parts") -> str:
    """SQL for rows with panes; pieces of sessions get the edges of all that overlap with them.

    A row begins a session if all rows of its group that begin earlier have ended before it does.
    (Rows that begin together are in one session, and peers in the order of a window of SQL.)
    """
    if not isinstance(grouping.panes, Sessions):
        return source
    by = ", ".join(grouping.places)
    rows = f"partition by {by} order by {BEGINNING}" if by else f"order by {BEGINNING}"
    ended = f"max({PANE}) over ({rows} rows between unbounded preceding and 1 preceding)"
    pieces = f"select *, coalesce({BEGINNING} > {ended}, true) as begins from {source}"
    first = f"max({BEGINNING}) filter (where begins) over ({rows})"
    pieces = f"select * replace ({first} as {BEGINNING}) from ({pieces})"
    last = f"max({PANE}) over (partition by {', '.join([*grouping.places, BEGINNING])})"
    return f"(select * replace ({last} as {PANE}) from ({pieces}))"


def finish(
    grouping: Grouping,
    parts: pa.Table,
    window: tuple[int, int] | tuple[str, str],
    schema: pa.Schema,
) -> pa.Table:
    """The partial results of one window -> its results; if `top` is given, only the top ones.

    `window`: its edges, or the columns with the edges of several.
    """
    groups = grouping.places
    columns = list(groups)
    how = dict(partial_fields(grouping.aggregates))
    for number, aggregate in enumerate(grouping.shown):
        added = _added(grouping, f"p{number}", how[f"p{number}"])
        if aggregate.counts_endless:
            plus, minus, none = (f"sum({part}{number}) <> 0" for part in ENDLESS_VALUES)
            added = (
                f"case when {none} or ({plus} and {minus}) then {_ENDLESS['u']} "
                f"when {plus} then {_ENDLESS['i']} when {minus} then {_ENDLESS['j']} "
                f"else {added} end"
            )
        if aggregate.function is AggregateFunction.MEAN:
            added = f"cast({added} as double) / sum(n{number})"
        elif _is_whole(aggregate):
            added = f"cast({added} as bigint)"
        if aggregate.counts_values:  # a sum whose values have all gone is NULL
            added = f"case when sum(n{number}) <> 0 then {added} end"
        columns.append(f"{added} as a{number}")
    columns += [f"cast({edge} as bigint) as w{place}" for place, edge in enumerate(window)]
    keys = [*groups, *(edge for edge in window if isinstance(edge, str))]
    by = f" group by {', '.join(keys)}" if keys else ""
    if grouping.is_net:
        by += f" having sum(p{len(grouping.shown)}) <> 0"
    finished = query_parts(f"select {', '.join(columns)} from parts{by}", parts, of=grouping)
    finished = with_bins(grouping, finished, "a")
    finished = finished.rename_columns(schema.names).cast(schema)
    return finished if grouping.top is None else greatest(grouping, finished)


def _is_whole(aggregate: Aggregate) -> bool:
    """Whether the result is a sum or a count of whole numbers."""
    return aggregate.kind == pa.int64() and aggregate.function in _WHOLE


def greatest(grouping: Grouping, results: pa.Table) -> pa.Table:
    """The k groups of each window with the greatest values; of equal values the least first."""
    top = grouping.top
    assert top is not None
    if len(results) <= top.k:  # as often at an instance of many
        return results
    names = results.schema.names
    plain = {name: f"r{place}" for place, name in enumerate(names)}
    groups = [f"{plain[name]} nulls last" for name in grouping.groups]
    order = ", ".join([f"{plain[top.by]} desc nulls last", *groups])
    rank = f"row_number() over (partition by {plain[WINDOW_END]} order by {order})"
    parts = results.rename_columns(list(plain.values()))
    kept = query_parts(f"select * from parts qualify {rank} <= {top.k}", parts)
    return kept.rename_columns(names).cast(results.schema)


def _added(grouping: Grouping, name: str, how: AggregateFunction) -> str:
    """A sum of parts, in the type of the parts; of histograms, the bins of all."""
    if how is AggregateFunction.HISTOGRAM:
        return f"flatten(list({name}) filter (where {name} is not null))"
    if how is not AggregateFunction.SUM:
        return f"{how}({name})"
    sums = grouping.aggregates[int(name[1:])].sums if name[0] == "p" else ""
    return f"cast(sum({name}) as {sums or 'bigint'})"


def query_parts(sql: str, parts: Any, zone: str = "UTC", *, of: Grouping | None = None) -> pa.Table:
    """The result of a query over the table `parts`; `of`: whose sums it computes, in its zone.

    Raises JoinEngineError if values overflow.
    """
    try:
        with over("parts", parts, zone if of is None else of.zone) as database:
            return database.sql(sql).to_arrow_table()
    except duckdb.Error as error:
        reason = reason_of(error)
        sums = () if of is None else of.shown
        whole = [shown.name for shown in sums if _is_whole(shown)]
        exact = [s.name for s in sums if s.sums.startswith("DECIMAL") and s.name not in whole]
        if whole and "INT64" in reason:
            raise JoinEngineError(
                f"aggregates: {' or '.join(whole)} is more than 64 bits hold; sum it as double, or "
                f"as decimal(38, 0): {reason}"
            ) from None
        if exact and "SUM of DECIMAL" in reason:
            raise JoinEngineError(
                f"aggregates: the sum of {' or '.join(exact)} has more than 38 digits; cast what "
                f"it adds to double, or to a decimal with fewer digits after the point"
            ) from None
        raise JoinEngineError(f"aggregates: {reason}") from None
