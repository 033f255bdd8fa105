"""Measures the engine's own driver over simulated tasks: what it costs in a batch.

The query is one join within WINDOW batches; only the driver's work is measured, as processor time.
`joinengine simulate --nodes` and `make bench-scale` use this module.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from joinengine.driver.batch import BatchRunner
from joinengine.driver.settings import Settings
from joinengine.driver.stopwatch import Stopwatch
from joinengine.exchange.exchange import ExchangeKind
from joinengine.lab.inline.two_way import LEFT, RIGHT, Input, two_way
from joinengine.lab.simulation.simulated_tasks import SimulatedJobs
from joinengine.layouts.key_based import KeyBased
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.conditions import equi
from joinengine.model.keys import HASH_BITS, U_ONE, Fragment, Mode, Placement
from joinengine.model.windows import within
from joinengine.results.delivery import Delivery
from joinengine.results.sinks import DiscardSink
from joinengine.routing.table import RoutingTable
from joinengine.state import manifests
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Handed

#: Length of the window, in batches, unless one is given.
WINDOW = 24
#: The parts of the driver's time.
PARTS = ("instructions", "reports", "plan", "commit", "other", "whole")


@contextmanager
def driver_of(
    jobs: SimulatedJobs,
    choice: LayoutChoice,
    window: int = WINDOW,
    exchange: ExchangeKind = ExchangeKind.FILES,
) -> Iterator[SimulatedDriver]:
    """A driver of the join under a layout, with a checkpoint in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.below(folder)
        checkpoint.create()
        reach = within("lt", "rt", lower="0 s", upper=f"{window} s", delay="0 s")
        inputs = Input(LEFT), Input(RIGHT)
        runner = BatchRunner(
            jobs,
            two_way(inputs, equi("lk", "rk"), reach, jobs.instances),
            [choice],
            checkpoint,
            "q",
            Delivery(checkpoint, DiscardSink()),
            Settings(exchange=exchange),
        )
        runner.recover()
        yield SimulatedDriver(runner, jobs, checkpoint)


class SimulatedDriver:
    """A driver whose tasks are simulated."""

    def __init__(self, runner: BatchRunner, jobs: SimulatedJobs, checkpoint: Checkpoint) -> None:
        self.runner = runner
        self.jobs = jobs
        self._checkpoint = checkpoint

    @property
    def layout(self) -> KeyBased:
        """The newest layout of the join."""
        (state,) = self.runner.manifest.operators
        layout = state.layouts.newest.layout
        assert isinstance(layout, KeyBased)
        return layout

    def with_table(self, keys: int) -> None:
        """Go on as if earlier re-plans had made a table of `keys` keys."""
        (state,) = self.runner.manifest.operators
        newest = state.layouts.newest
        layout = replace(self.layout, table=_listed(self.layout, keys))
        layouts = replace(state.layouts, newest=replace(newest, layout=layout))
        operators = (replace(state, layouts=layouts),)
        self.runner.manifest = replace(self.runner.manifest, operators=operators)

    def batch(self, number: int) -> dict[str, Any]:
        """Seconds of the processor and bytes of one batch, without what the tasks have done."""
        jobs, runner = self.jobs, self.runner
        jobs.seconds.clear()
        jobs.sizes.clear()
        records = list[Any]()
        runner._observers[:] = [records.append]
        start = time.process_time()
        with _parts(jobs):
            runner.take(None, Handed("", number, ""), dict)
        whole = time.process_time() - start - jobs.seconds["outside"]
        written = self._checkpoint.manifests.get(manifests.name_of(number))
        figures = {f"{part}_s": jobs.seconds[part] for part in PARTS[:-2]}
        figures |= {f"{name}_bytes": jobs.sizes[name] for name in ("instructions", "reports")}
        known = sum(jobs.seconds[part] for part in PARTS[:-2])
        figures |= {"whole_s": whole, "other_s": whole - known}
        figures |= {"manifest_bytes": len(written), "full": runner.manifest.is_full}
        (join,) = records[0].joins
        figures |= {"replans": join.reason is not None, "moved_rows": join.moved.rows}
        return figures | {"received": join.work.received}


def _listed(layout: KeyBased, keys: int) -> RoutingTable:
    """A table of `keys` keys: one of a thousand is split in two, the others have moved."""
    rng = np.random.default_rng(1)
    n = layout.instances
    hashes = np.unique(rng.integers(1, 1 << HASH_BITS, keys, np.uint64))
    homes = layout.base.homes(hashes).tolist()
    half = U_ONE // 2
    placements = dict[int, Placement]()
    for number, (hash_, home) in enumerate(zip(hashes.tolist(), homes, strict=True)):
        other = (home + 1) % n
        if number % 1000:
            placements[hash_] = Placement.whole(other)
        else:
            parts = (Fragment(home, 0, half), Fragment(other, half, U_ONE))
            placements[hash_] = Placement(Mode.SPLIT, parts)
    return RoutingTable(placements)


@contextmanager
def _parts(jobs: SimulatedJobs) -> Any:
    """Charge the time of a batch to the parts that the driver's own clock tells."""
    timed = Stopwatch.timed
    names = {"plan_s": "plan", "commit_s": "commit", "clean_s": "commit"}

    @contextmanager
    def both(self: Stopwatch, step: str) -> Any:
        start = time.process_time()
        with timed(self, step):
            yield
        if step in names:
            jobs.seconds[names[step]] += time.process_time() - start

    Stopwatch.timed = both  # type: ignore[method-assign]
    try:
        yield
    finally:
        Stopwatch.timed = timed  # type: ignore[method-assign]
