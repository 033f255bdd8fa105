"""What a run has done is handed on to those who follow it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakSet

from joinengine.driver.hot_keys import Heat
from joinengine.driver.records import BatchRecord, OperatorRecord
from joinengine.reporting.server import Place
from joinengine.spark.query import live_page
from joinengine.spark.query import run_watch as watching
from joinengine.spark.query.live_page import place_at
from joinengine.spark.query.run_watch import Watch


def record(batch):
    return BatchRecord(batch, 0.0, {"elapsed_s": 0.0})


def test_who_follows_gets_each_record_once_and_in_order():
    """Also those of batches that end while older ones are handed on."""
    watch, early, late = Watch([]), [], []

    def slow(one):
        if one.batch < 3 and one.batch + 3 > len(watch.records) - 1:
            watch.note(record(len(watch.records)))
        early.append(one.batch)

    for batch in range(3):
        watch.note(record(batch))
    watch.follow(slow)
    watch.follow(late.append)
    watch.note(record(6))
    assert early == list(range(7))
    assert [one.batch for one in late] == early
    watch.unfollow(slow)
    watch.note(record(7))
    assert early == list(range(7))
    assert late[-1].batch == 7


def test_who_fails_to_take_a_record_does_not_fail_the_batch(caplog):
    """The others get it all the same."""
    watch, others = Watch([]), []

    def fails(one):
        raise ValueError("no")

    watch.follow(fails)
    watch.follow(others.append)
    watch.note(record(0))
    assert len(others) == 1
    assert caplog.messages == ["joinengine: batch 0 could not be reported"]


def test_a_story_is_made_once():
    """Also if two threads ask for it."""
    watch, made = Watch([]), []

    class Slow:
        def __init__(self):
            made.append(self)
            time.sleep(0.05)

        def add(self, one):
            """Takes anything."""

    with ThreadPoolExecutor(4) as pool:
        stories = list(pool.map(lambda _: watch.story(Slow), range(4)))
    assert len(made) == 1
    assert set(stories) == set(made)


def test_what_live_is_told_beats_what_the_options_say():
    """Also where it is the default of both."""
    open_to_all = Place(4050, "0.0.0.0", "t" * 16)
    assert place_at(None, None, None, open_to_all) == open_to_all
    assert place_at(0, "127.0.0.1", None, open_to_all) == Place(0, "127.0.0.1", "t" * 16)


def test_pages_that_are_gone_through_wait_for_one_that_is_opened(monkeypatch):
    """A set that grows meanwhile raises a RuntimeError."""
    held = []

    class Pages(WeakSet):
        def __iter__(self):
            held.append(live_page._opening.locked())
            return super().__iter__()

    monkeypatch.setattr(live_page, "_pages", Pages())
    live_page.page_at(Place()).close()
    assert held == [True]


def test_the_oldest_records_go_and_the_sums_stay(monkeypatch):
    """A run without end would fill the driver's memory; who follows late gets what is kept."""
    monkeypatch.setattr(watching, "KEPT", 5)
    monkeypatch.setattr(watching, "_DROPPED", 3)
    monkeypatch.setattr(watching, "_KEPT_HOT", 2)
    watch, early, late = Watch([]), [], []
    watch.follow(early.append)
    for batch in range(40):
        one = BatchRecord(batch, 0.0, {"elapsed_s": 0.5}, input_rows=2, output_rows=3)
        one.joins, one.handed = [OperatorRecord(1, heat=Heat(tuples=7.0))], batch
        watch._triggers[batch] = 0.5
        watch.note(one)
    assert 5 <= len(watch.records) < 5 + 3
    assert [one.batch for one in watch.records] == list(range(40 - len(watch.records), 40))
    assert [one.joins[0].heat.tuples for one in watch.records[-3:]] == [0.0, 7.0, 7.0]
    assert len(watch._triggers) < 5 + 2 * 3
    assert watch.done == (80, 40)
    assert "40 batches, 80 rows read, 4 rows/s, 120 results" in watch.line()
    assert len(early) == 40
    watch.follow(late.append)
    assert late == watch.records


def test_fewer_records_are_kept_of_many_instances(monkeypatch):
    monkeypatch.setattr(watching, "KEPT_INSTANCES", 60)
    monkeypatch.setattr(watching, "_DROPPED", 3)
    watch = Watch([])
    for batch in range(40):
        few = batch < 20
        watch.note(
            BatchRecord(batch, 0.0, {"elapsed_s": 0.5}, joins=[OperatorRecord(2 if few else 12)])
        )
        assert len(watch.records) < (30 if few else 5) + 3
    assert [one.batch for one in watch.records][-5:] == [35, 36, 37, 38, 39]
    assert "40 batches" in watch.line()


def test_records_that_go_while_older_ones_are_handed_on_are_told_to_their_follower(monkeypatch):
    monkeypatch.setattr(watching, "KEPT", 4)
    monkeypatch.setattr(watching, "_DROPPED", 2)
    watch, seen = Watch([]), []
    for batch in range(4):
        watch.note(record(batch))

    def slow(one):
        seen.append(one.batch)
        if one.batch == 3:
            for batch in range(4, 9):
                watch.note(record(batch))

    watch.follow(slow)
    assert [one.batch for one in watch.records] == [4, 5, 6, 7, 8]
    watch.note(record(9))
    assert seen == list(range(10))
