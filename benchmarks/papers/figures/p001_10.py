"""Figure 10 of Nasir et al., ICDE 2015: throughput of a word count, by delay and by memory.

The engine runs it. A tuple costs its instance the delay, and instances work side by side, as if
each had a machine of its own. A batch is ten seconds of the paper's stream.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding
from benchmarks.papers.pkg_streams import STAND_INS, stream
from benchmarks.peers.stream import write_index
from joinengine import StreamAggregate, session, windows
from joinengine.balancing.statistics import Ints
from joinengine.lab.tpch.stream import EPOCH_US
from joinengine.reporting.run_report import run_report
from joinengine.spark.sources.inputs import recorded_stream

#: A delay of (a) and (c) that stands in for none: what Storm itself needs is not given.
DELAYS_MS, DELAY_B_MS, DELAY_C_MS = (0.1, 0.2, 0.5, 1.0), 0.4, 0.1
#: Aggregation periods in seconds, and batches.
PERIODS = {10: 1, 30: 3, 60: 6}
BATCH_S, COUNTED, AT_THE_END = 10, 6, 1 << 30
ROWS = {"a": 10_000, "b": 10_000, "c": 40_000}
COLUMNS = pa.schema([("word", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


@dataclass(frozen=True)
class Scheme:
    """A layout, and the numbers of workers and aggregators."""

    layout: str
    workers: int
    aggregators: int


WP = {"PKG": Scheme("pkg", 8, 2), "SG": Scheme("shuffle", 8, 2), "KG": Scheme("hash", 10, 2)}
TW = {"PKG": Scheme("pkg", 8, 8), "SG": Scheme("shuffle", 8, 8), "KG": Scheme("hash", 16, 8)}


@dataclass(frozen=True)
class Ran:
    """Words a second, and the counters that a worker has kept when it sends them."""

    rows_per_s: float
    counters: float


def make(say: Callable[[str], None]) -> Made:
    """The three panels."""
    with tempfile.TemporaryDirectory(prefix="joinengine-figure-10-") as folder:
        paths = {
            letter: _written(Path(folder, letter), stream(name, ROWS[letter] * (COUNTED + 1)))
            for letter, name in (("a", "WP"), ("b", "WP"), ("c", "TW"))
        }
        _run(paths["a"], WP["PKG"], 0.0, 1)  # the JVM warms up
        a = {
            name: [_said(say, "a", name, d, paths, scheme, AT_THE_END) for d in DELAYS_MS]
            for name, scheme in WP.items()
        }
        b = _by_period(say, "b", DELAY_B_MS, paths, WP)
        c = _by_period(say, "c", DELAY_C_MS, paths, TW)
    shown, delays = _limited(a), _by_delay(a)
    panels = [Panel.over("a", "CPU delay, ms", "words per second", DELAYS_MS, shown)]
    for letter, found in (("b", b), ("c", c)):
        series = {
            name: ([one.counters for one in ones], [one.rows_per_s for one in ones])
            for name, ones in found.items()
        }
        panels.append(Panel(letter, "counters per worker", "words per second", series))
    return Made(panels, [delays, *_by_memory(b), _on_tweets(c)])


def _said(
    say: Callable[[str], None],
    letter: str,
    name: str,
    delay_ms: float,
    paths: Mapping[str, Path],
    scheme: Scheme,
    merge_every: int,
) -> Ran:
    say(f"{letter}: {name}, {delay_ms} ms")
    return _run(paths[letter], scheme, delay_ms, merge_every)


def _by_period(
    say: Callable[[str], None],
    letter: str,
    delay_ms: float,
    paths: Mapping[str, Path],
    schemes: Mapping[str, Scheme],
) -> dict[str, list[Ran]]:
    """Runs of each scheme by period; KG keeps its counters, so its period changes nothing."""
    return {
        name: [
            _said(say, letter, name, delay_ms, paths, scheme, every)
            for every in ((AT_THE_END,) if name == "KG" else PERIODS.values())
        ]
        for name, scheme in schemes.items()
    }


def _written(folder: Path, keys: Ints) -> Path:
    """A stream of words, a file for each batch."""
    (folder / "words").mkdir(parents=True)
    ends = list[int]()
    for number, batch in enumerate(np.array_split(keys, COUNTED + 1)):
        begin = EPOCH_US + number * BATCH_S * 1_000_000
        at = begin + np.arange(len(batch)) * BATCH_S * 1_000_000 // len(batch)
        table = pa.table([pa.array(batch), pa.array(at, COLUMNS.field("at").type)], COLUMNS)
        path = folder / "words" / f"{number:05d}.parquet"
        pq.write_table(table, path, row_group_size=-(-len(batch) // 8))
        ends.append(begin + BATCH_S * 1_000_000)
    write_index(folder, "words", ends)
    return folder / "words.json"


def _run(path: Path, scheme: Scheme, delay_ms: float, merge_every: int) -> Ran:
    """Count the words; the first batch is not measured."""
    spark = session(master="local[2]")
    counted = StreamAggregate(
        recorded_stream(spark, path, COLUMNS),
        by="word",
        aggregates={"n": "count(*)"},
        window=windows("at", f"{2 * EPOCH_US} us", delay="0 s"),
        layout=scheme.layout,
        instances=scheme.workers,
        aggregators=scheme.aggregators,
        merge_every=merge_every,
    )
    with tempfile.TemporaryDirectory(prefix="joinengine-figure-10-") as checkpoint:
        writer = counted.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer = writer.option("workPerTuple", f"{round(delay_ms * 1000)} us")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = query.batches()
    brought = [one for one in batches if one.input_rows][1:]
    sent = [sum(row) for row in run_report(batches)["joins"][1]["received_by_batch"]]
    sent = [n for n in sent if n]
    return Ran(
        sum(one.input_rows for one in brought) / sum(one.trigger_s for one in brought),
        float(np.mean(sent)) / scheme.workers,
    )


def _limited(found: Mapping[str, list[Ran]]) -> dict[str, list[float]]:
    """Throughput if sources send no more than they do in the paper.

    Under PKG, the paper's throughput falls by 37 % from 0.1 to 1 ms, and no further than 8 workers
    can do at 1 ms: so its sources send that much over 0.63.
    """
    limit = found["PKG"][-1].rows_per_s / (1 - 0.37)
    return {name: [min(one.rows_per_s, limit) for one in ones] for name, ones in found.items()}


def _by_delay(found: Mapping[str, list[Ran]]) -> Finding:
    falls = {name: 1 - rates[-1] / rates[0] for name, rates in _limited(found).items()}
    shown = ", ".join(f"{name} -{100 * fall:.0f} %" for name, fall in falls.items())
    return Finding(
        "figure 10a",
        "ten times the delay: KG -60 %, PKG and SG -37 %",
        shown,
        abs(falls["KG"] - 0.6) <= 0.1 and abs(falls["SG"] - falls["PKG"]) <= 0.05,
        "rule: KG within 10 points, SG within 5 of PKG. The paper's workers wait for sources at "
        "0.1 ms; how fast those are follows from PKG's 37 %, so only KG and SG can fail",
        timed=True,
    )


def _by_memory(found: Mapping[str, list[Ran]]) -> list[Finding]:
    pairs = list(zip(found["PKG"], found["SG"], strict=True))
    (kg,) = found["KG"]
    less = all(p.counters < s.counters and p.rows_per_s > 0.95 * s.rows_per_s for p, s in pairs)
    memory = ", ".join(f"{p.counters:,.0f} and {s.counters:,.0f}" for p, s in pairs)
    rates = ", ".join(f"{p.rows_per_s:,.0f} and {s.rows_per_s:,.0f}" for p, s in pairs)
    above = [p.rows_per_s for p in found["PKG"][1:]]
    return [
        Finding(
            "figure 10b",
            "for all periods, PKG has a higher throughput than SG with less memory",
            f"PKG and SG, T = 10, 30, 60 s: {memory} counters per worker, {rates} words/s",
            less,
            "rule: less memory, and no less than 95 % of the throughput: under both, the emulated "
            "work is level, and sending counters on costs none",
            timed=True,
        ),
        Finding(
            "figure 10b",
            "if the period is longer than 30 s, PKG has a higher throughput than KG",
            f"{', '.join(f'{rate:,.0f}' for rate in above)} against {kg.rows_per_s:,.0f} words/s",
            min(above) > kg.rows_per_s,
            "rule: at 30 and 60 s",
            timed=True,
        ),
    ]


def _on_tweets(found: Mapping[str, list[Ran]]) -> Finding:
    pkg, sg, (kg,) = found["PKG"][-1], found["SG"][-1], found["KG"]
    faster, less = pkg.rows_per_s / kg.rows_per_s - 1, 1 - pkg.counters / sg.counters
    return Finding(
        "figure 10c",
        "T = 60 s: PKG has 175 % more throughput than KG, and 30 % less memory than SG",
        f"{100 * faster:+.0f} %, and {100 * less:.0f} % less memory",
        faster >= 1 and less >= 0.15,
        "rule: at least 100 % and 15 %. The top key has 2.67 %: the busiest of KG's 16 workers "
        "gets less than each of PKG's 8, so no division of work alone can make PKG faster",
        timed=True,
    )


FIGURE = Figure(
    "001-10",
    "Throughput by delay, and by memory",
    f"{STAND_INS}; {ROWS['a']:,} words a batch of ten seconds ({ROWS['c']:,} of TW); the delay is "
    f"emulated; (c) with {DELAY_C_MS} ms in place of Storm's own cost; throughput of (a) is "
    f"limited by sources as fast as the paper's",
    3.0,
    make,
)
