"""Nexmark q23: each bid with its bidder, and with all auctions that this person sells.

    SELECT bidder, price, channel, url, B.extra, P.id, name, emailAddress, creditCard, city, state,
           P.extra, itemName, description, initialBid, reserve, A.dateTime, expires, seller,
           category, A.extra
    FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder

Two joins on one key, which become one operator, over the full history. Nothing is left out.
Source: nexmark/nexmark, query 23.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamJoin, equi
from joinengine.lab.queries.named_query import Options
from joinengine.lab.queries.nexmark_query import Nexmark, listed
from joinengine.lab.tpch.stream import RecordedStream

_BID = "bidder price channel url extra"
_PERSON = "id name emailAddress creditCard city state extra"
_AUCTION = "itemName description initialBid reserve dateTime expires seller category extra"


class NexmarkQ23(Nexmark):
    """bid join person join auction, all on the bidder."""

    name = "nexmark-q23"
    summary = "bids joined with their bidders, and with the auctions that these sell, on one key"
    source = "Nexmark, query 23; generated"
    tables = ("bid", "person", "auction")

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        """A left-deep chain."""
        bids_of_persons = StreamJoin(
            self.columns(spark, recorded, "bid", _BID),
            self.columns(spark, recorded, "person", _PERSON),
            on=equi("bidder", "id"),
            suffixes=("_bid", "_person"),
            **options.placing,
        )
        return StreamJoin(
            bids_of_persons,
            self.columns(spark, recorded, "auction", _AUCTION),
            on=equi("bidder", "seller"),
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        bids, persons, auctions = (recorded.files(table) for table in self.tables)
        return (
            f"select {listed(b=_BID, p=_PERSON, a=_AUCTION)} from '{bids}' b "
            f"join '{persons}' p on p.id = b.bidder join '{auctions}' a on a.seller = b.bidder"
        )
