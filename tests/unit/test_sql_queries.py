"""The queries of the command line, written in SQL, have the plan of their Python form.

Not in SQL: `topk` (the greatest groups of each window), and what is not a join or an aggregate.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from joinengine import sql
from joinengine.lab.queries import QUERIES, Options
from joinengine.lab.queries.q5 import TABLES
from joinengine.lab.queries.table_streams import recorded_table, table_stream
from joinengine.lab.tpch.generate import tables
from joinengine.layouts import choose

MINUTE_US = 60_000_000


class Form(NamedTuple):
    """A query in SQL. `window`: the option `--window`, in microseconds."""

    text: str
    window: int | None = None


EQ5 = """
SELECT * FROM region r
JOIN nation n ON r_regionkey = n_regionkey {0}
JOIN supplier s ON n_nationkey = s_nationkey {1}
JOIN lineitem l ON s_suppkey = l_suppkey {2}
"""
NEAR = "and {0} between greatest({1}) - interval 1 minute and greatest({1}) + interval 1 minute"
TIMES = ("r_ts", "n_ts", "s_ts", "l_ts")
BNCI = (
    *("l_orderkey", "l_linenumber", "l_partkey", "l_suppkey", "l_quantity", "l_extendedprice"),
    *("l_shipinstruct", "l_shipmode", "l_ts"),
)


def renamed(**aliases):
    """Columns under their names with the ending of their side."""
    return ", ".join(
        f"{alias}.{name} as {name}_{end}"
        for alias, (names, end) in aliases.items()
        for name in names
    )


def some(names, clashing, **aliases):
    """Columns, of which those that clash have the ending of their side."""
    return ", ".join(
        f"{alias}.{name} as {name}_{end}" if name in clashing else f"{alias}.{name}"
        for alias, end in aliases.items()
        for name in names[alias].split()
    )


AUCTION = "id itemName description initialBid reserve dateTime expires seller category extra"
BID = "auction bidder price channel url dateTime extra"
FORMS = {
    "eq5": Form(EQ5.format("", "", "")),
    "eq5 in a window": Form(
        EQ5.format(*(NEAR.format(TIMES[n], ", ".join(TIMES[:n])) for n in (1, 2, 3))), MINUTE_US
    ),
    "bnci": Form(
        f"select {renamed(a=(BNCI, 1), b=(BNCI, 2))} from lineitem a join lineitem b "
        "on abs(a.l_orderkey - b.l_orderkey) <= 1 where a.l_shipmode = 'TRUCK' "
        "and b.l_shipinstruct = 'NONE' and b.l_quantity > 48"
    ),
    "q5": Form(
        """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, window_start, window_end
        FROM (orders JOIN customer ON o_custkey = c_custkey)
        JOIN (
            lineitem
            JOIN supplier ON l_suppkey = s_suppkey
            JOIN nation ON s_nationkey = n_nationkey
            JOIN region ON n_regionkey = r_regionkey
        )
        ON o_orderkey = l_orderkey AND c_nationkey = s_nationkey
        AND HOP(o_ts, INTERVAL 1 MINUTE, INTERVAL 5 MINUTES)
          = HOP(l_ts, INTERVAL 1 MINUTE, INTERVAL 5 MINUTES)
        WHERE r_name = 'ASIA'
        GROUP BY n_name, window_start, window_end
        """
    ),
    "nexmark-q3": Form(
        "select a.id as id_auction, seller, category, p.id as id_person, name, city, state "
        "from auction a join person p on a.seller = p.id "
        "where category = 10 and state in ('OR', 'ID', 'CA')"
    ),
    "nexmark-q8": Form(
        "select p.id, p.name, p.dateTime, window_start, window_end from person p "
        "semi join auction a on p.id = a.seller and "
        "tumble(p.dateTime, interval 10 seconds) = tumble(a.dateTime, interval 10 seconds)"
    ),
    "nexmark-q9-join": Form(
        "select "
        + some(
            {"a": AUCTION, "b": "auction bidder price dateTime extra"},
            {"dateTime", "extra"},
            a="auction",
            b="bid",
        )
        + " from auction a join bid b on a.id = b.auction and b.dateTime between a.dateTime and "
        "a.expires and b.dateTime - a.dateTime <= interval {longest} microseconds"
    ),
    "nexmark-q20": Form(
        "select "
        + some({"b": BID, "a": AUCTION}, {"dateTime", "extra"}, b="bid", a="auction")
        + " from bid b join auction a on b.auction = a.id where category = 10"
    ),
    "nexmark-q23": Form(
        "select bidder, price, channel, url, b.extra as extra_bid, p.id, name, emailAddress, "
        "creditCard, city, state, p.extra as extra_person, itemName, description, initialBid, "
        "reserve, a.dateTime, expires, seller, category, a.extra "
        "from bid b join person p on b.bidder = p.id join auction a on b.bidder = a.seller"
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_query_has_the_plan_of_its_python_form(tmp_path_factory, monkeypatch, name):
    home = tmp_path_factory.getbasetemp() / "home"
    monkeypatch.setenv("JOINENGINE_HOME", str(home))
    form, query = FORMS[name], QUERIES[name.split()[0]]
    options = Options(
        scale=0.001,
        rate=500.0 if "nexmark" in name else None,
        instances=4,
        layout=choose("mnrt"),
        window_us=form.window,
    )
    recorded = query.stream(options).record()
    streams = {table: table_stream(None, recorded, table) for table in recorded.rows}
    text = form.text
    if name == "q5":
        paths = tables(options.scale, TABLES)
        streams |= {table: recorded_table(None, str(paths[table])) for table in TABLES}
    if "{longest}" in text:
        text = text.replace("{longest}", str(query.stream(options).house().longest_us()))
    found = sql(text, streams, delay="0 s", layout="mnrt", instances=4)
    python = query.build(None, recorded, options)
    assert found.explain() == python.explain()
    assert found._output_schema() == python._output_schema()
