"""What a run has done is handed on to those who follow it."""

from __future__ import annotations

from joinengine.driver.records import BatchRecord
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
