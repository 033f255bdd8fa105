"""Latest: each line item with the newest price of its supplier.

    SELECT * FROM lineitem L LEFT JOIN (newest row of each supplier in partsupp) P
    ON L.suppkey = P.suppkey

A row of partsupp is a version of its supplier's price, and the one with the greatest event time is
the newest. All versions are loaded before the first line item, as is a table that changes slowly.
Source: the tables are of TPC-H; the query is ours.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamJoin, equi, latest
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.stream import RecordedStream, StreamSpec
from joinengine.model.errors import InvalidRequest


class LatestPrices(Query):
    """lineitem with the newest row of partsupp."""

    name = "latest"
    summary = "line items with the newest price of their supplier, of a table that changes"
    source = "ours, over TPC-H"

    @override
    def stream(self, options: Options) -> StreamSpec:
        """Both tables are large."""
        if options.window_us is not None:
            raise InvalidRequest("window: latest has none; leave out --window, or run asof")
        return options.stream(("lineitem", "partsupp"), facts=("lineitem", "partsupp"))

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        lines, prices = (table_stream(spark, recorded, t) for t in ("lineitem", "partsupp"))
        return StreamJoin(
            lines,
            latest(prices, key="ps_suppkey", order_by="ps_ts"),
            on=equi("l_suppkey", "ps_suppkey"),
            how="left",
            layout=options.layout,
            instances=options.instances,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        lines, prices = (recorded.files(table) for table in ("lineitem", "partsupp"))
        return (
            f"select l.*, p.* from '{lines}' l left join (from '{prices}' qualify row_number() "
            f"over (partition by ps_suppkey order by ps_ts desc) = 1) p on l_suppkey = ps_suppkey"
        )
