"""Streams for tests of SQL that need no Spark: columns in folders that nobody reads."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa

from joinengine import StreamJoin, equi, within
from joinengine.driver.account import account_of
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream

TS = pa.timestamp("us", "UTC")
FACTS = {
    **{"id": pa.int64(), "k": pa.int64(), "j": pa.int32(), "x": pa.float64(), "d": pa.date32()},
    **{"s": pa.string(), "ts": TS, "m": pa.decimal128(9, 2)},
}
WORDS = {
    **{"wid": pa.int64(), "k": pa.int64(), "l": pa.int32(), "y": pa.float64(), "e": pa.date32()},
    **{"t": pa.string(), "at": TS, "until": TS, "n": pa.decimal128(9, 2)},
}
THIRD = {"tid": pa.int64(), "k": pa.int64(), "z": pa.int64(), "seen": TS}

HOUR, ZERO = timedelta(hours=1), timedelta()
LATE = "10 s"
BOTH = "select id, wid from f join w on f.k = w.k"
NEAR = "f.k = w.k and w.at between f.ts - interval 1 hour and f.ts"


def stream_of(folder, columns):
    feed = {"kind": "folder", "path": folder, "rows_per_interval": 1}
    return Stream(None, feed, Reading(pa.schema(columns), root=folder), {})


def streams():
    return {
        "f": stream_of("/facts", FACTS),
        "w": stream_of("/words", WORDS),
        "t": stream_of("/third", THIRD),
    }


S = streams()


def plan_of(query):
    """Everything that defines a query: its text, its account, and its columns with their types."""
    return query.explain(), account_of(query.query()), query._output_schema()


def select(stream, text):
    return stream.select(text.split())


def join(left, right, **arguments):
    return StreamJoin(left, right, instances=4, **arguments)


def keyed(**arguments):
    """Streams f and w joined by k; the results have the ids."""
    arguments = {"on": equi("k", "k"), "select": {"id": "left.id", "wid": "right.wid"}, **arguments}
    f, w = arguments.pop("f", "id k"), arguments.pop("w", "wid k")
    return join(select(S["f"], f), select(S["w"], w), **arguments)


def near(**arguments):
    """As `keyed`, if w came in the hour before f."""
    times = within("ts", "at", lower=-HOUR, upper=ZERO, delay=LATE)
    return keyed(within=times, f="id k ts", w="wid k at", **arguments)
