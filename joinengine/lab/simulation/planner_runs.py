"""Runs planners and candidate layouts one after another, each within a budget of time.

Each prints its result as it ends; one that uses up its budget is left out, and a line says so.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress

from joinengine.balancing.statistics import Ints
from joinengine.lab.simulation.advice import verdict
from joinengine.lab.simulation.candidate_layouts import Setting, play
from joinengine.lab.simulation.planning import Other, Served, Sizes, replay
from joinengine.lab.simulation.workload import KeyStream, drawn, sources_of
from joinengine.layouts.key_based import Hash, Planned
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.routing.base_functions import BASES

#: Layouts whose planners take long on many keys, and why: simulated only if they are named.
SLOW = {
    "mixed-bf": "makes one plan for each key of its table",
    "readj": "compares each heavy key with the keys of every other instance",
}


#: The greatest number of seconds that a timer takes.
_MOST_S = 1e8


class OutOfTime(Exception):
    """A planner has used up its budget."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in the block once it has run for `seconds`.

    Signals reach the main thread of a process alone: a block in another thread has no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    ended = False

    def stop(*_: Any) -> None:
        nonlocal ended
        ended = True
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, _MOST_S))
    try:
        yield
    except RuntimeError:
        if ended:  # DuckDB raises an error of its own when a statement is interrupted
            raise OutOfTime from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Simulated(NamedTuple):
    """The reports of planners; the names of those that used up their budget.

    `is_cut`: Ctrl-C has come before all were over.
    """

    reports: list[dict[str, Any]]
    stopped: list[str]
    is_cut: bool


def simulate_each(
    named: Sequence[tuple[str, Planned | Hash | None]],
    stream: KeyStream,
    sizes: Sizes,
    settings: dict[str, Any],
) -> Simulated:
    """Simulate all planners; each says its result as it ends, on standard error.

    After Ctrl-C, the result has those that have ended. Raises KeyboardInterrupt if none has.
    """
    budget_s = microseconds(settings["budget"], "budget") / 1e6
    if budget_s <= 0:
        raise InvalidRequest(
            f"budget: expected a duration above 0, such as 60 s, found {settings['budget']}"
        )
    reports, stopped = list[dict[str, Any]](), list[str]()
    with Progress(console=Console(stderr=True, soft_wrap=True), transient=True) as progress:
        task = progress.add_task("simulating", total=len(named))

        def say(text: str) -> None:
            progress.console.print(text, markup=False, highlight=False)

        for name, planner in named:
            progress.update(task, description=name)
            if name in SLOW:
                say(
                    f"{name} {SLOW[name]}, which may take minutes; its time limit is "
                    f"{budget_s:g} s (--budget)"
                )
            began = time.monotonic()
            try:
                with at_most(budget_s):
                    if planner is None:
                        report = _choose(name, stream, settings, sizes.work_s)
                    else:
                        report = replay(planner, stream, sizes)
            except KeyboardInterrupt:
                if not reports:
                    raise
                say(f"stopped on Ctrl-C after {len(reports)} of {len(named)} layouts")
                return Simulated(reports, stopped, is_cut=True)
            except OutOfTime:
                if name == "hash" and settings["stream"] is not None:
                    raise InvalidRequest(
                        f"budget: {settings['budget']} is too short even for hash, the baseline; "
                        f"give more"
                    ) from None
                stopped.append(name)
                say(f"{name}: stopped after {budget_s:g} s; a larger --budget lets it finish")
            else:
                reports.append(report)
                judged = verdict(report)
                say(
                    f"{name}: busiest {judged.busiest:.2f}, {judged.deliveries:.2f} instances per "
                    f"row ({time.monotonic() - began:.1f} s)"
                )
            progress.advance(task)
    return Simulated(reports, stopped, is_cut=False)


def _choose(
    name: str, stream: KeyStream, settings: dict[str, Any], work_s: float
) -> dict[str, Any]:
    total = stream.total(settings["intervals"])
    # Tuples of the stream and of the other stream, whose keys are even, take turns.
    beside = settings["other"] == Other.EVEN and settings["operator"] == Served.JOIN
    placed = min(-(-settings["messages"] // (1 + beside)), max(1, int(total)))
    parts = list(_drawn_each(stream, settings, placed / total, beside=beside))
    keys = np.concatenate(parts)
    setting = Setting(
        instances=settings["instances"],
        sources=settings["sources"],
        estimate=settings["estimate"],
        probe_every=settings["probe_every"],
        choices=settings["choices"],
        work_s=work_s,
        operator=settings["operator"],
    )
    by_key = settings["skewed_sources"]
    sources = sources_of(placed, setting.sources, by_key=by_key, seed=settings["seed"])
    ends = np.cumsum([len(part) for part in parts]).tolist()
    report = play(name, keys, np.repeat(sources, 1 + beside), setting, ends)
    return report | {"placed": placed, "stream_rows": total}


def _drawn_each(
    stream: KeyStream, settings: dict[str, Any], part: float, *, beside: bool
) -> Iterator[Ints]:
    """The keys of each interval that a candidate layout places: this part of its tuples.

    `beside`: after each tuple one of the other side, whose keys are even.
    """
    rng, came, placed = np.random.default_rng(settings["seed"]), 0.0, 0
    base = BASES[settings["base"] or Hash.base](settings["instances"])
    for hashes, counts in islice(stream.intervals(base), settings["intervals"]):
        came += float(counts.sum())
        size = round(came * part) - placed
        placed += size
        sides = [drawn(hashes, counts, size, rng)]
        if beside:
            sides.append(drawn(hashes, np.ones(len(hashes)), size, rng))
        yield np.column_stack(sides).ravel()
