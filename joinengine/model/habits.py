"""Attributes that users of DataFrames expect on our objects, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping

_SCHEMA = "read .schema"
#: On streams that joinengine reads itself.
STREAM = {
    "filter": "write .where('a > 3')",
    "drop": "name the columns to keep with .select(..)",
    "columns": _SCHEMA,
    "printSchema": _SCHEMA,
    "withColumnRenamed": "write .withColumn(new, old) and .select(..)",
    "join": "write StreamJoin(left, right, on=..)",
    "groupBy": "write StreamAggregate(stream, by=.., aggregates=..)",
    "writeStream": "for a query, write StreamJoin or StreamAggregate; for a DataFrame, .to_df()",
    "show": "results of a stream are never complete; for a DataFrame, use .to_df()",
}
#: On joins, aggregations and operators.
QUERY = {
    "filter": "write .where('a > 3')",
    "drop": "name the columns to keep with .select(..)",
    "withColumnRenamed": "write .select({'new': 'old', ..})",
    "columns": _SCHEMA,
    "printSchema": _SCHEMA,
    "join": "pass it to another StreamJoin as a side",
    "groupBy": "write StreamAggregate(join, by=.., aggregates=..)",
    "write": "results of a stream are never complete: use .writeStream",
    "show": "results of a stream are never complete: use .writeStream.format('console')",
    "start": "name the sink first: .writeStream.format(..).start()",
    "awaitTermination": "start the query first: .writeStream.format(..).start()",
}


def not_there(thing: object, name: str, instead: Mapping[str, str]) -> AttributeError:
    """The error for an attribute that `thing` lacks, with what to write instead if that is known.

    >>> print(not_there(object(), "columns", STREAM))
    'object' object has no attribute 'columns': read .schema
    """
    advice = f": {instead[name]}" if name in instead else ""
    return AttributeError(f"{type(thing).__name__!r} object has no attribute {name!r}{advice}")
