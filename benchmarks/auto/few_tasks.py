"""`python -m benchmarks.auto.few_tasks`: `auto` beside `hash` where two tasks host 64 instances.

Streams as in `benchmarks.layouts.pairs`, run without Spark (`joinengine.lab.inline`), layouts in
turn. Figures are seconds of the processor, so that other programs hardly matter, and the least of
`--repeat` runs: all work; a *batch*, which is the busier task and all work outside tasks, added up
over the batches; and the busier task alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
import numpy as np
from rich.console import Console

from benchmarks.layouts.pairs import BATCH_S, NEAR, SKEWS, WINDOWS, Stream, batches
from joinengine import equi, within
from joinengine.lab.comparison.tables import figures_table
from joinengine.lab.inline import inline_runs
from joinengine.lab.inline.two_way import Input, two_way
from joinengine.layouts import choose

TASKS, INSTANCES = 2, 64
BASELINE = "hash"
_WHERE = f"l_value - r_value < {NEAR} and r_value - l_value < {NEAR}"


@click.command()
@click.option("--layouts", default="auto", show_default=True, help="Beside hash.")
@click.option("--repeat", default=3, show_default=True)
def main(layouts: str, repeat: int) -> None:
    """Print a line for each stream and layout."""
    titles = "z, window in batches", "layout", "all s", "of hash", "batch s", "of hash"
    table = figures_table((*titles, "busier task s", "of hash", "divided keys"))
    for stream in (Stream(zipf, window) for zipf in SKEWS for window in WINDOWS):
        names, least = (BASELINE, *layouts.split(",")), dict[str, np.ndarray]()
        frames, divided = batches(stream), dict[str, int]()
        _run(stream, frames, BASELINE)  # the first run pays for caches
        for name in names * repeat:
            seconds, divided[name] = _run(stream, frames, name)
            least[name] = np.minimum(least.get(name, np.inf), seconds)
        for name in names:
            pairs = zip(least[name], least[name] / least[BASELINE], strict=True)
            texts = [text for s, ratio in pairs for text in (f"{s:.2f}", f"{ratio:.2f}")]
            table.add_row(f"{stream.zipf:g}, {stream.window:g}", name, *texts, str(divided[name]))
    Console(width=120).print(table)


def _run(stream: Stream, frames: Sequence[inline_runs.Frame], name: str) -> tuple[list[float], int]:
    """The three figures of a run, and how many keys are divided at its end."""
    length = f"{int(stream.window * BATCH_S)} s"
    window = within("l_time", "r_time", lower=f"-{length}", upper=length, delay="1 s")
    inputs = Input(frames[0][0].schema), Input(frames[0][1].schema)
    condition = equi("l_key", "r_key")
    query = two_way(inputs, condition, window, INSTANCES, where=_WHERE)
    begin = time.process_time()
    on = inline_runs.On(inline_runs.OnProcessor(), TASKS)
    records = inline_runs.run(query, choose(name), frames, on=on)
    whole = time.process_time() - begin
    busy = [np.array(record.joins[0].work.busy_s) for record in records]
    tasks = np.array([np.bincount(np.arange(len(one)) % TASKS, one, TASKS) for one in busy])
    busier = float(tasks.max(axis=1).sum())
    return [whole, whole - float(tasks.sum()) + busier, busier], records[-1].joins[0].split_keys


if __name__ == "__main__":
    main()
