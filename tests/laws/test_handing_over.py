"""Micro-batches of Spark's are a source of the loop: each is in one batch, whoever repeats what."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.driver.loop import HandsOver, Loop, Over, Trigger
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.errors import CheckpointMismatch, JoinEngineError
from joinengine.model.keys import Side
from joinengine.state import manifests
from joinengine.state.manifest import Handed
from tests.harness import LocalQuery, rows, two_way
from tests.laws.cases import joined, relaxed
from tests.laws.growing import SIDES, Clock, Growing

ENDS = Trigger(finite=True)
LEFT, RIGHT = SIDES


@dataclass
class Mixed(InlineJobs):
    """The left side has positions; a frame is tuples of the right one."""

    def route(self, frame, plan, start, end):
        left = LEFT[start.get(0, 0) : end.get(0, 0)]
        return super().route(
            [[(0, rows(Side.LEFT, left)), (1, rows(Side.RIGHT, frame or []))]], plan, start, end
        )


@dataclass
class Fake(HandsOver):
    """Hands over `batches` one after the other, by `go_on`; `more`: whether it says so before."""

    batches: list
    more: bool = True
    number: int = 0
    error: Exception | None = None
    taken: list = field(default_factory=list)

    def has_more(self):
        return self.more and bool(self.batches)

    def has_ended(self):
        if self.error is not None:
            raise self.error
        return not self.batches

    def go_on(self, loop):
        if self.batches:
            loop.take(self.batches[0], handed(self.number))
            self.taken.append(self.batches.pop(0))
            self.number += 1


def handed(number, crc="c", query="q"):
    return Handed(query, number, f"{crc}{number}")


def started(world=None):
    jobs = Mixed(world=world or Clock())
    return LocalQuery("/nowhere/query", two_way(None, 2), "hash", jobs=jobs)


def loop_of(query, spark, trigger=ENDS, feed=None, steps=lambda: True):
    """`steps()`: whether the streaming query goes on while the loop rests."""

    def rest(seconds):
        query.world.sleep(seconds)
        if steps():
            spark.go_on(loop)
        return query.world.now > 1_100.0

    loop = Loop(query.runner, {0: feed or Growing()}, trigger, query.world, rest, 0.5, spark)
    return loop


def ended(query):
    """All results, by definition, of what was handed over and read."""
    assert query.output() == joined(LEFT, RIGHT, None, "inner") != {}


@relaxed
@given(
    cuts=st.lists(st.integers(1, 7), max_size=6),
    sizes=st.lists(st.integers(0, 5), max_size=5),
    steps=st.lists(st.booleans(), max_size=20),
    more=st.booleans(),
)
def test_any_cut_of_both_gives_the_results(cuts, sizes, steps, more):
    """Also of nothing, and whenever the streaming query has its turns."""
    query = started()
    ends = [0, *(min(sum(sizes[: n + 1]), 12) for n in range(len(sizes))), 12]
    batches = [RIGHT[a:b] for a, b in pairwise(ends)]
    spark = Fake(list(batches), more=more)
    loop_of(query, spark, feed=Growing(cuts=cuts), steps=lambda: not steps or steps.pop()).run()
    ended(query)
    assert spark.taken == batches
    held = [one.handed for one in query.records if one.handed is not None]
    assert held == list(range(len(batches)))
    assert query.runner.manifest.handed == handed(len(batches) - 1)


def test_a_batch_of_feeds_waits_for_data_that_spark_has_found():
    """Else its side could be taken for idle; then they go together."""
    query = started()
    spark, turns = Fake([RIGHT]), iter([False] * 6 + [True] * 50)
    loop_of(query, spark, feed=Growing(cuts=[12] * 30), steps=lambda: next(turns)).run()
    assert [(one.input_rows, one.handed) for one in query.records][:1] == [(24, 0)]
    ended(query)


def test_once_is_one_batch_of_both():
    query, spark = started(), Fake([RIGHT])
    turns = iter([False] * 3 + [True] * 50)
    feed = Growing(cuts=[12] * 9)
    loop_of(query, spark, Trigger(once=True), feed, lambda: next(turns)).run()
    assert [(one.input_rows, one.handed) for one in query.records] == [(24, 0)]
    alone, nothing = started(), Fake([])
    loop_of(alone, nothing, Trigger(once=True), Growing(cuts=[12] * 9)).run()
    assert [(one.input_rows, one.handed) for one in alone.records] == [(12, None)]


def test_a_micro_batch_that_is_repeated_is_answered():
    query = started()
    for _ in range(3):
        query.runner.take(RIGHT[:6], handed(0), lambda: {0: 12})
    assert query.runner.manifest.batch == 0
    query.restart()
    query.runner.take(RIGHT[:6], handed(0), lambda: {0: 12})
    query.runner.take(RIGHT[6:], handed(1), lambda: {0: 12})
    assert query.runner.manifest.batch == 1
    ended(query)


def test_a_batch_is_delivered_once_and_again_when_it_is_repeated():
    """A function of the user's would see twice what is delivered twice."""
    query, delivered = started(), []
    real = query.runner._deliver
    query.runner._deliver = lambda **how: (
        delivered.append(query.runner.manifest.batch),
        real(**how),
    )
    for number in range(2):
        query.runner.take(RIGHT[6 * number :][:6], handed(number), lambda: {0: 12})
    assert delivered == [0, 1]
    query.runner.take(RIGHT[6:], handed(1), lambda: {0: 12})
    assert delivered == [0, 1, 1]
    ended(query)


