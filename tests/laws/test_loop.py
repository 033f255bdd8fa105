"""The engine's own loop: any cut of a stream gives its results, and triggers end where they say."""

from __future__ import annotations

import datetime as dt
import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine import StreamJoin, equi, latest
from joinengine.driver.loop import Loop, Trigger
from joinengine.driver.settings import Settings
from joinengine.model.errors import DamagedState, JoinEngineError
from joinengine.model.windows import within
from joinengine.sources.readings import Reading as Columns
from joinengine.spark.sources.inputs import Stream
from joinengine.state import manifests
from tests.harness import LEFT, RIGHT, Killed, LocalQuery, two_way
from tests.laws.cases import joined, relaxed
from tests.laws.growing import SIDES, WINDOW, Clock, Growing, Reading, loop_of

ALL = {0: 12, 1: 12}


def started(how="inner", jobs=None, settings=None, window=WINDOW):
    jobs = jobs or Reading(world=Clock())
    spec = two_way(window=window, how=how, instances=2)
    return LocalQuery("/nowhere/query", spec, "hash", jobs=jobs, settings=settings)


def expected(how="inner"):
    return joined(*SIDES, WINDOW, how)


def test_what_a_loop_has_opened_is_closed_though_something_fails():
    query, closed = started(), list[str]()

    class Broken(Growing):
        def close(self):
            closed.append("feed")
            raise OSError("no answer")

    query.runner.delivery.sink.close = lambda: closed.append("sink")
    with pytest.raises(OSError, match="no answer"):
        loop_of(query, feeds={side: Broken(cuts=[9]) for side in (0, 1)}).run()
    assert closed == ["feed", "feed", "sink"]


@relaxed
@given(
    how=st.sampled_from(["inner", "full", "left_anti"]),
    cuts=st.tuples(*[st.lists(st.integers(0, 7), max_size=6)] * 2),
    killed=st.sets(st.integers(1, 30), max_size=4),
)
def test_any_cut_with_kills_between_gives_the_results(how, cuts, killed):
    query, steps = started(how), iter(range(1, 10_000))

    def step(name):
        if next(steps) in killed:
            raise Killed

    query.jobs.step = step
    feeds = {side: Growing(cuts=[cut + 1 for cut in cuts[side]]) for side in (0, 1)}
    query.runner.delivery.sink.step = step
    while True:
        try:
            loop_of(query, feeds=feeds).run()
            break
        except Killed:
            again(query)
    query.runner.finish()
    assert query.runner.position == ALL
    assert query.output() == expected(how) != {}


def again(query):
    """Start, perhaps several times: a start that is killed is made again."""
    while True:
        try:
            return query.restart()
        except Killed:
            continue


def test_a_trigger_that_ends_goes_no_further_than_what_was_there():
    query = started()
    feed = Growing(there=7, cuts=[3] * 9)
    feed.grow = lambda feed: setattr(feed, "there", 12)
    loop = loop_of(query, feeds={0: feed, 1: Growing(there=12, cuts=[2] * 9)})
    feed.grow(feed)
    feed.there, feed.grow = 7, lambda feed: None
    real = query.runner.run

    def run(end, handed=None):
        real(end)
        feed.there = 12  # a file comes while a batch runs

    query.runner.run = run
    loop.run()
    assert query.runner.position == {0: 7, 1: 12}
    assert feed.looks == 1
    loop_of(query, feeds={0: feed, 1: Growing()}).run()
    assert query.runner.position == ALL
    assert query.output() == expected() != {}


def test_a_batch_that_another_driver_has_committed_may_go_further():
    older, world = started(), None
    world = older.world
    newer = started(jobs=Reading(world=world))
    real = newer.runner._commit

    def late(draft):
        newer.runner._commit = real
        older.runner.check_alone = lambda: None
        with pytest.raises(JoinEngineError, match="another driver"):
            older.runner.run({0: 12, 1: 9})
        return real(draft)

    newer.runner._commit = late
    loop_of(newer, feeds={0: Growing(4, logged=12), 1: Growing(4, logged=12)}).run()
    assert newer.runner.position == {0: 12, 1: 9}
    loop_of(newer).run()
    assert newer.runner.position == ALL
    assert newer.output() == expected() != {}


def test_once_is_one_batch_and_nothing_is_none():
    query = started()
    loop_of(query, Trigger(once=True)).run()
    assert [record.batch for record in query.records] == [0]
    assert query.runner.position == {0: 5, 1: 5}
    nothing = started(jobs=Reading(world=Clock()))
    loop_of(nothing, Trigger(once=True), feeds={0: Growing(0), 1: Growing(0)}).run()
    assert nothing.records == []


