"""Fang et al., World Wide Web 2019, figures 10 and 11: joins whose instances fail, on a cluster.

Each instance has a machine (benchmarks.papers.cluster), and a tuple that it joins costs it WORK_S.
The paper runs an aggregation, TopK. FTLB keeps copies of the tuples of joins here, so these figures
run a join: on the left the paper's skewed and fluctuating keys, on the right a few even ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, islice, repeat
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.papers.cluster import Cluster, seconds_of
from benchmarks.papers.figure import Points
from joinengine.driver.settings import Settings
from joinengine.kernels.hashing import hash_columns
from joinengine.lab.emulation.emulating import Emulation
from joinengine.lab.emulation.slow_operator import Work
from joinengine.lab.inline.inline_runs import Frame, run_on
from joinengine.lab.inline.two_way import LEFT, RIGHT, Input, two_way
from joinengine.lab.simulation.workload import Workload
from joinengine.layouts import Ftlb, LayoutChoice
from joinengine.model.conditions import equi
from joinengine.model.recovery import Recovery
from joinengine.model.speeds import Speed
from joinengine.model.windows import Window
from joinengine.routing.base_functions import Modulo

INSTANCES, WORK_S = 8, 400e-6
#: What storing a backup costs, as a part of joining a tuple: joinengine's default.
BACKUP_PART = 0.5
#: Batches that are run and not counted: loads are not yet known.
WARM_BATCHES = 3
#: Storm waits 30 s until it sends a tuple again, three of the paper's intervals of 10 s.
TIMEOUT_BATCHES = 3


@dataclass(frozen=True)
class Setting:
    """How a stream is joined. `losses`: batch -> the instances that lose their state before it.

    `way`: what takes the place of lost state. `timeout_s`: how long a loss is not noticed;
    `resends`: whether the tuples of the lost state are sent again then.
    `costs`: whether backups cost BACKUP_PART of a tuple's work. `instances`: without standbys, each
    of which has a machine of its own.
    """

    choice: LayoutChoice
    window: Window | None = None
    losses: Mapping[int, Sequence[int]] = field(default_factory=dict)
    way: Recovery = Recovery.REPLICAS
    timeout_s: float = 0.0
    resends: bool = False
    costs: bool = True
    instances: int = INSTANCES


@dataclass(frozen=True)
class Ran:
    """A run: seconds and tuples of each batch, batches of losses, results and their checksum."""

    seconds: Sequence[float]
    tuples: Sequence[int]
    losses: Sequence[int]
    results: tuple[int, int]

    @property
    def rows_per_s(self) -> float:
        """Tuples a second over the counted batches."""
        return sum(self.tuples[WARM_BATCHES:]) / sum(self.seconds[WARM_BATCHES:])

    def recovered_s(self, whole: Ran) -> float:
        """How much longer a batch takes if an instance is lost before it: the mean of all losses.

        `whole`: the same run without losses.
        """
        return fmean(self.seconds[batch] - whole.seconds[batch] for batch in self.losses)

    def over_time(self) -> tuple[Points, Points]:
        """Over seconds: tuples a second, and how long a batch's tuples wait for their results."""
        ends = np.cumsum(self.seconds)
        rates = np.array(self.tuples) / np.array(self.seconds)
        return (ends.tolist(), rates.tolist()), (ends.tolist(), list(self.seconds))


def run(frames: Sequence[Frame], setting: Setting) -> Ran:
    """Join the frames as a setting says."""
    choice = setting.choice
    standbys = isinstance(choice, Ftlb) and choice.standby
    cluster = Cluster(
        setting.instances * (1 + standbys),
        backed_s=BACKUP_PART * WORK_S * setting.costs,
        timeout_s=setting.timeout_s,
        resent_s=WORK_S * setting.resends,
    )
    # From some store state is back at once: what is left of a loss is the time-out.
    store = Speed(bytes_per_s=1e18, latency_s=0.0) if setting.timeout_s else Speed()
    speed = store if setting.way is Recovery.STORE else None
    trial = Emulation(Work(WORK_S), setting.losses, speed)
    query = two_way(
        (Input(LEFT), Input(RIGHT)), equi("lk", "rk"), setting.window, setting.instances
    )
    asked = Settings(trial=trial, recovery=setting.way, checksum=True)
    records = run_on(cluster, query, [choice], frames, asked)
    return Ran(
        seconds_of(records),
        [record.input_rows for record in records],
        [record.batch for record in records if record.joins[0].lost.instances],
        (
            sum(record.output_rows for record in records),
            sum(record.checksum for record in records) % (1 << 64),
        ),
    )


def rates(runs: Sequence[Ran]) -> float:
    """The mean of some runs' tuples a second."""
    return fmean(one.rows_per_s for one in runs)


def fatal_pairs(choice: Ftlb) -> tuple[int, int]:
    """How many pairs of instances hold all copies of a key between them, and how many there are."""
    rows = {frozenset(row) for row in choice.start(INSTANCES).base.roles.tolist()}
    pairs = [frozenset(pair) for pair in combinations(range(INSTANCES), 2)]
    return sum(pair in rows for pair in pairs), len(pairs)


# Figure 10: loads that fluctuate

ROWS, RIGHT_ROWS, KEYS, BATCHES, STEADY = 10_000, 200, 10_000, 18, 5
#: Batch -> the instances that lose their state before it.
LOSSES = {7: (1,), 13: (4,)}
#: What a level batch takes, TIMEOUT_BATCHES times.
TIMEOUT_S = TIMEOUT_BATCHES * (ROWS + RIGHT_ROWS) / INSTANCES * WORK_S


def skewed(zipf: float, fluctuation: float, seed: int) -> list[Frame]:
    """A left side whose loads are skewed and change every STEADY batches, by `fluctuation` means.

    On the right even keys.
    """
    load = Workload(keys=KEYS, zipf=zipf, fluctuation=fluctuation, seed=seed)
    # As the engine hashes numbers, so that it is the loads of its instances that fluctuate.
    numbers = np.argsort(hash_columns([pa.array(np.arange(KEYS))]))
    rng = np.random.default_rng(seed)
    steady = (repeat(one, STEADY) for _, one in load.intervals(Modulo(INSTANCES)))
    frames = list[Frame]()
    for loads in islice(chain.from_iterable(steady), BATCHES):
        left = rng.choice(numbers, ROWS, p=loads / loads.sum())
        frames.append(frame((left, rng.integers(0, KEYS, RIGHT_ROWS))))
    return frames


# Figure 11: state of a given age

RATE, BATCH_MINUTES, STATE_BATCHES = 40, 3, 25


def uniform(seed: int) -> Iterator[Frame]:
    """RATE tuples a second of event time on each side, of keys that are all alike."""
    rng = np.random.default_rng(seed)
    rows, span_us = RATE * 60 * BATCH_MINUTES, BATCH_MINUTES * 60_000_000
    for number in range(STATE_BATCHES):
        at = 1_700_000_000_000_000 + number * span_us + np.arange(rows) * span_us // rows
        yield frame((rng.integers(0, 200_000, rows), rng.integers(0, 200_000, rows)), at)


def frame(keys: tuple[Any, Any], at: Any = None) -> Frame:
    """A frame of both sides: keys, the same as payloads, and microseconds `at`, or no times."""
    return [
        pa.RecordBatch.from_arrays(
            [
                pa.array(one),
                pa.array(one),
                pa.nulls(len(one), schema.field(2).type)
                if at is None
                else pa.array(at).cast(schema.field(2).type),
            ],
            schema=schema,
        )
        for one, schema in zip(keys, (LEFT, RIGHT), strict=True)
    ]
