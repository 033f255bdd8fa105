"""The engine on a saturated cluster whose clock is emulated, as Fang et al., 2016, run theirs.

The engine's driver, planners and tasks run in this process (`joinengine.lab.inline`): they
route, store, plan and move every tuple. What that would take on a cluster is computed. A task works
WORK_S for each tuple that it receives, and for each tuple of state that moves to it; tasks share
moves evenly. An interval lasts as long as its busiest task works, after the planner, which takes as
many seconds of the processor as it does here. So figures are those of a cluster on which balance,
moves and plans alone count, and other programs on this machine hardly disturb them.

Intervals follow one another. A tuple comes at any time while the interval before its own lasts, and
has its result when its own ends: so its mean latency is half of the one and all of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from joinengine import equi, within
from joinengine.balancing.costs import Load
from joinengine.driver.records import BatchRecord
from joinengine.driver.settings import Settings
from joinengine.lab.inline import inline_runs
from joinengine.lab.inline.two_way import Input, two_way
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.tpch.stream import EPOCH_US
from joinengine.layouts.layout import LayoutChoice
from joinengine.operators.base import QuerySpec
from joinengine.state.wished import Relayout

#: Seconds of work for a tuple.
WORK_S = 1e-3
#: Event time of an interval.
INTERVAL_US = 10_000_000
_TIME = pa.timestamp("us", "UTC")


class Tick(NamedTuple):
    """One interval: its tuples, its seconds, the mean latency of its tuples, and of its plan."""

    rows: float
    seconds: float
    latency_s: float
    plan_s: float


@dataclass(frozen=True)
class Ran:
    """The intervals of a run."""

    ticks: Sequence[Tick]

    @property
    def rate(self) -> float:
        """Tuples a second."""
        return sum(tick.rows for tick in self.ticks) / sum(tick.seconds for tick in self.ticks)

    @property
    def latency_s(self) -> float:
        """Mean over all tuples."""
        latencies, rows = zip(*((tick.latency_s, tick.rows) for tick in self.ticks), strict=True)
        return float(np.average(latencies, weights=rows))

    def after(self, warm: int) -> Ran:
        """The run without its first intervals."""
        return Ran(self.ticks[warm:])


def run(
    query: QuerySpec,
    choice: LayoutChoice,
    frames: Sequence[inline_runs.Frame],
    resizes: Mapping[int, int] | None = None,
    tables: Mapping[int, pa.RecordBatch] | None = None,
) -> Ran:
    """Run a query over intervals. `resizes`: interval -> tasks; `tables`: source -> its rows."""
    schedule = {batch: (Relayout(instances=n),) for batch, n in (resizes or {}).items()}
    settings = Settings(load=Load.TUPLES, schedule=schedule)
    records = inline_runs.run(
        query,
        choice,
        frames,
        settings=settings,
        tables=tables,
        on=inline_runs.On(inline_runs.OnProcessor()),
    )
    rows = [frame[0].num_rows for frame in frames]
    return ran(
        rows, [seconds_of(one) for one in records], [one.seconds["plan_s"] for one in records]
    )


def ran(
    rows: Sequence[int], seconds: Sequence[float], plan_s: Sequence[float] | None = None
) -> Ran:
    """A run of intervals of so many tuples and seconds."""
    plans = plan_s or [0.0] * len(rows)
    before = [seconds[0], *seconds]
    waits = [own + earlier / 2 for own, earlier in zip(seconds, before, strict=False)]
    return Ran([Tick(*one) for one in zip(rows, seconds, waits, plans, strict=True)])


def seconds_of(record: BatchRecord) -> float:
    """How long an interval lasts: its plans, then the moves and work of the slowest operator.

    Each operator has machines of its own, and those that are ahead wait for the slowest.
    """
    works = [
        WORK_S * (join.moved.rows / join.instances + max(join.work.received))
        for join in record.joins
    ]
    return record.seconds["plan_s"] + max(works)


# An operator that stores the tuples of the last intervals by key: the left side of a join, to whose
# right side one tuple comes in each interval, so that time goes on there.


def store(keys: pa.DataType, instances: int, window: int) -> QuerySpec:
    """The operator, on `instances` tasks; state is the tuples of `window` intervals."""
    left = pa.schema([("key", keys), ("at", _TIME)])
    right = pa.schema([("right_key", keys), ("right_at", _TIME)])
    span = f"{window * INTERVAL_US} us"
    near = within("at", "right_at", lower=f"-{span}", upper=span, delay="0 s")
    return two_way((Input(left), Input(right)), equi("key", "right_key"), near, instances)


def stored(keys: Sequence[pa.Array]) -> list[inline_runs.Frame]:
    """The keys of each interval as the tuples of such an operator."""
    frames = list[inline_runs.Frame]()
    for number, some in enumerate(keys):
        times = times_of(number, len(some))
        left = pa.RecordBatch.from_arrays([some, times], ["key", "at"])
        right = pa.RecordBatch.from_arrays([some[-1:], times[-1:]], ["right_key", "right_at"])
        frames.append([left, right])
    return frames


def times_of(interval: int, rows: int) -> pa.Array:
    """(n,) event times, evenly within an interval."""
    within_it = np.arange(rows, dtype=np.int64) * INTERVAL_US // rows
    return pa.array(EPOCH_US + interval * INTERVAL_US + within_it, _TIME)


def generated(query: Query, rows: int, intervals: int, part: float = 1.0) -> list[pa.RecordBatch]:
    """Tuples of a generated stream of the laboratory: `rows` in each interval.

    They are spread over the first `part` of the stream.
    """
    spec = query.stream(Options(scale=1.0, span_us=intervals * INTERVAL_US))
    last = round(part * spec.rows)
    some = np.linspace(0, last, rows * intervals, endpoint=False).astype(np.int64)
    found = list[pa.RecordBatch]()
    for number, numbers in enumerate(some.reshape(intervals, rows)):
        times = np.asarray(times_of(number, rows).cast(pa.int64()))
        (batch,) = spec.columns(spec, numbers, times).combine_chunks().to_batches()
        found.append(batch)
    return found
