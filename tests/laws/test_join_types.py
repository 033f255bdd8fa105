"""Every join type, window and layout against SQL's meaning, in any batches."""

from __future__ import annotations

import math
import random
import tempfile
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.api.column_checks import JOIN_TYPES
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import LAYOUTS
from joinengine.model.conditions import band, equi
from joinengine.model.windows import INT_MAX, sliding, tumbling, within
from joinengine.operators.join import watchers
from tests.harness import LocalQuery, two_way
from tests.laws.cases import (
    CHOICES,
    DISORDERED,
    EACH_ROUTER,
    HOT,
    HOT_AMONG_OTHERS,
    bounds,
    enough,
    everything,
    feed,
    filters,
    joined,
    kills,
    let_in,
    memories,
    on_time,
    relaxed,
    schedules,
    streams,
    ways,
)

#: Later than any disorder of the streams: no row is late.
DELAY = "400 us"

intervals = bounds.map(lambda ends: within("lt", "rt", lower=ends[0], upper=ends[1], delay=DELAY))
slidings = st.builds(
    lambda size, slide: sliding("lt", "rt", f"{size} us", f"{slide} us", delay=DELAY),
    st.sampled_from([1, 50, 130]),
    st.sampled_from([20, 50, 130, 200, INT_MAX]),
)
tumblings = st.builds(
    lambda size: tumbling("lt", "rt", f"{size} us", delay=DELAY),
    st.sampled_from([1, 90, 400, INT_MAX]),
)


def watermark_of(batches, window):
    """The least of the newest times of both sides, less the delay; NULL keys and filters or not."""
    times = [[row[2] for row in rows if row[2] is not None] for rows in everything(batches)]
    newest = [max(some, default=-math.inf) for some in times]
    return min(newest) - window.delays_us[0]


@pytest.mark.usefixtures("acting")
@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@example(
    batches=HOT_AMONG_OTHERS,
    window=within("lt", "rt", lower="-200 us", upper="200 us", delay=DELAY),
    how="left",
    asked=(None, None),
    lazy=False,
    schedule={},
    kills={(1, "joined")},
    twice=True,
    way=DISORDERED,
)
@example(
    batches=HOT,
    window=within("lt", "rt", lower="-200 us", upper="200 us", delay=DELAY),
    how="full",
    asked=(None, None),
    lazy=False,
    schedule={},
    kills={(1, "joined")},
    twice=True,
    way=DISORDERED,
)
@given(
    batches=streams(),
    window=intervals | slidings | tumblings,
    how=st.sampled_from(JOIN_TYPES),
    asked=filters,
    lazy=st.booleans(),
    schedule=st.just({}) | schedules,
    kills=kills,
    twice=st.booleans(),
    way=ways,
)
def test_every_join_type(layout, batches, window, how, asked, lazy, schedule, kills, twice, way):
    """Whatever the layout does between a tuple's arrival and its eviction."""
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(window, enough(layout, 4), how=how, filters=asked),
            layout,
            choice=CHOICES[layout],
            jobs=InlineJobs(twice=twice, **way),
            settings=Settings(schedule=schedule, lazy=lazy),
        )
        feed(query, batches, kills)
        assert query.state.clock.watermark == watermark_of(batches, window)
        query.finish(len(batches))
        assert query.output() == joined(*everything(let_in(batches, asked)), window, how)
        assert query.state.shelves.is_empty
        assert query.state.late_rows == 0


@pytest.mark.parametrize("how", JOIN_TYPES)
@relaxed
@given(
    batches=streams(),
    window=intervals | slidings | tumblings,
    layout=st.sampled_from(list(LAYOUTS)),
    on=st.sampled_from([band("lk", "rk", lower=-1, upper=2), equi("lk", "rk")]),
    where=st.sampled_from([None, "(lv + rv) % 3 > 0"]),
    settings=st.builds(
        Settings,
        schedule=st.just({}) | schedules,
        lazy=st.booleans(),
        memory_per_task=memories,
    ),
    kills=kills,
    twice=st.booleans(),
    way=ways,
)
def test_every_join_type_of_a_band_with_a_predicate(
    how, batches, window, layout, on, where, settings, kills, twice, way
):
    def matches(a, b):
        alike = a[0] == b[0] if on == equi("lk", "rk") else -1 <= b[0] - a[0] <= 2
        return alike and (where is None or (a[1] + b[1]) % 3 > 0)

    with tempfile.TemporaryDirectory() as folder:
        plan = two_way(window, enough(layout, 4), on=on, where=where, how=how)
        jobs = InlineJobs(twice=twice, **way)
        query = LocalQuery(
            folder, plan, layout, choice=CHOICES[layout], jobs=jobs, settings=settings
        )
        feed(query, batches, kills)
        query.finish(len(batches))
        assert query.output() == joined(*everything(batches), window, how, matches)
        assert query.state.shelves.is_empty


#: What an interval with one bound serves: a tuple that never leaves is never known unmatched.
OPEN_TYPES = {"lower": ["inner", "right"], "upper": ["inner", "left", "left_semi", "left_anti"]}


