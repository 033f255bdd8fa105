"""The two streams that stand in for the real data of Fang et al., 2016: Social and Stock.

They are the laboratory's (`topk`, `stock`), with the paper's numbers of words and stocks, Zipf 0.8.
Words change slowly: each rank has another word four times in a stream. Of stocks, some one has a
third of all trades in each third stretch of 1/64 of the stream. The paper's streams last five days
and three, with a state of 24 h; here the state is the tuples of WINDOW intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from benchmarks.papers.saturated import INTERVAL_US, WORK_S, Ran, generated, ran, store, stored
from joinengine import equi, within
from joinengine.lab.inline.inline_runs import Frame
from joinengine.lab.inline.two_way import Input, two_way
from joinengine.lab.queries.stock import Stock
from joinengine.lab.queries.topk import Topk
from joinengine.lab.simulation.candidate_layouts import Setting, play
from joinengine.lab.simulation.planning import Served
from joinengine.operators.base import QuerySpec

INTERVALS, WINDOW = 28, 2
#: Tuples of an interval, and tasks.
WORDS, SOCIAL_TASKS = 60_000, 15
TRADES, STOCK_TASKS = 20_000, 10
#: Only so much of the streams is used, so that a word stays for ten intervals, a burst for four.
SOCIAL_PART, STOCK_PART = 0.7, 7 / 64
#: Sources of words.
SPOUTS = 10


def social() -> list[Frame]:
    """Words."""
    return stored(
        [batch.column("word") for batch in generated(Topk(), WORDS, INTERVALS, SOCIAL_PART)]
    )


def social_query(instances: int) -> QuerySpec:
    """Words are stored and counted by word."""
    return store(pa.string(), instances, WINDOW)


def by_pkg(frames: Sequence[Frame], instances: int) -> Ran:
    """PKG counts words: each goes to the emptier of two tasks, as its source knows them.

    The engine's own layout is for joins, in which a tuple probes both tasks; this is the simulator.
    """
    setting = Setting(instances, SPOUTS, operator=Served.AGGREGATE)
    seconds = list[float]()
    for words, _ in frames:
        keys = words.column(0).dictionary_encode().indices.to_numpy()
        found = play("pkg", keys, np.arange(len(keys)) % SPOUTS, setting)
        seconds.append(WORK_S * float(max(found["received_per_instance"])))
    return ran([words.num_rows for words, _ in frames], seconds)


def stock() -> list[Frame]:
    """Trades, on both sides of a self-join."""
    trades = generated(Stock(), TRADES, INTERVALS, STOCK_PART)
    return [[batch, batch.rename_columns(_sold(batch.schema))] for batch in trades]


def stock_query(instances: int) -> QuerySpec:
    """Buys join sells of the same stock and account."""
    (trade,) = generated(Stock(), 1, 1)
    span = f"{WINDOW * INTERVAL_US} us"
    return two_way(
        (
            Input(trade.schema, "side = 'B'"),
            Input(trade.rename_columns(_sold(trade.schema)).schema, "side_sell = 'S'"),
        ),
        equi("stock", "stock_sell"),
        within("t_ts", "t_ts_sell", lower=f"-{span}", upper=span, delay="0 s"),
        instances,
        where="account = account_sell",
    )


def _sold(schema: pa.Schema) -> list[str]:
    return [f"{name}_sell" for name in schema.names]
