"""As-of: each line item with the last price that its supplier has changed until then.

    SELECT * FROM lineitem L ASOF LEFT JOIN partsupp P
    ON L.suppkey = P.suppkey AND L.ts >= P.ts

A row of partsupp is a change of a price at its event time. With a window, a change that is older
counts for nothing. The keys of line items are skewed, so a popular supplier's line items are hot.
Two changes of one supplier at the same microsecond are a tie, which DuckDB decides at will; without
disorder there is none.
Source: the tables are of TPC-H; the query is ours.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamJoin, asof, equi
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.stream import RecordedStream, StreamSpec


class AsOfPrices(Query):
    """lineitem with the nearest earlier row of partsupp."""

    name = "asof"
    summary = "line items with the last price that their supplier has changed: an as-of join"
    source = "ours, over TPC-H"

    @override
    def stream(self, options: Options) -> StreamSpec:
        """Both tables are large."""
        return options.stream(("lineitem", "partsupp"), facts=("lineitem", "partsupp"))

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        lines, prices = (table_stream(spark, recorded, t) for t in ("lineitem", "partsupp"))
        return StreamJoin(
            lines,
            prices,
            on=asof(
                "l_ts",
                "ps_ts",
                by=equi("l_suppkey", "ps_suppkey"),
                tolerance=None if options.window_us is None else f"{options.window_us} us",
                delay=f"{options.disorder_us} us",
            ),
            how="left",
            layout=options.layout,
            instances=options.instances,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        lines, prices = (recorded.files(table) for table in ("lineitem", "partsupp"))
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
