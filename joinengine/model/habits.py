"""Attributes that users of DataFrames expect on our objects, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

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
    "count": "results of a stream are never complete; write StreamAggregate(stream, ..)",
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
    "count": "results of a stream are never complete; write StreamAggregate(join, ..)",
    "show": "results of a stream are never complete: use .writeStream.format('console')",
    "start": "name the sink first: .writeStream.format(..).start()",
    "awaitTermination": "start the query first: .writeStream.format(..).start()",
}
#: On writers: what is written before or instead of `start`.
WRITER = {
    "awaitTermination": "start the query first: .start(..)",
    "processAllAvailable": "start the query first: .start(..)",
    "stop": "start the query first: .start(..)",
    "live": "start the query first: .start(..)",
    "save": "write .format(..).start(folder)",
    "parquet": "write .format('parquet').start(folder)",
    "mode": "results are always appended; write .outputMode('append')",
}


class Helped:
    """An attribute that an object lacks is refused with what to write instead, if that is known.

    >>> Helped().columns
    Traceback (most recent call last):
        ...
    AttributeError: 'Helped' object has no attribute 'columns': read .schema
    """

    #: attribute -> what to write instead
    _instead: ClassVar[Mapping[str, str]] = {"columns": _SCHEMA}

    if not TYPE_CHECKING:  # else the type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            advice = f": {self._instead[name]}" if name in self._instead else ""
            kind = type(self).__name__
            raise AttributeError(f"{kind!r} object has no attribute {name!r}{advice}")
