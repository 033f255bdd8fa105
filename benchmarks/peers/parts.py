"""The parts of the comparison: what runs in each, which figures a run has, and their table.

To add one: a line in PARTS.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.peers.jobs import Job, Outcome
from benchmarks.peers.stream import PART, WARM_BATCHES, record, record_small
from benchmarks.peers.systems import MEMORY, OURS, SYSTEMS
from joinengine.lab.tpch.generate import Say

#: A module and its arguments; as a process it prints what one run has found, as JSON.
Command = list[str]
#: Figures by name.
Figures = Mapping[str, float]
#: The prefix of figures that say where the time of a batch goes.
SPLIT = "split: "

#: At size 1: three warm batches of half a million rows, then batches of the size that is measured.
HALF_M = (500_000,) * 4
TWO_M = (500_000, 500_000, 500_000, 2_000_000)
SMALL_BATCHES = 80
#: State partitions of Spark's own join: of 2, 4, 8, 16 and 32 on two cores, 8 was its fastest while
#: it runs, and 2 where batches are few or small.
STEADY, FEWEST = 8, 2
#: Seconds that count, at size 1; and seconds before them, at any size: a new session must catch up.
LATENCY_S, LATENCY_WARM_S = 60, 30


class Column(NamedTuple):
    """A figure, times `scale`, in a column."""

    header: str
    figure: str
    scale: float = 1.0
    digits: int = 0

    def text(self, label: str, by_label: Mapping[str, Figures]) -> str:
        """The cell in the row of `label`."""
        return f"{by_label[label][self.figure] * self.scale:,.{self.digits}f}"


class Ratio(NamedTuple):
    """How many times as fast as the best of `bases`; `best`: max of rates, min of seconds.

    `alike`: all have the same join; if results differ, speeds are not compared.
    """

    header: str
    figure: str
    bases: Sequence[str]
    best: Callable[[Iterable[float]], float] = max
    digits: int = 1
    alike: bool = True

    def text(self, label: str, by_label: Mapping[str, Figures]) -> str:
        """The cell in the row of `label`; empty if no base was run."""
        bases = [by_label[base] for base in self.bases if base in by_label]
        if not bases:
            return ""
        results = by_label[label].get("results")
        if self.alike and any(base.get("results") != results for base in bases):
            return "other results"
        values = [base[self.figure] for base in bases]
        base, own = self.best(values), by_label[label][self.figure]
        return f"{own / base if self.best is max else base / own:.{self.digits}f}"


class Part(NamedTuple):
    """`commands`: size, say -> label -> the process of one run. `figures`: of what it prints."""

    title: str
    commands: Callable[[float, Say], Mapping[str, Command]]
    figures: Callable[[Any], Figures]
    columns: Sequence[Column | Ratio]


def medians(runs: Sequence[Figures]) -> Figures:
    """Of each figure the median of the runs; one that some runs lack is 0 there."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: statistics.median(run.get(name, 0.0) for run in runs) for name in names}


def _systems(jobs: Mapping[str, tuple[str, Job]]) -> dict[str, Command]:
    """Label -> (system, job), turned into label -> command."""
    return {
        label: ["benchmarks.peers.systems", name, json.dumps(job._asdict())]
        for label, (name, job) in jobs.items()
    }


def _folder(size: float, batch_rows: Sequence[int], say: Say) -> str:
    sizes = tuple(round(rows * size) for rows in batch_rows)
    return str(record(size, sizes, say).folder)


def _inner(batch_rows: Sequence[int]) -> Callable[[float, Say], Mapping[str, Command]]:
    """All systems; a `parquet_stream` has batches of one size, so it is not there at 2 M rows."""

    def commands(size: float, say: Say) -> Mapping[str, Command]:
        job = Job(_folder(size, batch_rows, say), partitions=STEADY)
        even = len(set(batch_rows)) == 1
        return _systems({n: (n, job) for n in SYSTEMS if even or "user's session" not in n})

    return commands


def _wide(size: float, say: Say) -> Mapping[str, Command]:
    job = Job(_folder(size, HALF_M, say))
    wide = job._replace(part=20 * PART)
    return _systems({OURS: (OURS, job), f"{OURS}, window x 20": (OURS, wide)})


def _band(size: float, say: Say) -> Mapping[str, Command]:
    job = Job(_folder(size, HALF_M, say), is_band=True, partitions=STEADY)
    names = (OURS, MEMORY, "Spark, RocksDB 4", "DuckDB, one batch")
    return _systems({name: (name, job) for name in names})


def _outer(size: float, say: Say) -> Mapping[str, Command]:
    """Of half the window: half of the line items match nothing."""
    inner = Job(_folder(size, HALF_M, say), part=PART / 2, partitions=STEADY)
    job = inner._replace(how="full")
    full = {name: (name, job) for name in (OURS, MEMORY, "DuckDB, one batch")}
    return _systems(full | {f"{OURS}, inner": (OURS, inner)})