def test_batches_start_at_multiples_of_the_interval():
    query = started()
    query.world.now = 1_003.0
    began, real = [], query.runner.run

    def run(end, handed=None):
        began.append(query.world.now)
        query.world.now += 1 if len(began) == 1 else 12  # seconds that a batch takes
        real(end)

    query.runner.run = run
    stop = lambda: query.runner.position == ALL and query.world.now > 1_045  # noqa: E731
    loop_of(query, Trigger(every_s=10.0), stop=stop).run()
    assert began[:3] == [1_003.0, 1_010.0, 1_022.0]  # the third one is late, and not waited for


def test_a_clock_that_is_set_back_does_not_stop_a_query():
    query = started()
    query.world.now, rests, real = 1_000_000.0, [], query.runner.run

    def run(end, handed=None):
        real(end)
        query.world.set_s -= 0.0 if any(rests) else 3600.0

    def stop():
        return query.runner.position == ALL

    query.runner.run = run
    loop = loop_of(query, Trigger(every_s=10.0), stop=stop)
    rest = loop._rest
    loop._rest = lambda seconds: rests.append(seconds) or rest(seconds)
    loop.run()
    assert 0 < max(rests) <= 10.0


def one_sided(query):
    """Feeds of which the right one falls silent, and the left one half a minute later."""

    def grow(feed):
        feed.there = 11 if query.world.now > begin + 30 else 6

    begin = query.world.now
    return {0: Growing(there=6, grow=grow), 1: Growing(there=3)}


SILENT = within("lt", "rt", lower="-1 us", upper="1 us", delay="0 us", idle_after="60 s")


def test_an_idle_side_is_waited_for_as_long_as_it_may_be_silent():
    query = started("left", window=SILENT)
    begin = query.world.now
    loop = loop_of(query, Trigger(), one_sided(query), lambda: query.world.now > begin + 300)
    loop.run()
    quiet = [record for record in query.records if not record.input_rows]
    assert quiet[0].started - begin == pytest.approx(60, abs=1)
    assert sum(join.state.expired_rows for record in quiet for join in record.joins) > 0
    assert len(quiet) < 10 < len(loop.rests)


@pytest.mark.parametrize(
    ("set_s", "at_s", "is_busy"),
    [(3600, 10, False), (3600, 12, True), (-3600, 12, True), (-3600, 60, False), (3600, 60, False)],
)
def test_a_clock_that_is_set_makes_no_side_idle_or_awake(set_s, at_s, is_busy):
    """The right side is silent for 30 s, of 60, then again. `is_busy`: it is set in a batch."""
    query = started("left", window=SILENT)
    query.world.now = begin = 1_000_000.0

    def step(busy):
        if query.world.now >= begin + at_s and busy is is_busy:
            query.world.set_s = set_s

    def grow(feed, **there):
        step(busy=False)
        feed.there = max(there[at] for at in there if query.world.now - begin >= int(at[1:]))

    query.jobs.fails = lambda start: step(busy=True)
    feeds = {
        0: Growing(6, grow=partial(grow, s0=6, s12=9, s50=11)),
        1: Growing(3, grow=partial(grow, s0=3, s30=6)),
    }
    loop_of(query, Trigger(), feeds, lambda: query.world.now > begin + 85).run()
    assert query.runner.manifest.operators[0].clock.watermark == 50
    loop_of(query, Trigger(), feeds, lambda: query.world.now > begin + 95).run()
    assert query.runner.manifest.operators[0].clock.watermark == 100


def test_a_tick_does_not_wait_for_the_next_look():
    query = started("left", window=SILENT)
    begin = query.world.now
    stop = lambda: query.world.now > begin + 200  # noqa: E731
    loop = loop_of(query, Trigger(), one_sided(query), stop, rest_s=100.0)
    loop.run()
    (first, *_) = [record for record in query.records if not record.input_rows]
    assert first.started - begin == pytest.approx(60, abs=1)


@pytest.mark.parametrize(("finite", "due_s"), [(True, 70), (False, 100)])
def test_silence_while_no_driver_ran_counts_in_a_run_that_reads_all_there_is(finite, due_s):
    """In any other the sources may have rested since the last batch, 30 s after the begin."""
    query = started("left", window=SILENT)
    feeds, begin = one_sided(query), query.world.now
    loop_of(query, Trigger(), feeds, stop=lambda: query.world.now > begin + 40).run()
    assert all(record.input_rows for record in query.records)
    query.world.now = begin + 70
    query.settings = replace(query.settings, finite=finite)
    query.restart()
    query.records.clear()
    loop_of(query, Trigger(), feeds, stop=lambda: query.world.now > begin + due_s - 2).run()
    assert query.records == []
    loop_of(query, Trigger(), feeds, stop=lambda: query.world.now > begin + due_s + 2).run()
    assert [record.input_rows for record in query.records] == [0, 0]
    assert sum(record.joins[0].state.expired_rows for record in query.records) > 0


def test_a_tick_that_is_due_at_once_stays_so_if_the_clock_is_set_back():
    """Outer results leave by ticks: a run must not end before them."""
    query = started("left")

    def set_back():
        if query.runner.position == ALL:
            query.world.set_s = -990.0
        return False

    loop_of(query, stop=set_back).run()
    assert query.output() == expected("left") != {}
    assert any(record.input_rows == 0 for record in query.records)


