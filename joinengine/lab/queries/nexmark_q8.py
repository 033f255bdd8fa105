"""Nexmark q8: persons who came and opened an auction in the same window of ten seconds.

    SELECT P.id, P.name, P.window_start
    FROM (SELECT DISTINCT id, name, window_start FROM person, window) P
    JOIN (SELECT DISTINCT seller, window_start FROM auction, window) A
    ON P.id = A.seller AND P.window_start = A.window_start

A person comes once, so the first DISTINCT removes nothing, and the join with the distinct sellers
is a left semi join. Nothing else is left out. The results also have the event time of the person
and the end of the window. `--window` is the length of the windows.
Source: nexmark/nexmark, query 8.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamJoin, equi, tumbling
from joinengine.lab.queries.named_query import Options
from joinengine.lab.queries.nexmark_query import Nexmark
from joinengine.lab.tpch.stream import RecordedStream

WINDOW_US = 10_000_000


class NexmarkQ8(Nexmark):
    """person left semi join auction on the seller, in a tumbling window."""

    name = "nexmark-q8"
    summary = "new persons who opened an auction in the same tumbling window, a left semi join"
    source = "Nexmark, query 8; generated"
    tables = ("person", "auction")
    has_lasting_keys = False
    has_window = True

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        size = f"{options.window(WINDOW_US)} us"
        return StreamJoin(
            self.columns(spark, recorded, "person", "id name dateTime"),
            self.columns(spark, recorded, "auction", "seller dateTime"),
            on=equi("id", "seller"),
            within=tumbling("dateTime", "dateTime", size, delay=options.delay),
            how="left_semi",
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        size = options.window(WINDOW_US)
        persons, auctions = (
            f"(select *, epoch_us(dateTime) // {size} as k from '{recorded.files(table)}')"
            for table in self.tables
        )
        return (
            f"select id, name, dateTime, make_timestamptz(k * {size}) as window_start, "
            f"make_timestamptz((k + 1) * {size}) as window_end from {persons} p "
            f"semi join {auctions} a on p.id = a.seller and p.k = a.k"
        )
