"""`make bench-scale`: what the driver's part of a batch costs as instances, tasks and keys grow.

The driver is the engine's own; the tasks are simulated (`benchmarks.scale.tasks`), so nothing but
the driver's work is measured: processor time, medians over batches. Layout mnrt, one join within an
interval of WINDOW batches.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.scale.tasks import SimulatedJobs
from joinengine.api import columns
from joinengine.driver.batch import BatchRunner
from joinengine.driver.settings import Settings
from joinengine.driver.sinks import DiscardSink
from joinengine.layouts import Mnrt
from joinengine.layouts.key_based import KeyBased
from joinengine.model.conditions import equi
from joinengine.model.keys import HASH_BITS, U_ONE, Fragment, Mode, Placement
from joinengine.model.query import FromSource, JoinType
from joinengine.model.windows import within
from joinengine.operators import Join
from joinengine.operators.base import QuerySpec
from joinengine.reporting.reports import made_by
from joinengine.routing.table import RoutingTable
from joinengine.state import manifest as manifests
from joinengine.state.checkpoint import Checkpoint

#: Instances, tasks, keys in the routing table.
CASES = (
    *((8, 2, 1000), (64, 16, 10_000)),
    *((512, 128, 100_000), (1024, 128, 100_000), (1024, 1024, 100_000), (4096, 1024, 100_000)),
)
#: Length of the window, in batches.
WINDOW = 24
PARTS = ("instructions", "reports", "plan", "commit", "other", "whole")
console = Console(soft_wrap=True, width=200)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/scale"))
@click.option("--batches", default=8, show_default=True, help="Batches that are measured.")
@click.option("--warm", default=WINDOW + 8, show_default=True, help="Batches before these.")
@click.option("--cases", default="", help="Only these: INSTANCES:TASKS:KEYS,..")
def main(out: Path, batches: int, warm: int, cases: str) -> None:
    """Run batches, and write table and JSON."""
    wanted = [tuple(map(int, case.split(":"))) for case in cases.split(",") if case] or CASES
    rows = list[dict[str, Any]]()
    for instances, tasks, keys in wanted:
        rows.append(_measure(instances, tasks, keys, warm, batches))
        last = rows[-1]
        console.print(
            f"{instances} instances, {tasks} tasks, {keys:,} keys: "
            f"{last['whole_s']:.3f} s a batch, {last['replan_s']:.3f} s with a re-plan"
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / "scale.json").write_text(json.dumps({"batches": rows, "made_by": made_by()}, indent=1))
    console.print(_table(rows))
    console.print(f"report: {out / 'scale.json'}")


def _query(instances: int) -> QuerySpec:
    time_ = pa.timestamp("us", "UTC")
    schemas = tuple(
        pa.schema([(f"{side}k", pa.int64()), (f"{side}v", pa.int64()), (f"{side}t", time_)])
        for side in "lr"
    )
    on, window = equi("lk", "rk"), within("lt", "rt", lower="0 s", upper=f"{WINDOW} s", delay="0 s")
    left, right = schemas
    join = Join(
        index=0,
        condition=on,
        window=window,
        how=JoinType.INNER,
        inputs=(FromSource(0), FromSource(1)),
        schemas=(left, right),
        output=columns.output_columns((left, right), on, None, JoinType.INNER, window),
        instances=instances,
    )
    return QuerySpec((join,), ("left", "right"))


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


def _with_table(runner: BatchRunner, keys: int) -> None:
    """Go on as if earlier re-plans had made a table of `keys` keys."""
    (state,) = runner.manifest.operators
    newest = state.layouts.newest
    assert isinstance(newest.layout, KeyBased)
    layout = replace(newest.layout, table=_listed(newest.layout, keys))
    layouts = replace(state.layouts, newest=replace(newest, layout=layout))
    runner.manifest = replace(runner.manifest, operators=(replace(state, layouts=layouts),))


@contextmanager
def _runner(instances: int, tasks: int, keys: int) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        jobs = SimulatedJobs(tasks, instances)
        checkpoint = Checkpoint.below(folder)
        checkpoint.create()
        settings = Settings()
        choice = Mnrt(imbalance=0.2)
        runner = BatchRunner(
            jobs, _query(instances), [choice], checkpoint, "q", DiscardSink(), settings
        )
        runner.recover()
        _with_table(runner, keys)
        yield runner, jobs, checkpoint


def _measure(instances: int, tasks: int, keys: int, warm: int, batches: int) -> dict[str, Any]:
    with _runner(instances, tasks, keys) as (runner, jobs, checkpoint):
        spent = [_batch(runner, jobs, checkpoint, number) for number in range(warm + batches)]
        quiet = spent[warm:]
        plans = list[dict[str, float]]()
        for number in range(warm + batches, warm + batches + 4):
            jobs.hot = {number % instances: 40.0}
            plans.append(_batch(runner, jobs, checkpoint, number))
        jobs.hot = {}
        tracemalloc.start()
        _batch(runner, jobs, checkpoint, warm + batches + 4)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        (state,) = runner.manifest.operators
    changes = [one for one in quiet if not one["full"]] or quiet
    found: dict[str, Any] = {
        "instances": instances,
        "tasks": tasks,
        "keys": keys,
        "runs": len(state.shelves.state),
        "files": len(state.shelves.files),
        "peak_bytes": peak,
        "full_s": max((one["commit_s"] for one in spent if one["full"]), default=None),
        "full_bytes": max(one["manifest_bytes"] for one in spent),
        "replan_s": statistics.median(one["whole_s"] for one in plans if one["replans"]),
        "replans": sum(one["replans"] for one in plans),
    }
    names = [f"{part}_s" for part in PARTS]
    for name in [*names, "instructions_bytes", "reports_bytes", "manifest_bytes"]:
        found[name] = statistics.median(one[name] for one in changes)
    return found


def _batch(
    runner: BatchRunner, jobs: SimulatedJobs, checkpoint: Checkpoint, number: int
) -> dict[str, float]:
    """Seconds of the processor and bytes of one batch, without what the tasks have done."""
    jobs.seconds.clear()
    jobs.sizes.clear()
    records = list[Any]()
    runner._observers[:] = [records.append]
    start = time.process_time()
    with _parts(runner, jobs):
        runner(None, number)
    whole = time.process_time() - start - jobs.seconds["outside"]
    written = checkpoint.manifests.get(manifests.name_of(number))
    told = {f"{part}_s": jobs.seconds[part] for part in PARTS[:-2]}
    told |= {f"{name}_bytes": jobs.sizes[name] for name in ("instructions", "reports")}
    told |= {"whole_s": whole, "other_s": whole - sum(jobs.seconds[part] for part in PARTS[:-2])}
    told |= {"manifest_bytes": len(written), "full": runner.manifest.is_full}
    (join,) = records[0].joins
    return told | {"replans": join.reason is not None}


@contextmanager
def _parts(runner: BatchRunner, jobs: SimulatedJobs) -> Any:
    """Charge the time of a batch to the parts that the driver's own clock tells."""
    timed = BatchRunner._timed
    names = {"plan_s": "plan", "commit_s": "commit", "clean_s": "commit"}

    @contextmanager
    def both(self: BatchRunner, record: Any, step: str) -> Any:
        start = time.process_time()
        with timed(self, record, step):
            yield
        if step in names:
            jobs.seconds[names[step]] += time.process_time() - start

    BatchRunner._timed = both  # type: ignore[method-assign]
    try:
        yield
    finally:
        BatchRunner._timed = timed  # type: ignore[method-assign]


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        title="seconds of the driver's processor time for a batch", box=None, title_justify="left"
    )
    heads = ("instances", "tasks", "keys", "runs", *PARTS, "re-plan", "full")
    for name in (*heads, "told MB", "heard MB", "manifest KB", "full MB", "peak MB"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            *(f"{row[name]:,}" for name in heads[:4]),
            *(f"{row[f'{part}_s']:.3f}" for part in PARTS),
            f"{row['replan_s']:.3f}",
            f"{row['full_s']:.3f}" if row["full_s"] is not None else "",
            f"{row['instructions_bytes'] / 1e6:.1f}",
            f"{row['reports_bytes'] / 1e6:.1f}",
            f"{row['manifest_bytes'] / 1e3:.0f}",
            f"{row['full_bytes'] / 1e6:.1f}",
            f"{row['peak_bytes'] / 1e6:.0f}",
        )
    return table


if __name__ == "__main__":
    main()
