"""Shared by the queries of Nexmark: an auction house, and its options.

A query of Nexmark is a join, or contains one, and only that join runs. The head of each file and
docs/nexmark.md say which parts of the published query are left out.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine.lab.nexmark.auction_stream import AuctionSpec
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.arrival import TableOrder
from joinengine.lab.tpch.stream import RecordedStream, check_pace
from joinengine.model.durations import describe
from joinengine.model.errors import InvalidRequest
from joinengine.spark.sources.own_streams import OwnStream

#: Events of all tables at scale 1, and their rate unless the options say otherwise.
EVENTS, RATE = 10_000_000, 10_000.0
#: The category and the states of queries 3 and 20.
CATEGORY = 10
#: The columns of an auction, all of them.
AUCTION = "id itemName description initialBid reserve dateTime expires seller category extra"


class Nexmark(Query):
    """A query of Nexmark over some of its three tables.

    `has_lasting_keys`: whether its hot keys may be those of `--zipf`. `has_window`: whether
    `--window` is the length of its windows.
    """

    tables: tuple[str, ...]
    has_lasting_keys = True
    has_window = False
    zipf = None

    @override
    def stream(self, options: Options) -> AuctionSpec:
        """The tables that the query reads. Raises InvalidRequest for options that it lacks."""
        self._check(options)
        check_pace(None, options.rate, options.span(), options.disorder_us, None)
        events = round(EVENTS * options.scale)
        rate = RATE if options.rate is None else options.rate
        if options.span_us is not None:
            rate = events / (options.span_us / 1e6)
        return AuctionSpec(
            tables=self.tables,
            events=events,
            rate=rate,
            zipf=options.zipf,
            seed=options.seed,
            interval_rows=options.interval_rows,
            disorder_us=options.disorder_us,
            shift_us=options.shift_us,
        )

    def columns(self, spark: Any, recorded: RecordedStream, table: str, names: str) -> OwnStream:
        """A table as a stream of some columns; `names`: separated by spaces."""
        stream = table_stream(spark, recorded, table)
        return stream.select(names.split())

    def _check(self, options: Options) -> None:
        if options.zipf is not None and not self.has_lasting_keys:
            raise InvalidRequest(
                f"zipf: {self.name} joins rows that are near in time, and rows drawn by --zipf are "
                f"not, found {options.zipf:g}; leave --zipf out, or take nexmark-q20"
            )
        if options.shift_us is not None and options.zipf is None:
            raise InvalidRequest(
                f"shift-every: the hot keys of {self.name} change after every 100 persons or "
                f"auctions, found {describe(options.shift_us)}; leave --shift-every out, or give "
                f"--zipf too"
            )
        if options.window_us is not None and not self.has_window:
            raise InvalidRequest(
                f"window: {self.name} has no window of a length to choose, found "
                f"{describe(options.window_us)}; leave --window out"
            )
        if options.window_us == 0:
            raise InvalidRequest(
                f"window: the windows of {self.name} must be longer than 0 s; give another length, "
                "or leave --window out"
            )
        if options.order is not TableOrder.UNIFORM:
            raise InvalidRequest(
                f"order: the events of {self.name} have an order of their own, found "
                f"{options.order.value!r}; leave --order out"
            )


def listed(**columns: str) -> str:
    """The columns of tables in SQL; the names of a table's columns stand between spaces.

    >>> listed(b="auction price", a="id")
    'b.auction, b.price, a.id'
    """
    return ", ".join(
        f"{alias}.{name}" for alias, names in columns.items() for name in names.split()
    )
