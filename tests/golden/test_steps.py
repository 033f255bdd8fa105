"""The driver's decisions on three short runs, as files: a change of a decision shows as a diff.

`make golden` writes them anew; read the diff before it is committed. A run is a script of batches:
tuples as (key, value, time in seconds), the clock, and wishes. A file says, batch by batch and per
operator, what the driver has told the tasks and what holds for the next batch.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from joinengine.driver import clock
from joinengine.driver.settings import Settings
from joinengine.exchange.task_results import ToOperator
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import Hash, Mnrt, choose
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.operators.base import QuerySpec
from joinengine.state.operator_state import Move, Rehome
from joinengine.state.wished import Relayout
from joinengine.world.memory import MemoryWorld
from tests.harness import LocalQuery, rows, two_way
from tests.unit.states import SECOND, chain, window

FOLDER = Path(__file__).parent / "steps"
HOT = [(0, n, 1.0) for n in range(40)]


@dataclass
class Script(MemoryWorld):
    """A world whose clock stands at `now`, seconds after the begin."""

    now: float = 0.0

    def now_s(self):
        return self.now

    timer_s = now_s


@dataclass
class Told(InlineJobs):
    """Runs the tasks, and notes what they were told."""

    orders: dict = field(default_factory=dict)

    def run(self, operator, tasks):
        self.orders[operator.index] = [
            {
                "hosts": task.header.hosted,
                "watermark": moment(task.header.watermark),
                "runs": sum(map(len, task.stored.runs.values())),
                "moves": len(task.stored.moves.pulls) + len(task.stored.moves.drops),
                "rehomes": task.stored.rehoming is not None,
                "facts": {name: moment(one) for name, one in task.facts.items()},
                "to the next operator": isinstance(task.header.target, ToOperator),
            }
            for task in tasks
        ]
        return super().run(operator, tasks)


@dataclass(frozen=True)
class Batch:
    """Tuples per source, the clock, and a wish; a source of `ended` brings its end."""

    sources: dict
    now: float
    wish: Relayout | None = None
    ended: tuple[int, ...] = ()


def moment(value):
    """Seconds of event time, as JSON has it."""
    return (
        str(value) if math.isinf(value) else round(value / SECOND, 3) if abs(value) > 1e4 else value
    )


def pending(layouts):
    match layouts.pending:
        case None:
            return None
        case Rehome():
            return "rehome"
        case Move(moves=moves):
            return {"pulls": len(moves.pulls), "drops": len(moves.drops)}


def held(state):
    clocks = [moment(side.newest) for side in state.clock.sides]
    layouts = state.layouts
    return {
        "layout": f"{layouts.newest.choice.label} on {layouts.newest.layout.instances}",
        "placed": len(layouts.newest.layout.table.placements),
        "versions": layouts.live_versions,
        "pending": pending(layouts),
        "newest": clocks,
        "watermark": moment(state.clock.watermark),
        "closed": moment(state.clock.closed),
        "held back": state.clock.held_back,
        "rows": {shelf: state.shelves.live_rows(shelf) for shelf in sorted(state.shelves.runs)},
        "late": state.late_rows,
    }


def frame(batch):
    sides = {0: Side.LEFT, 1: Side.RIGHT, 2: Side.RIGHT}
    tuples = []
    for source, some in batch.sources.items():
        timed = [(k, v, None if t is None else int(t * SECOND)) for k, v, t in some]
        tuples.append((source, rows(sides[source], timed)))
    return [tuples + [(source, math.inf) for source in batch.ended]]


def decisions(query, batches, layout, settings):
    """One entry a batch."""
    world = Script()
    jobs = Told(world=world)
    ran = LocalQuery("/run", query, layout.name, choice=layout, jobs=jobs, settings=settings)
    found = []
    for number, batch in enumerate(batches):
        world.now = batch.now
        entry = {}
        if batch.wish is not None:
            try:
                ran.runner.relayout(batch.wish)
            except InvalidRequest as refusal:
                entry["refused"] = str(refusal)
        jobs.orders = {}
        ran.run(number, frame(batch))
        record, manifest = ran.records[-1], ran.runner.manifest
        due = clock.tick_due(query, manifest, world.now)
        entry |= {
            "tasks": [jobs.orders.get(n, []) for n in range(len(query.operators))],
            "results": record.output_rows,
            "expired": [one.state.expired_rows for one in record.joins],
            "reasons": [one.reason and str(one.reason) for one in record.joins],
            "next": [held(state) for state in manifest.operators],
            "due": due,
        }
        found.append(entry)
    return found


def hot_key():
    """A key is split; a wish is refused, another is granted; the last instance fills and grows."""
    ours = [
        Batch({0: HOT, 1: HOT[:10]}, 1),
        Batch({0: HOT, 1: [(k, k, 2.0) for k in range(8)]}, 2, Relayout(instances=0)),
        Batch({0: [(1, 1, 3.0)], 1: []}, 3, Relayout(choice=choose("dynamic"))),
        Batch({0: [], 1: [(0, 5, 4.0)]}, 4, Relayout(choice=Hash(), instances=3)),
        Batch({0: [(k, k, 5.0) for k in range(400)], 1: []}, 5),
        Batch({0: [], 1: [(0, 6, 30.0)]}, 6),
    ]
    nervous = Mnrt(imbalance=0.0, min_gain=0.0, intervals=1)
    return two_way(window(), instances=2), ours, nervous, Settings(capacity=160)


def idle_side():
    """An outer join whose right side is silent: it becomes idle, comes back late, and ends."""
    query = two_way(window(upper="5 s", idle_after="60 s"), instances=2, how="full")
    ours = [
        Batch({0: [(1, 1, 10.0)], 1: [(2, 2, 8.0)]}, 0),
        Batch({0: [(1, 3, 50.0)], 1: []}, 30),
        Batch({0: [(3, 4, 60.0)], 1: []}, 61),
        Batch({0: [], 1: [(3, 5, 20.0), (3, 6, 61.0), (3, 7, None)]}, 62),
        Batch({0: [], 1: []}, 63, ended=(0, 1)),
        Batch({0: [], 1: []}, 64),
    ]
    return query, ours, Hash(), Settings()


def two_joins():
    """A chain behind an outer join: the second join is a batch behind, and ticks let it end."""
    ours = [
        Batch({0: [(1, 1, 1.0)], 1: [(1, 2, 2.0)], 2: [(1, 3, 3.0)]}, 0),
        Batch({0: [(2, 4, 20.0)], 1: [(2, 5, 20.0)], 2: [(2, 6, 21.0)]}, 1),
        Batch({0: [(2, 7, 40.0)], 1: [(4, 8, 40.0)], 2: [(2, 9, 40.0)]}, 2, Relayout(instances=3)),
        Batch({}, 3),
        Batch({}, 4, ended=(0, 1, 2)),
        Batch({}, 5),
    ]
    query = chain(how="right")
    both = tuple(replace(one, instances=2) for one in query.operators)
    return QuerySpec(both, query.sources), ours, Hash(), Settings(lazy=True)


RUNS = {run.__name__: run for run in (hot_key, idle_side, two_joins)}


@pytest.mark.parametrize("name", RUNS)
def test_decisions_are_the_filed_ones(name):
    found = json.loads(json.dumps(decisions(*RUNS[name]())))
    path = FOLDER / f"{name}.json"
    if os.environ.get("JOINENGINE_WRITE_GOLDEN"):
        lines = ",\n".join(json.dumps(one) for one in found)
        path.write_text(f"[\n{lines}\n]\n")
    assert found == json.loads(path.read_text())
    assert sum(one["results"] for one in found) > 0