@pytest.mark.parametrize(
    "wrong",
    [handed(0), handed(3), handed(1, "another"), handed(2, query="another")],
    ids=["older", "left out", "another of this number", "of another folder"],
)
def test_a_micro_batch_that_does_not_follow_is_refused(wrong):
    query = started()
    for number in range(2):
        query.runner.take(RIGHT[6 * number :][:6], handed(number), lambda: {0: 12})
    before = query.runner.manifest
    with pytest.raises(CheckpointMismatch, match=r"of Spark does not follow micro-batch 1"):
        query.runner.take([], wrong, lambda: {0: 12})
    assert manifests.newest(query.checkpoint.manifests).nonce == before.nonce
    fresh = started()
    with pytest.raises(CheckpointMismatch, match="does not follow no micro-batch"):
        fresh.runner.take([], handed(1), lambda: {0: 12})


def test_a_checkpoint_before_micro_batches_were_noted_has_them_by_its_own_numbers():
    """Before format 9 Spark's numbers were those of batches, and nobody noted what was in them."""
    old = Handed("", 4, "")
    assert handed(4).is_replay_of(old)
    assert handed(5).follows(old)
    assert not handed(4).follows(old)
    assert not handed(5).is_replay_of(old)


@pytest.mark.parametrize("holds", [False, True], ids=["of feeds", "with the same micro-batch"])
def test_an_older_driver_may_be_first_to_commit_the_batch(holds):
    """What it has committed may hold the micro-batch, or not: then it comes in the next one."""
    older = started()
    newer = started(older.world)
    real = newer.runner._commit

    def late(draft):
        newer.runner._commit = real
        older.runner.check_alone = lambda: None
        with pytest.raises(JoinEngineError, match="another driver"):
            if holds:
                older.runner.take(RIGHT, handed(0), lambda: {0: 5})
            else:
                older.runner.run({0: 5})
        return real(draft)

    newer.runner._commit = late
    newer.runner.take(RIGHT, handed(0), lambda: {0: 12})
    assert newer.runner.manifest.handed == handed(0)
    assert newer.runner.manifest.batch == (0 if holds else 1)
    newer.runner.run({0: 12}, handed(0))
    ended(newer)


def test_the_micro_batch_comes_first_and_none_behind_the_end():
    """It waits for the batch that runs, and the loop's next one for it."""
    query, spark = started(), Fake([RIGHT], more=False)
    spark.go_on = lambda loop: None
    loop = loop_of(query, spark, Trigger(), Growing(cuts=[3] * 9))
    real, threads = query.runner.run, []

    def take():
        loop.take(spark.batches[0], handed(0))
        spark.batches.clear()

    def run(end, handed=None):
        if not threads:
            threads.append(threading.Thread(target=take))
            threads[0].start()
            while not loop._is_offered:
                pass
            assert not any(one.handed == 0 for one in query.records)
        real(end, handed)

    query.runner.run = run
    loop.run()
    threads[0].join(10)
    assert [one.handed for one in query.records][:2] == [None, 0]
    with pytest.raises(Over, match="has ended"):
        loop.take(RIGHT, handed(1))


def test_what_ends_the_streaming_query_ends_the_loop():
    query, spark = started(), Fake([RIGHT], error=JoinEngineError("Kafka is gone"))
    with pytest.raises(JoinEngineError, match="Kafka is gone"):
        loop_of(query, spark, Trigger()).run()
    somebody_has_stopped_it = Fake([])
    loop = loop_of(query, somebody_has_stopped_it, Trigger())
    loop.run()
    assert loop.has_ended
    assert query.world.now < 1_100.0