@pytest.mark.usefixtures("acting")
@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@example(
    batches=HOT_AMONG_OTHERS,
    kind=("upper", "left_anti"),
    bound=0,
    late=False,
    schedule={},
    kills={(1, "joined")},
)
@example(
    batches=HOT,
    kind=("upper", "left_anti"),
    bound=0,
    late=False,
    schedule={},
    kills={(1, "joined")},
)
@given(
    batches=streams(),
    kind=st.sampled_from([(bound, how) for bound, types in OPEN_TYPES.items() for how in types]),
    bound=st.sampled_from([-120, 0, 70]),
    late=st.booleans(),
    schedule=st.just({}) | schedules,
    kills=kills,
)
def test_an_interval_open_on_one_side(layout, batches, kind, bound, late, schedule, kills):
    """Late rows are left out; the side that ends leaves, the other one stays until the end."""
    name, how = kind
    delay = "0 us" if late else DELAY
    window = within("lt", "rt", **{name: f"{bound} us"}, delay=delay)
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(window, enough(layout, 4), how=how),
            layout,
            choice=CHOICES[layout],
            settings=Settings(schedule=schedule),
        )
        feed(query, batches, kills)
        in_time = on_time(batches, window.delays_us) if late else batches
        stays = window.endless
        kept = [row for row in everything(in_time)[stays] if row[0] is not None]
        held = sum(run.live for run in query.state.shelves.state.values() if run.side is stays)
        assert held >= sum(row[2] is not None for row in kept)
        query.finish(len(batches))
        assert query.output() == joined(*everything(in_time), window, how)
        assert query.state.shelves.is_empty


@relaxed
@given(batches=streams(), layout=st.sampled_from(list(LAYOUTS)))
def test_a_semi_join_over_the_full_history(batches, layout):
    with tempfile.TemporaryDirectory() as folder:
        plan = two_way(None, enough(layout, 4), how="left_semi")
        query = LocalQuery(folder, plan, layout, choice=CHOICES[layout])
        feed(query, batches)
        query.finish(len(batches))
        assert query.output() == joined(*everything(batches), None, "left_semi")


def test_a_semi_join_over_the_full_history_lets_go_of_what_has_matched(tmp_path):
    """Rows that have matched wait for nothing, and their marks say nothing more."""
    query, many = LocalQuery(tmp_path, two_way(None, 2, how="left_semi"), "hash"), 25
    for batch in range(many):
        query.run_tuples(
            batch, [(n, batch, 0) for n in range(4)], [(n, batch, 0) for n in range(3)]
        )
        held = {shelf: query.state.shelves.live_rows(shelf) for shelf in ("pending", "seen")}
        assert held["pending"] <= batch + 1 + 60  # those of key 3, and some that have matched
        assert held["seen"] <= 60
    query.finish(many)
    assert query.output() == Counter((n, batch, 0) for n in range(3) for batch in range(many))


@pytest.mark.parametrize(("upper", "most"), [("0 us", 1.8), ("20000 us", 2.2)])
def test_rows_that_leave_early_do_not_stay_in_the_files_of_others(upper, most, tmp_path):
    """Under uneven bounds, each side has its own files: one more of a task and batch."""
    window = within("lt", "rt", lower="-20000 us", upper=upper, delay="0 us")
    query = LocalQuery(tmp_path, two_way(window, 1), "hash", jobs=InlineJobs(parallelism=1))
    for batch in range(30):
        some = [(n, batch, 1000 * batch + n) for n in range(400)]
        query.run_tuples(batch, some, some, map_tasks=1)
    shelves = query.state.shelves
    named = sum(stored.size_bytes for stored in shelves.files.values())
    assert named < most * shelves.size_bytes
    sides = [{run.side for run in shelves.state.values() if run.file == f} for f in shelves.files]
    assert max(map(len, sides)) == (1 if upper == "0 us" else 2)


@pytest.mark.parametrize("how", ["left", "full", "left_anti"])
@pytest.mark.parametrize("tail", ["NULL keys", "filtered", "late by a NULL key"])
def test_a_tail_that_matches_nothing_moves_the_watermark(how, tail, tmp_path):
    """Unmatched tuples come out although no more tuple that may match arrives."""
    window = tumbling("lt", "rt", "4 us", delay="0 us")
    query = LocalQuery(tmp_path, two_way(window, 2, how=how, filters=("lv < 9", "rv < 9")), "mnrt")
    query.run_tuples(0, [(1, 1, 0)], [(2, 2, 0)])
    key, value = (5, 9) if tail == "filtered" else (None, 3)
    query.run_tuples(1, [(key, value, 10**6)], [(key, value, 10**6)])
    if tail == "late by a NULL key":
        query.run_tuples(2, [(7, 1, 10**6 - 1)], [(None, 3, 10**6 - 1)])
        assert query.state.late_rows >= 1
    query.run_tuples(3 if tail[0] == "l" else 2, [], [])
    found = query.output()
    assert (1, 1, 0) in {row[:3] for row in found}
    assert query.state.clock.watermark == 10**6


@pytest.mark.parametrize("how", [how for how in JOIN_TYPES if how != "inner"])
@pytest.mark.parametrize("slides", [False, True])
def test_marks_are_united_a_few_at_a_time(tmp_path, monkeypatch, how, slides):
    """However many rows match in a batch, so that a task keeps to its memory."""
    most, united = 60, []
    monkeypatch.setattr(watchers, "MARKS", most)
    unite = watchers._united

    def watched(marks):
        united.append(sum(len(numbers) for numbers, _ in marks))
        return unite(marks)

    monkeypatch.setattr(watchers, "_united", watched)
    interval = within("lt", "rt", lower="-400 us", upper="400 us", delay="0 s")
    window = sliding("lt", "rt", "400 us", "200 us", delay="0 s") if slides else interval
    query = LocalQuery(tmp_path, two_way(window, 2, how=how), "hash")
    rng = random.Random(3)
    batches = [
        [
            [(rng.randrange(99), 1000 * batch + i, 200 * batch + i) for i in range(200)]
            for _ in range(2)
        ]
        for batch in range(4)
    ]
    feed(query, batches)
    query.finish(len(batches))
    assert query.output() == joined(*everything(batches), window, how)
    assert max(united) < 4 * most  # with those that one call adds; all of a batch are six times
