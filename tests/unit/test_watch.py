"""What a run has done is handed on to those who follow it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from joinengine.driver.records import BatchRecord
from joinengine.reporting.server import Place
from joinengine.spark.live import place_at
from joinengine.spark.watch import Watch


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
    assert caplog.messages == ["joinengine: batch 0 could not be told"]


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
