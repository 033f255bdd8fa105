"""Running aggregates: for each tuple of a group, the last tuples up to it, added up by DuckDB.

Tuples are ordered by time, then by the columns that the aggregates use (NULL last). The order of
tuples that agree in all of these changes no result.

Law: the result of a tuple depends only on `Last.rows` tuples: itself and those just before it.
Cost: one sort of the tuples, and one step of a window of SQL for each.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.model.aggregation import Aggregate, AggregateFunction, Grouping, Last
from joinengine.model.windows import Times
from joinengine.predicates.grouping import evaluated_columns, query_parts
from joinengine.predicates.histograms import gathered, with_bins


def add_up_last(
    grouping: Grouping,
    tuples: pa.RecordBatch,
    times: Times,
    due: NDArray[np.bool_],
    schema: pa.Schema,
) -> pa.Table:
    """(n,) tuples, their times, and which are due -> the results of the due tuples."""
    assert isinstance(grouping.panes, Last)
    columns = [*grouping.places]
    columns += [
        f"{_over_window(aggregate)} as a{i}" for i, aggregate in enumerate(grouping.aggregates)
    ]
    columns += ["min(t) over w", "t"]
    frame = f"rows between {grouping.panes.rows - 1} preceding and current row"
    window = f"w as ({_in_order(grouping, '')} {frame})"
    sql = f"select {', '.join(columns)} from parts window {window} qualify due"
    sums = query_parts(sql, _table(grouping, tuples, times, due), of=grouping)
    sums = with_bins(grouping, sums, "a")
    return sums.rename_columns(schema.names).cast(schema)


def rank_from_last(
    grouping: Grouping, tuples: pa.RecordBatch, times: Times, apart: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(n,) tuples -> the rank of each in its group, 1 for the last; `apart` are ranked apart."""
    rank = f"row_number() over ({_in_order(grouping, ' desc nulls first', 'due')})"
    sql = f"select place from (select {rank} as place, number from parts) order by number"
    table = _table(grouping, tuples, times, apart)
    table = table.append_column("number", pa.array(np.arange(len(times))))
    return np.asarray(query_parts(sql, table, grouping.zone).column("place"))


def _table(
    grouping: Grouping, tuples: pa.RecordBatch, times: Times, due: NDArray[np.bool_]
) -> pa.Table:
    columns = evaluated_columns(grouping, tuples)
    return pa.table({**columns, "t": pa.array(times), "due": pa.array(due)})


def _in_order(grouping: Grouping, way: str, *groups: str) -> str:
    """SQL for the order within a group; `way`: its direction; `groups`: columns that come first."""
    by = ", ".join([*grouping.places, *groups])
    order = ", ".join(f"{column}{way}" for column in ("t", *grouping.inputs))
    return f"partition by {by} order by {order}" if by else f"order by {order}"


def _over_window(aggregate: Aggregate) -> str:
    """SQL for an aggregate over the window w, in the type of its result."""
    value = "*" if aggregate.sql is None else aggregate.sql
    if aggregate.function is AggregateFunction.HISTOGRAM:
        return f"{gathered(value)} over w"
    if aggregate.function not in (AggregateFunction.SUM, AggregateFunction.MEAN):
        return f"{aggregate.function}({value}) over w"
    added = f"cast(sum({value}) over w as {aggregate.sums})"
    if aggregate.function is AggregateFunction.MEAN:
        return f"cast({added} as double) / count({value}) over w"
    return f"cast({added} as bigint)" if aggregate.kind == pa.int64() else added