def test_whoever_waits_for_all_is_told_by_a_look_that_began_later():
    query, feed = started(), Growing(there=5)
    stopping, told = threading.Event(), threading.Event()
    loop = Loop(
        query.runner, {0: feed, 1: Growing(0)}, Trigger(), query.world, stopping.wait, 0.001
    )
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.process_all()
    assert query.runner.position == {0: 5, 1: 0}
    feed.there = 12
    loop.process_all()
    assert query.runner.position == {0: 12, 1: 0}
    waiter = threading.Thread(target=lambda: (loop.process_all(), told.set()))
    feed.grow = lambda feed: stopping.wait(5)  # the look that is to answer takes long
    waiter.start()
    stopping.set()
    thread.join(10)
    waiter.join(10)
    assert told.is_set() and loop.has_ended
    loop.process_all()  # nobody will answer any more


def test_logs_are_put_in_order_after_a_batch_of_its_own_alone():
    """Until then an older driver may commit what it has read of them."""
    older = started()
    newer, feed = started(jobs=Reading(world=older.world)), Growing(cuts=[12, 12])
    real, tidied = newer.runner._commit, []
    feed.tidy = lambda: tidied.append(newer.runner.manifest.generation)

    def late(draft):
        newer.runner._commit = real
        older.runner.check_alone = lambda: None
        with pytest.raises(JoinEngineError, match="another driver"):
            older.runner.run({0: 5, 1: 5})
        return real(draft)

    newer.runner._commit = late
    loop_of(newer, feeds={0: feed, 1: Growing()}).run()
    assert older.runner.generation < newer.runner.generation
    assert tidied
    assert set(tidied) == {newer.runner.generation}


def test_feeds_are_closed_however_the_loop_ends():
    def fail(start):
        raise JoinEngineError("the disk is full")

    for fails in (lambda start: None, fail):
        feeds = {0: Growing(), 1: Growing()}
        for feed in feeds.values():
            feed.close = partial(setattr, feed, "there", -1)
        with pytest.raises(JoinEngineError) if fails is fail else nullcontext():
            loop_of(started(jobs=Reading(world=Clock(), fails=fails)), feeds=feeds).run()
        assert [feed.there for feed in feeds.values()] == [-1, -1]


def test_an_error_ends_the_loop_and_frees_who_waits():
    def fail(start):
        if start:
            raise JoinEngineError("the disk is full")

    query = started(jobs=Reading(world=Clock(), fails=fail))
    loop = loop_of(query)
    with pytest.raises(JoinEngineError, match="the disk is full"):
        loop.run()
    assert loop.has_ended and not loop.is_busy
    loop.process_all()
    assert manifests.newest(query.checkpoint.manifests).position == {0: 5, 1: 5}
    query.jobs.fails = lambda start: None
    loop_of(query).run()
    assert query.output() == expected() != {}


def test_a_position_beyond_what_is_known_is_refused():
    query = started()
    loop_of(query).run()
    manifest = query.runner.manifest
    with pytest.raises(DamagedState, match="the log is too short"):
        loop_of(query, feeds={0: Growing(), 1: Growing(there=7)}).run()
    assert query.runner.manifest == manifest


def test_what_is_held_back_is_shown_by_a_quiet_batch():
    query = started(settings=Settings(finite=True))
    query.compact = (4, 1 << 20)
    query.restart()
    loop_of(query).run()
    assert query.output() == expected() != {}


@relaxed
@given(
    starts=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    until=st.integers(0, 110),
    killed=st.sets(st.integers(1, 20), max_size=3),
)
def test_left_tuples_wait_for_a_time_of_the_right_side(starts, until, killed):
    """However much of it is there at each start, and whoever is killed meanwhile."""
    moment = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=until)
    left, right = (
        Stream(None, {"kind": "recorded", "path": str(side)}, Columns(schema))
        for side, schema in ((0, LEFT), (1, RIGHT))
    )
    versions = latest(right, key="rk", order_by="rt", until=moment)
    plan = StreamJoin(left, versions, on=equi("lk", "rk"), how="left", layout="hash", instances=2)
    told = {"choices": [plan._choice], "jobs": Reading(world=Clock())}
    query, steps = LocalQuery("/nowhere/query", plan.query(), "hash", **told), iter(range(1, 10**4))

    def step(name):
        if next(steps) in killed:
            raise Killed

    query.jobs.step = step
    for there in [*sorted(starts), 12]:
        query.runner.delivery.sink.step = step
        while True:
            try:
                loop_of(query, feeds={0: Growing(), 1: Growing(there=there)}).run()
                break
            except Killed:
                again(query)
        come = [row[2] for row in SIDES[1][:there]]
        has_read = query.runner.position.get(0, 0) > 0
        assert has_read == (come[-1] >= until)
    met = [row[5] for row in query.output() if row[5] is not None]
    assert max(met) >= until
