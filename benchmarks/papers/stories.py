"""Zacheilas et al., DAIS 2016: first stories in a stream of texts, on five engines for 40 minutes.

A text stands for `SCALE` of the paper's: its work, its moves and the last texts of a key that it is
compared with are scaled, so that seconds and texts can be read as the paper's. Loads are tuples.

The paper gives 1 ms for a text that moves. Ours: 0.8 ms for sending a text, since the paper's
splitter is one process and limits all methods to some 1,200 texts a second; and 2.4 ms of work for
a text, by which key grouping on five engines processes as many texts as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.papers.cluster import Clock, Cluster, seconds_of
from benchmarks.papers.figure import Points
from joinengine.balancing.costs import Load
from joinengine.balancing.dlb import score
from joinengine.driver.settings import Settings
from joinengine.lab.emulation.emulating import Emulation
from joinengine.lab.emulation.slow_operator import Work
from joinengine.lab.inline.inline_runs import Frame, run_on
from joinengine.lab.queries import QUERIES
from joinengine.lab.queries.first_story.novelty import StreamNovelty, TextColumns
from joinengine.lab.queries.named_query import Options
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.stream import RecordedStream
from joinengine.layouts import DlbHeavy, DlbLight, Hash, LayoutChoice, Lptf, Pkg

SCALE, KEYS, ENGINES, HISTORY, THRESHOLD = 20, 4096, 5, 500, 0.2
WORK_S, SENT_S, MOVED_S = 2.4e-3, 0.8e-3, 1e-3
MINUTES, BATCH_TEXTS = 40.0, 1600
#: Over which loads are taken, as by default.
INTERVALS = 4
#: Chosen so that key grouping deviates as in the paper's table 1, by 44.5 % on average.
STORY_ZIPF = 1.2
#: Of the stream whose keys are drawn: minutes, and the exponent from then on; then from the start.
PHASES, CYCLE = ((0.0, 0.2), (5.0, 1.5)), 15.0
METHODS: Mapping[str, LayoutChoice] = {
    "DLB-L": DlbLight(),
    "DLB-H": DlbHeavy(),
    "LPTF": Lptf(),
    "PKG": Pkg(),
    "KG": Hash(),
}
PARAMETERS = (
    f"5 engines, 4,096 keys, the last {HISTORY} texts of a key, similarity {THRESHOLD}, threshold "
    f"15 %, loads over {INTERVALS} intervals of {BATCH_TEXTS * SCALE:,} texts. A text stands for "
    f"{SCALE}. Emulated: {1e3 * WORK_S:g} ms of work a text, {1e3 * MOVED_S:g} ms for a text that "
    f"moves (the paper's), {1e3 * SENT_S:g} ms for sending it"
)


class Story(NamedTuple):
    """A run, batch by batch: when each ended (minutes), its texts, and the deviation of the loads.

    `deviations`: 100 * standard deviation / mean. `moved_keys`: of each re-balance, as a part of
    the keys that its loads are of. `moved_texts`: all that moved. `events`: texts that resemble
    none before them.
    """

    minutes: Sequence[float]
    texts: Sequence[float]
    deviations: Sequence[float]
    moved_keys: Sequence[float]
    moved_texts: float
    events: int

    @property
    def processed(self) -> float:
        """Texts of the batches that ended within MINUTES."""
        return float(
            sum(n for n, at in zip(self.texts, self.minutes, strict=True) if at <= MINUTES)
        )

    @property
    def rate(self) -> Points:
        """Texts a second over minutes."""
        at = np.array(self.minutes)
        rates = np.array(self.texts) / (60 * np.diff(at, prepend=0.0))
        return at[at <= MINUTES].tolist(), rates[at <= MINUTES].tolist()

    def mean_deviation(self, first: float = 0.0, end: float = MINUTES) -> float:
        """The mean deviation over some minutes."""
        at = np.array(self.minutes)
        return float(np.array(self.deviations)[(at > first) & (at <= end)].mean())

    def mean_rate(self, first: float, end: float) -> float:
        """Texts a second over some minutes."""
        at = np.array(self.minutes)
        among = (at > first) & (at <= end)
        seconds = 60 * np.diff(at, prepend=0.0)
        return float(np.array(self.texts)[among].sum() / seconds[among].sum())


def told(method: str, engines: int = ENGINES, *, drawn: bool = False) -> Story:
    """One method over the texts in their order, or with `drawn` over keys drawn by Zipf in turn.

    Figures share their runs.
    """
    return _told(method, engines, drawn)


@cache
def _told(method: str, engines: int, drawn: bool) -> Story:
    recorded = _recorded()
    choice = METHODS[method]
    query = StreamNovelty(
        table_stream(None, recorded, "texts"),
        TextColumns("lsh", "terms", "x_ts"),
        delay_us=0,
        history=HISTORY // SCALE,
        threshold=THRESHOLD,
        layout=choice,
        instances=engines,
    ).query()
    cluster = Cluster(engines, world=Clock(), moved_s=SCALE * MOVED_S, sent_s=SCALE * SENT_S)
    keys = list[set[int]]()
    frames = _noting(_drawn(cluster.world) if drawn else _in_order(), keys)
    settings = Settings(trial=Emulation(Work(SCALE * WORK_S)), load=Load.TUPLES)
    records = run_on(cluster, query, [choice], frames, settings)
    joins = [record.joins[0] for record in records]
    moved = [
        (len(join.reason.keys) + join.reason.more_keys)
        / len(set.union(*keys[max(0, at - INTERVALS) : at]))
        for at, join in enumerate(joins, start=1)
        if join.replanned and join.reason
    ]
    return Story(
        (np.cumsum(seconds_of(records)) / 60).tolist(),
        [float(SCALE * record.input_rows) for record in records],
        [score(np.array(join.work.received, float)) for join in joins],
        moved,
        float(SCALE * sum(join.moved.rows for join in joins)),
        sum(record.output_rows for record in records),
    )


@cache
def _recorded() -> RecordedStream:
    options = Options(scale=1 / SCALE, zipf=STORY_ZIPF)
    return QUERIES["first-story"].stream(options).record()


@cache
def _texts() -> pa.RecordBatch:
    """All texts in their order."""
    return pq.read_table(_recorded().folder / "texts").combine_chunks().to_batches()[0]


def _noting(frames: Iterable[Frame], keys: list[set[int]]) -> Iterator[Frame]:
    """The frames; `keys` gets those of each."""
    for frame in frames:
        keys.append(set(pc.unique(frame[0].column("lsh")).to_pylist()))
        yield frame


def _in_order() -> Iterator[Frame]:
    whole = _texts()
    for first in range(0, whole.num_rows, BATCH_TEXTS):
        yield [whole.slice(first, BATCH_TEXTS)]


def _drawn(clock: Clock) -> Iterator[Frame]:
    """Texts as fast as they are taken, until the time is over; their keys are drawn by Zipf."""
    whole, rng = _texts(), np.random.default_rng(3)
    keys, number = rng.permutation(KEYS), 0
    while (minute := clock.timer_s() / 60) < MINUTES:
        zipf = [z for start, z in PHASES if start <= minute % CYCLE][-1]
        weights = np.arange(1, KEYS + 1) ** -zipf
        drawn = rng.choice(keys, BATCH_TEXTS, p=weights / weights.sum()).astype(np.int32)
        first = number * BATCH_TEXTS % (whole.num_rows - BATCH_TEXTS)
        frame = whole.slice(first, BATCH_TEXTS)
        frame = frame.set_column(frame.schema.get_field_index("lsh"), "lsh", pa.array(drawn))
        at = whole.column("x_ts")[0].value + np.arange(BATCH_TEXTS) + number * BATCH_TEXTS
        time = frame.schema.field("x_ts")
        column = frame.schema.get_field_index("x_ts")
        yield [frame.set_column(column, time, pa.array(at).cast(time.type))]
        number += 1
