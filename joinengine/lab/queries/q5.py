"""Q5: TPC-H query 5 as a continuous query: revenue by nation, over a sliding window.

    SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, window_start, window_end
    FROM customer, orders, lineitem, supplier, nation, region, window
    WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
      AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
      AND r_name = 'ASIA' AND o_ts AND l_ts in window
    GROUP BY n_name, window

orders and lineitem are streams with skewed foreign keys, the others are tables. The original query
takes the orders of a year; this one takes those of the window, and has a result for each slide. The
joins with tables come first, so that only lineitems of Asian suppliers reach the stream join.
Source: TPC-H, query 5; as a stream with Zipf 0.8 and a change of the hot keys every quarter: Fang
et al., 2016 (arXiv 1610.05121), figure 16.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamAggregate, StreamJoin, equi, sliding
from joinengine.lab.queries.named_query import MERGING, Options, Query
from joinengine.lab.queries.reach import reachable_table
from joinengine.lab.queries.table_streams import recorded_table, table_stream
from joinengine.lab.tpch.generate import tables
from joinengine.lab.tpch.stream import RecordedStream, StreamSpec, in_quotes

REGION = "ASIA"
HOUR_US = 3_600_000_000
WINDOW_US = 300_000_000
#: A window of five minutes starts every minute.
SLIDE_PART = 5
#: How often the hot keys change, unless `--shift-every` says otherwise.
QUARTERS = 4
TABLES = ("customer", "supplier", "nation", "region")
ORDERS = ("o_orderkey", "o_custkey", "o_ts")
ITEMS = ("l_orderkey", "l_suppkey", "l_extendedprice", "l_discount", "l_ts")


class Q5(Query):
    """Revenue of orders and lineitem, by nation."""

    name = "q5"
    summary = "TPC-H Q5 as a stream: revenue by nation over a sliding window, tables on the side"
    source = "TPC-H Q5; Fang et al., 2016 (arXiv 1610.05121), figure 16"
    aggregates = True
    own = MERGING

    @override
    def stream(self, options: Options) -> StreamSpec:
        """The two large tables; an hour of event time unless the options say otherwise."""
        span = options.span(HOUR_US)
        shift = span // QUARTERS if options.shift_us is None else options.shift_us
        streams = ("orders", "lineitem")
        return options.stream(streams, facts=streams, span_us=span, shift_us=shift)

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamAggregate:
        """Joins of both streams with tables, the join of the streams, and the aggregation."""
        orders, items = (
            table_stream(spark, recorded, name).select(list(kept))
            for name, kept in (("orders", ORDERS), ("lineitem", ITEMS))
        )
        paths = tables(options.scale, TABLES)
        customer, supplier, nation, region = (
            recorded_table(spark, reachable_table(recorded, paths[name])) for name in TABLES
        )
        customer = customer.select(["c_custkey", "c_nationkey"])
        supplier = supplier.select(["s_suppkey", "s_nationkey"])
        nation = nation.select(["n_nationkey", "n_name", "n_regionkey"])
        region = region.select(["r_regionkey", "r_name"])
        bought = StreamJoin(orders, customer, on=equi("o_custkey", "c_custkey"), **options.placing)
        sold = StreamJoin(items, supplier, on=equi("l_suppkey", "s_suppkey"), **options.placing)
        sold = StreamJoin(sold, nation, on=equi("s_nationkey", "n_nationkey"), **options.placing)
        sold = StreamJoin(
            sold,
            region,
            on=equi("n_regionkey", "r_regionkey"),
            right_where=f"r_name = '{REGION}'",
            **options.placing,
        )
        size, slide = _window(options)
        both = StreamJoin(
            bought,
            sold,
            on=equi(["o_orderkey", "c_nationkey"], ["l_orderkey", "s_nationkey"]),
            within=sliding("o_ts", "l_ts", f"{size} us", f"{slide} us", delay=options.delay),
            **options.placing,
        )
        return StreamAggregate(
            both,
            by="n_name",
            aggregates={"revenue": "sum(l_extendedprice * (1 - l_discount))"},
            aggregators=options.aggregators,
            merge_every=options.merge_every or 1,
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        """SQL over each row of the streams once for each window that holds it."""
        size, slide = _window(options)
        paths = tables(options.scale, TABLES)
        customer, supplier, nation, region = (in_quotes(paths[name]) for name in TABLES)
        orders, items = (
            f"(select *, unnest(generate_series((epoch_us({time}) - {size}) // {slide} + 1, "
            f"epoch_us({time}) // {slide})) as k from '{recorded.files(name)}')"
            for name, time in (("orders", "o_ts"), ("lineitem", "l_ts"))
        )
        return (
            f"select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue, "
            f"make_timestamptz(o.k * {slide}) as window_start, "
            f"make_timestamptz(o.k * {slide} + {size}) as window_end "
            f"from {orders} o join {items} l on o_orderkey = l_orderkey and o.k = l.k "
            f"join '{customer}' on o_custkey = c_custkey "
            f"join '{supplier}' on l_suppkey = s_suppkey and c_nationkey = s_nationkey "
            f"join '{nation}' on s_nationkey = n_nationkey "
            f"join '{region}' on n_regionkey = r_regionkey "
            f"where r_name = '{REGION}' group by n_name, o.k"
        )


def _window(options: Options) -> tuple[int, int]:
    size = max(options.window(WINDOW_US), SLIDE_PART)
    return size, size // SLIDE_PART
