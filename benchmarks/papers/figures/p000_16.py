"""Figure 16: the joins of TPC-H Q5 while hot keys change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from benchmarks.papers.figure import Figure, Made, Panel, Points
from benchmarks.papers.finding import Finding
from benchmarks.papers.saturated import INTERVAL_US, WORK_S, Ran, run, times_of
from joinengine import equi, within
from joinengine.lab.inline.inline_runs import Frame
from joinengine.lab.inline.two_way import Input, two_way
from joinengine.lab.tpch.skew import zipf_probabilities
from joinengine.layouts import Hash, Mixed, Readj
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.keys import Side
from joinengine.model.query import FromOperator, FromSource
from joinengine.operators.base import QuerySpec

ZIPF, TASKS, THETAS = 0.8, 15, (0.02, 0.1)
#: An hour in which hot keys change every quarter, and a window of five minutes: in intervals.
QUARTERS, QUARTER, WINDOW = 4, 9, 3
#: Of an interval.
ITEMS, ORDERS = 60_000, 15_000
#: Of TPC-H at scale 1.
SUPPLIERS = 10_000
#: Lineitems a second if tasks shared the tuples of the second join evenly.
EVEN = TASKS / WORK_S * ITEMS / (ITEMS + ORDERS)
_TIME = pa.timestamp("us", "UTC")
_ITEM = pa.schema([("l_orderkey", pa.int64()), ("l_suppkey", pa.int64()), ("l_ts", _TIME)])
_ORDER = pa.schema([("o_orderkey", pa.int64()), ("o_ts", _TIME)])
_SUPPLIER = pa.schema([("s_suppkey", pa.int64())])


def make(show: Callable[[str], None]) -> Made:
    frames, rans = _frames(), dict[float, dict[str, Ran]]()
    storm = _run(Hash(base="ring"), frames)
    for theta in THETAS:
        rans[theta] = {
            "Mixed": _run(Mixed(base="ring", imbalance=theta, intervals=1), frames),
            "Readj": _run(Readj(base="ring", imbalance=theta, intervals=1), frames),
            "Storm": storm,
        }
        show(f"theta = {theta}: {_told(rans[theta])}")
    return Made(
        [_panel(letter, rans[theta]) for letter, theta in zip("ab", THETAS, strict=True)],
        [
            finding
            for letter, theta in zip("ab", THETAS, strict=True)
            for finding in _findings(f"figure 16{letter}", theta, rans[theta])
        ],
    )


def _run(choice: LayoutChoice, frames: Sequence[Frame]) -> Ran:
    supplier = pa.RecordBatch.from_arrays([pa.array(np.arange(SUPPLIERS))], schema=_SUPPLIER)
    return run(_query(), choice, frames, tables={2: supplier})


def _query() -> QuerySpec:
    """Table lineitem joins supplier, and the result joins orders within the window."""
    inputs, on = (Input(_ITEM), Input(_SUPPLIER)), equi("l_suppkey", "s_suppkey")
    sold, *_ = two_way(inputs, on, instances=TASKS, table=Side.RIGHT).operators
    sold = replace(sold, inputs=(FromSource(0), FromSource(2)))
    span = f"{WINDOW * INTERVAL_US} us"
    near = within("l_ts", "o_ts", lower=f"-{span}", upper=span, delay="0 s")
    inputs, on = (Input(sold.output_schema), Input(_ORDER)), equi("l_orderkey", "o_orderkey")
    both, *_ = two_way(inputs, on, near, TASKS).operators
    both = replace(both, index=1, inputs=(FromOperator(0), FromSource(1)))
    return QuerySpec((sold, both), ("lineitem", "orders", "supplier"), frozenset([2]))


def _frames() -> list[Frame]:
    rng = np.random.default_rng(1)
    intervals = QUARTERS * QUARTER
    orders = rng.permutation(intervals * ORDERS)
    frames = list[Frame]()
    for number in range(intervals):
        if number % QUARTER == 0:  # other keys are hot
            hot = rng.permutation(len(orders)), rng.permutation(SUPPLIERS)
        keys = [
            pa.array(some[rng.choice(len(some), ITEMS, p=zipf_probabilities(len(some), ZIPF))])
            for some in hot
        ]
        items = [*keys, times_of(number, ITEMS)]
        bought = [
            pa.array(orders[number * ORDERS : (number + 1) * ORDERS]),
            times_of(number, ORDERS),
        ]
        frames.append(
            [
                pa.RecordBatch.from_arrays(items, schema=_ITEM),
                pa.RecordBatch.from_arrays(bought, schema=_ORDER),
            ]
        )
    return frames


def _told(rans: Mapping[str, Ran]) -> str:
    return ", ".join(f"{name} {ran.rate:,.0f} tuples/s" for name, ran in rans.items())


def _panel(letter: str, rans: Mapping[str, Ran]) -> Panel:
    series: dict[str, Points] = {
        name: (
            np.cumsum([tick.seconds for tick in ran.ticks]).tolist(),
            [tick.rows / tick.seconds for tick in ran.ticks],
        )
        for name, ran in rans.items()
    }
    return Panel(letter, "time, s", "throughput, lineitems/s", series)


def _findings(place: str, theta: float, rans: Mapping[str, Ran]) -> list[Finding]:
    others = max(rans["Readj"].rate, rans["Storm"].rate)
    return [
        Finding(
            place,
            f"Mixed has the best throughput under any tolerance (theta lost; here {theta}); rule: "
            f"more over the whole run than Readj and Storm",
            _told(rans),
            rans["Mixed"].rate > others,
        ),
        Finding(
            place,
            f"Storm, without balancing, has poor throughput (theta = {theta}); rule: at most 0.8 "
            f"of Mixed's",
            f"{rans['Storm'].rate / rans['Mixed'].rate:.2f} of Mixed's",
            rans["Storm"].rate <= 0.8 * rans["Mixed"].rate,
            f"the second join also receives the orders, so even loads would give {EVEN:,.0f} "
            f"lineitems a second, and hashing is not far below: at z = 0.8 the heaviest supplier "
            f"has 0.55 of a task's share",
        ),
    ]


FIGURE = Figure(
    "000-16",
    "TPC-H Q5 while hot keys change",
    f"The engine, in one process, with an emulated clock (figure 13). The two joins of Q5 whose "
    f"foreign keys are skewed (Zipf 0.8), one after the other: lineitem with supplier (10,000 "
    f"rows, a table), and the result with orders in a window. Scaled: an hour is "
    f"{QUARTERS * QUARTER} intervals, and the window of 5 minutes {WINDOW}; other keys are hot "
    f"after each quarter. 60,000 lineitems and 15,000 orders in an interval, 15 tasks for each "
    f"join, consistent hashing. One run",
    2.5,
    make,
)
