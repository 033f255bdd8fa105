"""Line items with a price of their supplier: the last one until then, or the newest of all.

    SELECT * FROM lineitem L ASOF LEFT JOIN partsupp P            -- asof
    ON L.suppkey = P.suppkey AND L.ts >= P.ts

    SELECT * FROM lineitem L LEFT JOIN (newest row of each supplier in partsupp) P   -- latest
    ON L.suppkey = P.suppkey

A row of partsupp is a version of its supplier's price from its event time on. The keys of line
items are skewed, so those of a popular supplier are hot. Under `asof` with a window, a price that
is older counts for nothing. Under `latest` all versions are loaded before the first line item. Two
versions of one supplier at the same microsecond are a tie, which DuckDB decides at will; without
disorder there is none.
Source: the tables are of TPC-H; the queries are ours.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamJoin, asof, equi, latest
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.stream import RecordedStream, StreamSpec
from joinengine.model.errors import InvalidRequest

TABLES = ("lineitem", "partsupp")
_BY = equi("l_suppkey", "ps_suppkey")


class _Prices(Query):
    """lineitem beside partsupp, of which both are large."""

    source = "ours, over TPC-H"

    @override
    def stream(self, options: Options) -> StreamSpec:
        return options.stream(TABLES, facts=TABLES)

    def _joined(self, lines: Any, prices: Any, on: Any, options: Options) -> StreamJoin:
        return StreamJoin(lines, prices, on=on, how="left", **options.placing)


class AsOfPrices(_Prices):
    """lineitem with the nearest earlier row of partsupp."""

    name = "asof"
    summary = "line items with the last price that their supplier has changed: an as-of join"

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        lines, prices = (table_stream(spark, recorded, table) for table in TABLES)
        tolerance = None if options.window_us is None else f"{options.window_us} us"
        on = asof("l_ts", "ps_ts", by=_BY, tolerance=tolerance, delay=options.delay)
        return self._joined(lines, prices, on, options)

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        lines, prices = (recorded.files(table) for table in TABLES)
        near = "true"
        if options.window_us is not None:
            near = f"epoch_us(l_ts) - epoch_us(ps_ts) <= {options.window_us}"
        shown = ", ".join(
            f"case when {near} then {name} end as {name}"
            for name in recorded.schema("partsupp").names
        )
        return (
            f"select l.*, {shown} from '{lines}' l asof left join '{prices}' p "
            f"on l_suppkey = ps_suppkey and l_ts >= ps_ts"
        )


class LatestPrices(_Prices):
    """lineitem with the newest row of partsupp."""

    name = "latest"
    summary = "line items with the newest price of their supplier, of a table that changes"

    @override
    def stream(self, options: Options) -> StreamSpec:
        if options.window_us is not None:
            raise InvalidRequest("window: latest has none; leave out --window, or run asof")
        return super().stream(options)

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        lines, prices = (table_stream(spark, recorded, table) for table in TABLES)
        newest = latest(prices, key="ps_suppkey", order_by="ps_ts")
        return self._joined(lines, newest, _BY, options)

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        lines, prices = (recorded.files(table) for table in TABLES)
        return (
            f"select l.*, p.* from '{lines}' l left join (from '{prices}' qualify row_number() "
            f"over (partition by ps_suppkey order by ps_ts desc) = 1) p on l_suppkey = ps_suppkey"
        )
