"""Results reach an outside system once, whoever is killed or asleep, and whatever it answers."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.errors import CheckpointMismatch, DamagedState, TakenOver
from joinengine.results.compaction import CompactingSink
from joinengine.results.sinks import DiscardSink
from joinengine.results.token_sinks import OutcomeUnknown, TokenSink
from joinengine.world.memory import MemoryWorld
from tests.harness import Killed, LocalQuery, two_way
from tests.laws.cases import joined, matched, relaxed, skewed_batches, streams, usable
from tests.laws.growing import SIDES, WINDOW, Clock, Reading, loop_of
from tests.reference.target import Outside, ReferenceTarget

STEPS = (
    *("routed", "joined", "opening", "opened"),
    *("reading the token", "committing", "delivered"),
)
NOWHERE = "/nowhere/query"
BATCHES = [(left[:24], right[:24]) for left, right in skewed_batches(9)]
SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 400)]
kills = st.sets(st.tuples(st.integers(0, 6), st.sampled_from(STEPS)), max_size=4)
outcomes = st.lists(st.sampled_from(["ok", "done", "lost"]), max_size=6)


class ToOutside(LocalQuery):
    """A query whose results go to `outside`, together for `every_s` seconds of its world."""

    def __init__(self, world, outside, every_s=0.0, outcomes=None, jobs=InlineJobs, window=None):
        self.outside, self.every_s, self.outcomes = outside, every_s, outcomes
        super().__init__(NOWHERE, two_way(window, 2), "hash", jobs=jobs(world=world))

    def _sink(self):
        def step(name):
            self.jobs.step(name)  # as it is then

        results = self.checkpoint.results
        self.target = ReferenceTarget(self.outside, results, step, self.outcomes)
        return TokenSink(self.checkpoint, self.target, self.every_s)


def later(world, seconds):
    """Let time pass in a world whose clock ticks 1024 times a second."""
    world.readings += int(1024 * seconds)


def feed(query, number, batch, killed, kills):
    """One batch, as Spark repeats it; a step of it that is in `kills` is the end, once."""

    def step(name):
        if (number, name) in kills - killed:
            killed.add((number, name))
            raise Killed

    alive = True
    while True:
        query.jobs.step = step
        try:
            if not alive:
                query.restart()
            return query.run_tuples(number, *batch)
        except Killed:
            alive = False


def go_on(query, most, pause_s=0.0):
    """Ask for batches as Spark does after a start: the last batch may come again."""
    first = max(query.runner.manifest.batch, 0)
    for number in range(first, min(first + most, len(BATCHES))):
        query.run_tuples(number, *BATCHES[number])
        later(query.world, pause_s)


@relaxed
@given(
    batches=streams(max_rows=12),
    kills=kills,
    every_s=st.sampled_from([0.0, 2.5]),
    outcomes=outcomes,
)
@example(batches=BATCHES, kills={(2, "delivered")}, every_s=0.0, outcomes=[])
@example(batches=BATCHES, kills={(2, "delivered")}, every_s=2.5, outcomes=["done", "lost"])
def test_each_result_is_delivered_once(batches, kills, every_s, outcomes):
    world, outside, killed = MemoryWorld(), Outside(), set()
    query = ToOutside(world, outside, every_s, outcomes)
    for number, batch in enumerate(batches):
        feed(query, number, batch, killed, kills)
        later(world, 1.0)
    query.jobs.step = lambda name: None
    query.runner.finish()
    assert outside.rows() == matched(*usable(batches, None), None)


@pytest.mark.parametrize("seed", [*range(20), *SLOW])
def test_a_driver_that_slept_delivers_nothing_twice(seed):
    """One driver sleeps at a step, others take over, go on for a while, and it wakes up."""
    rng, world, outside = random.Random(seed), MemoryWorld(), Outside()
    pauses = rng.choice([0.0, 1.0])
    tired, where = rng.randrange(1, 6), rng.choice(STEPS)
    most, asleep = rng.choice([0, 1, 2, 3, 9]), []

    def other():
        told = rng.choice([0.0, 0.0, 1.5, 2.5]), rng.choices(["ok", "done", "lost"], k=2)
        return ToOutside(world, outside, *told)

    def step(name):
        if name == where and not asleep and first.runner.manifest.batch >= tired - 1:
            asleep.append(name)
            go_on(other(), most, pauses)

    first = other()
    first.jobs.step = step
    with suppress(TakenOver):
        go_on(first, len(BATCHES), pauses)
    last = other()
    go_on(last, len(BATCHES), pauses)
    last.runner.finish()
    assert outside.rows() == matched(*usable(BATCHES, None), None)


ONCE = ["open", "close"]


@pytest.mark.parametrize(
    ("every_s", "outcomes", "error", "turns"),
    [
        (0.0, [], None, ONCE),
        (1e6, [], None, ONCE),  # by what delivers at the end what is held back
        (0.0, ["ok", "lost"], None, 2 * ONCE),
        (0.0, ["ok", "away"], OSError, ONCE),
        (0.0, ["lost"] * 4, OutcomeUnknown, 4 * ONCE),
    ],
)
def test_a_query_that_ends_closes_what_it_has_opened(every_s, outcomes, error, turns):
    outside = Outside()
    query = ToOutside(Clock(), outside, every_s, outcomes, Reading, WINDOW)
    loop = loop_of(query)
    if error is not None:
        with pytest.raises(error):
            loop.run()
    else:
        loop.run()
        query.runner.finish()
        assert outside.rows() == joined(*SIDES, WINDOW, "inner")
    assert query.target.turns == turns


def test_a_target_that_cannot_be_opened_or_closed_harms_nothing():
    world, outside = MemoryWorld(), Outside()
    query = ToOutside(world, outside)

    def away(*args):
        query.target.turns.append("failed")
        raise OSError("away")

    query.target.open = away
    with pytest.raises(OSError, match="away"):
        query.run_tuples(0, *BATCHES[0])
    assert query.target.turns == ["failed", "close"]
    query.restart()
    query.target.close = away
    go_on(query, len(BATCHES))
    query.runner.delivery.sink.close()
    query.runner.delivery.sink.close()
    assert query.target.turns == ["open", "failed"]
    assert outside.rows() == matched(*usable(BATCHES, None), None)


@pytest.mark.parametrize("every_s", [0.0, 2.5])
def test_a_late_driver_that_opens_the_target_stops_and_the_newer_one_goes_on(every_s):
    """The newer driver is shut out in the middle of a delivery, opens again, and delivers."""
    world, outside = MemoryWorld(), Outside()
    first = ToOutside(world, outside, every_s)
    first.run_tuples(0, *BATCHES[0])
    second, late = ToOutside(world, outside, every_s), []

    def step(name):
        if name == "committing" and not late:
            late.append(name)
            first.target.open(first.runner.generation)

    second.jobs.step = step
    go_on(second, len(BATCHES), 1.0)
    second.runner.finish()
    assert late
    assert outside.rows() == matched(*usable(BATCHES, None), None)
    with pytest.raises(TakenOver):
        first.runner.delivery.sink.deliver(0, [None], first.runner.generation)


@pytest.mark.parametrize("every_s", [0.0, 2.5])
def test_a_checkpoint_that_is_older_than_its_target_is_refused(every_s):
    """Its next batches would be taken for those that are delivered, and lost."""
    world, outside = MemoryWorld(), Outside()
    query = ToOutside(world, outside, every_s)
    query.run_tuples(0, *BATCHES[0])
    query.runner.finish()
    copy = dict(world.files)
    query.run_tuples(1, *BATCHES[1])
    query.runner.finish()
    newest = dict(world.files)
    world.files.clear()
    world.files.update(copy)
    with pytest.raises(
        DamagedState, match=r"outside holds results .* up to batch 1, .* of batch 0"
    ):
        query.restart()
    world.files.clear()
    world.files.update(newest)
    query.restart()
    go_on(query, len(BATCHES))
    query.runner.finish()
    assert outside.rows() == matched(*usable(BATCHES, None), None)


def test_what_a_part_of_a_target_has_is_beyond_a_checkpoint_too(monkeypatch):
    """One of several writers has delivered a batch that the checkpoint does not know."""
    query = ToOutside(MemoryWorld(), Outside())
    query.run_tuples(0, *BATCHES[0])
    monkeypatch.setattr(ReferenceTarget, "furthest", lambda target: 1)
    with pytest.raises(DamagedState, match=r"up to batch 1, and the newest .* of batch 0"):
        query.restart()


def test_a_target_that_is_away_loses_nothing():
    world, outside = MemoryWorld(), Outside()
    query = ToOutside(world, outside, outcomes=["ok", "away"])
    query.run_tuples(0, *BATCHES[0])
    with pytest.raises(OSError, match="away"):
        query.run_tuples(1, *BATCHES[1])
    assert [through for through, _ in outside.commits] == [0]
    query.restart()
    go_on(query, len(BATCHES))
    assert outside.rows() == matched(*usable(BATCHES, None), None)


def test_an_outcome_that_stays_unknown_ends_the_query():
    query = ToOutside(MemoryWorld(), Outside(), outcomes=["lost"] * 4)
    with pytest.raises(OutcomeUnknown):
        query.run_tuples(0, *BATCHES[0])


def test_results_are_committed_together_by_the_clock():
    world, outside = MemoryWorld(), Outside()
    query = ToOutside(world, outside, every_s=2.5)
    for number in range(6):
        later(world, 1.0)
        query.run_tuples(number, *BATCHES[number])
    assert [through for through, _ in outside.commits] == [2, 5]
    query.run_tuples(6, *BATCHES[6])
    due_in = query.runner.tick_due(world.now_s()) - world.now_s()
    assert due_in == pytest.approx(2.5, abs=0.5)
    later(world, 2.5)
    query.run_tuples(7, [], [])  # the tick
    assert [through for through, _ in outside.commits] == [2, 5, 7]
    assert not query.checkpoint.results.names()
    assert query.runner.tick_due(world.now_s()) is None
    assert outside.rows() == matched(*usable(BATCHES[:7], None), None)


def test_a_batch_without_results_makes_no_commit():
    world, outside = MemoryWorld(), Outside()
    query = ToOutside(world, outside)
    query.run_tuples(0, *BATCHES[0])
    query.run_tuples(1, [], [])
    assert [through for through, _ in outside.commits] == [0]


def test_another_sink_may_follow_once_all_is_delivered():
    world, outside = MemoryWorld(), Outside()
    query = ToOutside(world, outside, every_s=99.0)
    query.run_tuples(0, *BATCHES[0])
    held = (*query.runner.manifest.held, (0, query.runner.manifest.results))
    with pytest.raises(CheckpointMismatch, match="holds back results of the batches 0 to 0"):
        DiscardSink().check_held(held, query.checkpoint)
    query.runner.finish()
    DiscardSink().check_held(held, query.checkpoint)
    assert outside.rows() == matched(*usable(BATCHES[:1], None), None)


def test_a_folder_does_not_take_over_results_that_wait_for_a_commit():
    """A showing of theirs, whose files the folder does not have, would hide them for good."""
    world, outside = MemoryWorld(), Outside()
    query = ToOutside(world, outside, every_s=99.0)
    query.run_tuples(0, *BATCHES[0])
    query.run_tuples(1, [], [])
    held = (*query.runner.manifest.held, (1, query.runner.manifest.results))
    folder = CompactingSink(world.storage(f"{NOWHERE}/elsewhere"), "q")
    with pytest.raises(CheckpointMismatch, match="holds back results of the batches 0 to 0"):
        folder.check_held(held, query.checkpoint)
    query.runner.finish()
    assert outside.rows() == matched(*usable(BATCHES[:1], None), None)
    folder.check_held(held, query.checkpoint)


def test_results_that_another_sink_holds_back_are_not_taken_for_its_own():
    world = MemoryWorld()
    held = LocalQuery(
        NOWHERE, two_way(None, 2), "hash", jobs=InlineJobs(world=world), compact=(5, 1 << 30)
    )
    held.run_tuples(0, *BATCHES[0])
    with pytest.raises(CheckpointMismatch, match="holds back results of the batches 0 to 0"):
        ToOutside(world, Outside(), every_s=99.0)
