"""EQ5: the equi-joins of TPC-H query 5, without its selections and its aggregate.

    SELECT * FROM region R, nation N, supplier S, lineitem L
    WHERE R.regionkey = N.regionkey AND N.nationkey = S.nationkey AND S.suppkey = L.suppkey

The query is three joins in a chain. With a window, two tuples match if their times are at most a
window apart; the time of a joined row is that of its latest tuple.
Source: Fang et al., JOS 2017, section 5.1.3.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamJoin, equi
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.stream import RecordedStream, StreamSpec

TABLES = ("region", "nation", "supplier", "lineitem")
#: Per join, the key columns: of the rows joined so far, and of the next table.
KEYS = (("r_regionkey", "n_regionkey"), ("n_nationkey", "s_nationkey"), ("s_suppkey", "l_suppkey"))
TIMES = ("r_ts", "n_ts", "s_ts", "l_ts")


class Eq5(Query):
    """region join nation join supplier join lineitem."""

    name = "eq5"
    summary = "region join nation join supplier join lineitem: three equi-joins in a chain"
    source = "Fang et al., JOS 2017, section 5.1.3"

    @override
    def stream(self, options: Options) -> StreamSpec:
        """The four tables; lineitem is the large one."""
        return options.stream(TABLES, facts=("lineitem",))

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        """A left-deep chain."""
        streams = [table_stream(spark, recorded, t) for t in TABLES]
        joined: Any = streams[0]
        for number, (stream, (left, right)) in enumerate(zip(streams[1:], KEYS, strict=True)):
            joined = StreamJoin(
                joined,
                stream,
                on=equi(left, right),
                within=options.at_most_apart(list(TIMES[: number + 1]), TIMES[number + 1]),
                **options.placing,
            )
        assert isinstance(joined, StreamJoin)
        return joined

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        clauses = [f"select * from '{recorded.files(TABLES[0])}'"]
        for number, (table, (left, right)) in enumerate(zip(TABLES[1:], KEYS, strict=True)):
            clause = f"join '{recorded.files(table)}' on {left} = {right}"
            if options.window_us is not None:
                so_far = f"greatest({', '.join(TIMES[: number + 1])})"
                lead = f"epoch_us({TIMES[number + 1]}) - epoch_us({so_far})"
                clause += f" and abs({lead}) <= {options.window_us}"
            clauses.append(clause)
        return "\n".join(clauses)
