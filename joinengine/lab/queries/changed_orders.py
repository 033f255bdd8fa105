"""Orders with their customers, while both change: a join of changelogs, over the full history.

    SELECT * FROM orders O JOIN customer C ON O.custkey = C.custkey

over what is there in the end. Orders and customers are inserted; some are updated, and some are
deleted. The customers of orders are skewed, so an update of a popular customer takes back, and
makes again, many results.
Source: the tables are of TPC-H; the changes are ours.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamJoin, equi
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.changelog import ChangelogSpec
from joinengine.lab.tpch.stream import RecordedStream
from joinengine.model.errors import InvalidRequest
from joinengine.model.query import CHANGE

TABLES = ("orders", "customer")
_UPDATES = {"orders": "o_shippriority", "customer": "c_acctbal"}
_LEFT_OUT = frozenset(["o_clerk", "o_comment", "c_address", "c_phone", "c_comment"])


class ChangedOrders(Query):
    """The changelogs of orders and customers."""

    name = "changes"
    summary = "orders with their customers, of which both are inserted, updated and deleted"
    source = "ours, over TPC-H"

    @override
    def stream(self, options: Options) -> ChangelogSpec:
        """Both tables. Raises InvalidRequest for a window."""
        if options.window_us is not None:
            raise InvalidRequest("window: changes joins all that is there; leave --window out")
        return ChangelogSpec(options.stream(TABLES, facts=("orders",)), _UPDATES, _LEFT_OUT)

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        orders, customers = (table_stream(spark, recorded, table) for table in TABLES)
        return StreamJoin(
            orders, customers, on=equi("o_custkey", "c_custkey"), changes=CHANGE, **options.placing
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        orders, customers = (
            f"(select * exclude {CHANGE} from '{recorded.files(table)}' "
            f"group by all having sum({CHANGE}) = 1)"
            for table in TABLES
        )
        return f"select *, 1 as {CHANGE} from {orders} join {customers} on o_custkey = c_custkey"
