"""Nexmark q20: each bid with its auction, for one category, over the full history.

    SELECT auction, bidder, price, channel, url, B.dateTime, B.extra, itemName, description,
           initialBid, reserve, A.dateTime, expires, seller, category, A.extra
    FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10

Nothing is left out. The results also have the id of the auction, which is the key.
Source: nexmark/nexmark, query 20.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamJoin, equi
from joinengine.lab.queries.named_query import Options
from joinengine.lab.queries.nexmark_query import AUCTION, CATEGORY, Nexmark, listed
from joinengine.lab.tpch.stream import RecordedStream

_BID = "auction bidder price channel url dateTime extra"
_CHOSEN = f"category = {CATEGORY}"


class NexmarkQ20(Nexmark):
    """bid join auction."""

    name = "nexmark-q20"
    summary = "bids joined with their auctions of one category, full history"
    source = "Nexmark, query 20; generated"
    tables = ("bid", "auction")

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        return StreamJoin(
            self.columns(spark, recorded, "bid", _BID),
            self.columns(spark, recorded, "auction", AUCTION),
            on=equi("auction", "id"),
            right_where=_CHOSEN,
            suffixes=("_bid", "_auction"),
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        return (
            f"select {listed(b=_BID, a=AUCTION)} from '{recorded.files('bid')}' b "
            f"join '{recorded.files('auction')}' a on b.auction = a.id where {_CHOSEN}"
        )
