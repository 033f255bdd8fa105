"""B_NCI: a band self-join of lineitem, selective on both sides.

    SELECT * FROM lineitem L1, lineitem L2
    WHERE |L1.orderkey - L2.orderkey| <= 1
      AND L1.shipmode = 'TRUCK' AND L2.shipinstruct = 'NONE' AND L2.quantity > 48

The stream is read once; the predicates on one side are evaluated before a tuple enters the join.
With a window, the two tuples are at most a window apart in time.
Source: Fang et al., JOS 2017, section 5.1.3.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamJoin, band
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.stream import RecordedStream, StreamSpec

COLUMNS = (
    *("l_orderkey", "l_linenumber", "l_partkey", "l_suppkey", "l_quantity", "l_extendedprice"),
    *("l_shipinstruct", "l_shipmode", "l_ts"),
)
LEFT_WHERE = "l_shipmode = 'TRUCK'"
RIGHT_WHERE = "l_shipinstruct = 'NONE' and l_quantity > 48"


class Bnci(Query):
    """The self-join of lineitem."""

    name = "bnci"
    summary = (
        "lineitem joined with itself on a band of order keys: |L1.orderkey - L2.orderkey| <= 1"
    )
    source = "Fang et al., JOS 2017, section 5.1.3"

    @override
    def stream(self, options: Options) -> StreamSpec:
        return options.stream(("lineitem",), facts=("lineitem",))

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        """A self-join: the same stream on both sides."""
        items = table_stream(spark, recorded, "lineitem").select(list(COLUMNS))
        return StreamJoin(
            items,
            items,
            on=band("l_orderkey", "l_orderkey", lower=-1, upper=1),
            within=options.at_most_apart("l_ts", "l_ts"),
            left_where=LEFT_WHERE,
            right_where=RIGHT_WHERE,
            suffixes=("_1", "_2"),
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        items = recorded.files("lineitem")
        columns = ", ".join(
            f"{side}.{name} as {name}_{number}"
            for number, side in ((1, "a"), (2, "b"))
            for name in COLUMNS
        )
        # Two bounds, which DuckDB's range join uses; with abs() it compares every pair.
        on = "a.l_orderkey between b.l_orderkey - 1 and b.l_orderkey + 1"
        if options.window_us is not None:
            on += f" and abs(epoch_us(b.l_ts) - epoch_us(a.l_ts)) <= {options.window_us}"
        return (
            f"select {columns} from (from '{items}' where {LEFT_WHERE}) a "
            f"join (from '{items}' where {RIGHT_WHERE}) b on {on}"
        )
