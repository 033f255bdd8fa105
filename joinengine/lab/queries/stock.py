"""Stock: dense buy-sell pairs in a stream of trades, a self-join over a sliding window.

    SELECT * FROM trades B, trades S
    WHERE B.stock = S.stock AND B.account = S.account
      AND B.side = 'B' AND S.side = 'S' AND |S.ts - B.ts| <= window

An account that buys and sells the same stock again and again within seconds may be a high-frequency
player. The stream is read once; buys enter on the left, sells on the right. The key is the stock:
there are 1,036 of them, with Zipf frequencies. Now and then a stock bursts: for about 1/64 of the
stream, it has a third of all trades.
Source: the Stock workload of Fang et al., 2016 (arXiv 1610.05121): 6 million trades of 1,036 stocks
over three days, with abrupt bursts on single keys; the data are generated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from joinengine import StreamJoin, equi
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.synthetic import Rows, SyntheticSpec
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.skew import shuffled
from joinengine.lab.tpch.stream import RecordedStream, time_array

STOCKS = 1036
#: Trades at scale 1.
TRADES = 6_000_000
#: Accounts that trade a stock; each trades with the same probability.
ACCOUNTS = 200
#: The number of slots of the stream; and of slots from one burst to the next.
SLOTS, BURST_EVERY = 64, 3
BURST_PART = 1 / 3
#: The default window: half of the mean time between two trades of one account and average stock.
WINDOW_US = 5_000_000
COLUMNS = ("trade", "stock", "account", "side", "price_cents", "quantity", "t_ts")


class Stock(Query):
    """The self-join of trades."""

    name = "stock"
    summary = (
        "trades joined with themselves within a window: buys and sells of one account and stock"
    )
    source = "the Stock workload of Fang et al., 2016 (arXiv 1610.05121); generated"

    @override
    def stream(self, options: Options) -> SyntheticSpec:
        return options.synthetic("trades", TRADES, _trades)

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        """A self-join: the same stream on both sides."""
        trades = table_stream(spark, recorded, "trades")
        return StreamJoin(
            trades,
            trades,
            on=equi("stock", "stock"),
            where="left.account = right.account",
            left_where="side = 'B'",
            right_where="side = 'S'",
            within=options.at_most_apart("t_ts", "t_ts", WINDOW_US),
            suffixes=("_buy", "_sell"),
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        trades, span = recorded.files("trades"), options.window(WINDOW_US)
        columns = ", ".join(
            f"{side}.{name} as {name}_{word}"
            for side, word in (("b", "buy"), ("s", "sell"))
            for name in COLUMNS
        )
        return (
            f"select {columns} from (from '{trades}' where side = 'B') b "
            f"join (from '{trades}' where side = 'S') s "
            f"on b.stock = s.stock and b.account = s.account "
            f"and abs(epoch_us(s.t_ts) - epoch_us(b.t_ts)) <= {span}"
        )


def _trades(spec: SyntheticSpec, rows: Rows, times: Rows) -> pa.Table:
    order = shuffled(spec.seed, "trades: stocks", STOCKS)
    slots = rows * SLOTS // spec.rows
    bursting = (spec.uniform("burst", slots) * STOCKS).astype(np.int64)
    bursts = (slots % BURST_EVERY == 1) & (spec.uniform("in burst", rows) < BURST_PART)
    stocks = np.where(bursts, bursting, order[spec.ranks("stock", rows, STOCKS)])
    accounts = (spec.uniform("account", rows) * ACCOUNTS).astype(np.int64)
    sides = np.where(spec.uniform("side", rows) < 0.5, "B", "S")
    cents = 100 + stocks * 7 % 90_000 + (spec.uniform("price", rows) * 200).astype(np.int64)
    return pa.table(
        {
            "trade": pa.array(rows),
            "stock": pa.array(stocks.astype(np.int32)),
            "account": pa.array(accounts.astype(np.int32)),
            "side": pa.array(sides),
            "price_cents": pa.array(cents),
            "quantity": pa.array(1 + (spec.uniform("quantity", rows) * 500).astype(np.int32)),
            "t_ts": time_array(times),
        }
    )