def _whole(size: float, say: Say) -> Mapping[str, Command]:
    job = Job(_folder(size, HALF_M, say), queries=2, partitions=FEWEST)
    return _systems({n: (n, job) for n in SYSTEMS if OURS in n or n == MEMORY})


def _small(size: float, say: Say) -> Mapping[str, Command]:
    stream = record_small(max(12, round(SMALL_BATCHES * size)))
    job = Job(str(stream.folder), partitions=FEWEST)
    return _systems({name: (name, job) for name in (OURS, f"{OURS}, mnrt", MEMORY)})


def _latency(size: float, say: Say) -> Mapping[str, Command]:
    seconds = max(1, round(LATENCY_S * size))
    length = ["--seconds", str(seconds), "--warm", str(LATENCY_WARM_S), "--json"]
    names = (OURS, f"{OURS}, mnrt", f"{OURS}, user's session", MEMORY)
    return {name: ["benchmarks.latency", "--system", name, *length] for name in names}


def _instances(size: float, say: Say) -> Mapping[str, Command]:
    return {
        f"{OURS}, {layout}": ["benchmarks.peers.instances", layout, str(size)]
        for layout in ("hash", "mnrt")
    }


def _rate(printed: Any) -> Figures:
    """Rows a second of the batches that count; where their time went."""
    outcome = Outcome.of(printed[0])
    counted = outcome.after(WARM_BATCHES)
    rate = sum(batch.rows for batch in counted) / sum(batch.seconds for batch in counted)
    split = {SPLIT + part: portion for part, portion in outcome.split.items()}
    return {"rows_per_s": rate, "results": outcome.results, **split}


def _seconds(printed: Any) -> Figures:
    """Of the first query of a session, and of one after it."""
    figures = {"results": float(printed[0]["results"])}
    for when, outcome in zip(("new", "warm"), map(Outcome.of, printed), strict=True):
        spent = {"start": outcome.start_s, "first": outcome.first_s, "whole": outcome.whole_s}
        figures |= {f"{when} {name}_s": seconds for name, seconds in spent.items()}
    return figures


def _trigger(printed: Any) -> Figures:
    """Seconds of a batch with few rows and of one without, in the later half of each kind."""
    seconds = [batch.seconds for batch in Outcome.of(printed[0]).batches]
    half = len(seconds) // 2
    few, none = seconds[half // 2 : half], seconds[half + half // 2 : 2 * half]
    return {"few_s": statistics.median(few), "none_s": statistics.median(none)}


def _as_printed(printed: Any) -> Figures:
    return dict(printed)


RATES = (
    Column("M rows/s", "rows_per_s", 1e-6, 3),
    Column("results", "results"),
    Ratio("x in memory", "rows_per_s", (MEMORY,)),
    Ratio("x RocksDB (best)", "rows_per_s", ("Spark, RocksDB 2", "Spark, RocksDB 4")),
)
WHOLE = (
    *(
        Column(f"{when}: {header}", f"{when} {figure}_s", 1.0, 2)
        for when in ("new", "warm")
        for header, figure in (("start()", "start"), ("first batch", "first"), ("whole", "whole"))
    ),
    Column("results", "results"),
    *(Ratio(f"x Spark, {when}", f"{when} whole_s", (MEMORY,), min) for when in ("new", "warm")),
)
LATENCY = (
    Column("p50, ms", "p50_s", 1e3),
    Column("p99, ms", "p99_s", 1e3),
    Column("most, ms", "most_s", 1e3),
    Column("results", "results"),
    *(Ratio(f"x Spark, {name}", f"{name}_s", (MEMORY,), min) for name in ("p50", "p99")),
)
PARTS: Mapping[str, Part] = {
    "steady": Part("0.5 M rows a batch", _inner(HALF_M), _rate, RATES),
    "large": Part("2 M rows a batch", _inner(TWO_M), _rate, RATES),
    "wide": Part(
        "plain and 20 times the window, 0.5 M rows a batch",
        _wide,
        _rate,
        (
            *RATES[:2],
            Ratio("of the plain window's rate", "rows_per_s", (OURS,), digits=2, alike=False),
        ),
    ),
    "band": Part("band, 0.5 M rows a batch", _band, _rate, RATES),
    "outer": Part("full outer, 0.5 M rows a batch", _outer, _rate, RATES),
    "whole": Part("7.5 M rows, seconds, in a new and in a warm session", _whole, _seconds, WHOLE),
    "small": Part(
        "small batches",
        _small,
        _trigger,
        (
            Column("ten rows, ms", "few_s", 1e3, 1),
            Column("no rows, ms", "none_s", 1e3, 1),
            Ratio("x Spark, ten rows", "few_s", (MEMORY,), min),
            Ratio("x Spark, no rows", "none_s", (MEMORY,), min),
        ),
    ),
    "latency": Part("from file to file at 10,000 rows/s", _latency, _as_printed, LATENCY),
    "instances": Part(
        "EQ5, 512 instances, 60,000 rows a batch",
        _instances,
        _as_printed,
        (Column("a batch, s", "batch_s", 1.0, 3), Column("results", "results")),
    ),
}
