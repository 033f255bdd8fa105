"""Nexmark q9, join part: the bids of each auction that came while it was open.

    SELECT * FROM auction A JOIN bid B
    ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires

Query 9 then takes the greatest bid of each auction (the earlier one of two), which is *left out*:
in a stream, later bids would take such a result back, and this join takes no result back. Each pair
of the join is a result here. Query 4 has the same join, and then a maximum and an average.

The window is the longest that any auction may be open; each auction's own end is a condition on the
pair.
Source: nexmark/nexmark, queries 9 and 4.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamJoin, equi, within
from joinengine.lab.queries.named_query import Options
from joinengine.lab.queries.nexmark_query import AUCTION, Nexmark, listed
from joinengine.lab.tpch.stream import RecordedStream

_BID = "auction bidder price dateTime extra"


class NexmarkQ9Join(Nexmark):
    """auction join bid on the auction, while it is open."""

    name = "nexmark-q9-join"
    summary = "auctions joined with the bids that came while they were open; q9 without its top-1"
    source = "Nexmark, join part of query 9; generated"
    tables = ("auction", "bid")
    has_lasting_keys = False

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        longest_us = self.stream(options).house().longest_us()
        return StreamJoin(
            self.columns(spark, recorded, "auction", AUCTION),
            self.columns(spark, recorded, "bid", _BID),
            on=equi("id", "auction"),
            where="right.dateTime <= left.expires",
            within=within(
                "dateTime", "dateTime", lower="0 s", upper=f"{longest_us} us", delay=options.delay
            ),
            suffixes=("_auction", "_bid"),
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        return (
            f"select {listed(a=AUCTION, b=_BID)} from '{recorded.files('auction')}' a "
            f"join '{recorded.files('bid')}' b "
            f"on a.id = b.auction and b.dateTime between a.dateTime and a.expires"
        )
