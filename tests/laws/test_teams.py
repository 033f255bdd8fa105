"""What instances do together is what each would do alone: results, reports and state."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing.costs import Load
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.keys import Side
from joinengine.operators.join.teams import Arrivals
from joinengine.state.operator_state import STATE
from tests.harness import LocalQuery, two_way
from tests.laws.cases import (
    CHOICES,
    EACH_ROUTER,
    enough,
    everything,
    matched,
    relaxed,
    streams,
    windows,
)


@dataclass
class Telling(InlineJobs):
    """Keeps what the tasks of each batch tell of single instances and keys."""

    told: list = field(default_factory=list)

    def run(self, operator, tasks):
        reports = super().run(operator, tasks)
        self.told.append((counts_of(reports), keys_of(reports), hot_of(reports)))
        return reports


def counts_of(reports):
    return {
        instance: (one.received, one.stored, one.backed, one.probe_copies, one.results)
        for report in reports
        for instance, one in report.instances.items()
    }


def keys_of(reports):
    found = Counter()
    for report in reports:
        for keys in report.keys:
            found.update(zip(*(column.tolist() for column in keys[:5]), strict=True))
    return found


def hot_of(reports):
    return sorted((key.hash_, key.rows, key.text) for report in reports for key in report.hot)


def state_of(query):
    """How many tuples each instance holds, per side."""
    held = Counter()
    for run in query.state.shelves.on(STATE).values():
        held[run.instance, run.side] += run.live
    return held


#: Plans that follow measured seconds would differ from run to run.
PLANNED_ALIKE = Settings(load=Load.TUPLES)


def run_of(batches, layout, spec, *, settings=PLANNED_ALIKE, patches=()):
    """What a query tells of each batch, its state after it, and its results."""
    jobs, held = Telling(parallelism=2), []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for target, value in patches:
            stack.enter_context(patch(target, value))
        query = LocalQuery(
            folder, spec, layout, choice=CHOICES[layout], jobs=jobs, settings=settings
        )
        for number, (left, right) in enumerate(batches):
            query.run_tuples(number, left, right)
            held.append(state_of(query))
        query.finish(len(batches))
        return jobs.told, held, query.output()


ALONE = [("joinengine.operators.join.teams.TEAM_ROWS", 1)]
LARGE_PARTS = [("joinengine.kernels.seating._SMALL_PART", 0)]
FEW_MERGED = [
    ("joinengine.operators.join.join_task.MERGE_ROWS", 7),
    ("joinengine.operators.join.join_task.MERGE_PER_ROW", 0),
]
#: How many tuples are routed together does not follow from the memory: where a tuple of a split key
#: is stored depends on it.
ROUTED_WHOLE = [("joinengine.exchange.route.ROUTE_PART", 1e9)]
SEEM_SMALL = [("joinengine.operators.join.teams._row_bytes", lambda reader: 0.0)]


@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@given(
    batches=streams(max_rows=60),
    window=windows,
    how=st.sampled_from(["inner", "inner", "full", "left_semi"]),
    large=st.booleans(),
)
def test_a_team_does_what_its_instances_would_do_alone(layout, batches, window, how, large):
    spec = two_way(window, enough(layout, 7), how="inner" if window is None else how)
    together = run_of(batches, layout, spec, patches=LARGE_PARTS if large else ())
    assert together == run_of(batches, layout, spec, patches=ALONE)
    told, _, output = together
    assert sum(one[-1] for counts, *_ in told for one in counts.values()) == output.total()


@relaxed
@given(
    batches=streams(max_rows=60),
    window=windows,
    memory=st.sampled_from([400, 3000, 20_000]),
    larger=st.booleans(),
)
def test_little_memory_and_few_merges_change_no_result(batches, window, memory, larger):
    """Pieces of a team, and merges that stop in the middle of an instance.

    `larger`: tuples are larger than it seems when teams are made, so that a team is cut too.
    """
    tight = replace(PLANNED_ALIKE, memory_per_task=memory)
    spec = two_way(window, 7)
    patches = [*FEW_MERGED, *ROUTED_WHOLE, *(SEEM_SMALL if larger else ())]
    told, _, results = run_of(batches, "mnrt", spec, settings=tight, patches=patches)
    expected = run_of(batches, "mnrt", spec, patches=ALONE)
    assert ([counts for counts, *_ in told], results) == (
        [counts for counts, *_ in expected[0]],
        expected[2],
    )


def test_many_instances_of_which_most_are_empty(tmp_path):
    """A few keys over 300 instances, in batches until runs are merged."""
    query = LocalQuery(tmp_path, two_way(None, 300), "hash")
    batches = [
        ([(i % 40, 1000 * b + i, 0) for i in range(80)], [(i % 60, 1000 * b + i, 0)
         for i in range(90)]) for b in range(6)
    ]  # fmt: skip
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    assert query.output() == matched(*everything(batches), None)
    runs = list(query.state.shelves.on(STATE).values())
    assert len({run.instance for run in runs}) > 30
    assert len({run.file for run in runs}) < len(runs) / 4
    assert {run.group for run in runs if run.rows > 3}  # some were merged
    record = query.records[-1].joins[0]
    assert len(record.work.received) == 300
    assert sum(record.work.received) == 170


def test_instances_with_few_tuples_are_a_team(tmp_path, monkeypatch):
    """Those with many are by themselves, and so is each where keys have copies."""
    seen = []
    at = Arrivals.at

    def noted(self, team, side):
        if side is Side.LEFT:
            seen.append(team)
        return at(self, team, side)

    monkeypatch.setattr(Arrivals, "at", noted)
    monkeypatch.setattr("joinengine.operators.join.teams.TEAM_ROWS", 50)
    left = [(key, number, 0) for key in range(9) for number in range(70 if key == 4 else 3)]
    for layout, alone in (("hash", False), ("ftlb", True)):
        del seen[:]
        query = LocalQuery(tmp_path / layout, two_way(None, 8), layout)
        query.run_tuples(0, left, [])
        assert sorted(instance for team in seen for instance in team) == list(range(8))
        busiest = (
            query.records[-1]
            .joins[0]
            .work.received.index(max(query.records[-1].joins[0].work.received))
        )
        assert (busiest,) in seen
        assert (max(map(len, seen)) == 1) is alone
