"""Results that are held back become visible once, whoever is killed or asleep, and stay."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.errors import CheckpointMismatch, DamagedState, TakenOver
from joinengine.results import showings
from joinengine.state import fence
from joinengine.world.memory import MemoryWorld
from tests.harness import Killed, LocalQuery, two_way
from tests.laws.cases import check_results, matched, relaxed, skewed_batches, streams, usable

STEPS = ("routed", "joined", "committed", "merging", "merged", "decided", "delivered")
NOWHERE = "/nowhere/query"
BATCHES = [(left[:24], right[:24]) for left, right in skewed_batches(9)]
WIDE = skewed_batches(9)
SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 200)]
kills = st.sets(st.tuples(st.integers(0, 6), st.sampled_from(STEPS)), max_size=4)
#: Of how many batches results become visible together; sizes of files that few or many reach.
compacts = st.tuples(st.sampled_from([2, 3, 5]), st.sampled_from([4000, 1 << 30]))


def start(world, compact, **settings):
    return LocalQuery(
        NOWHERE,
        two_way(None, 2),
        "hash",
        jobs=InlineJobs(world=world),
        compact=compact,
        settings=Settings(**settings),
    )


def visible(world):
    return {
        p: content for p, content in world.files.items() if p.startswith(f"{NOWHERE}/out/part-")
    }


def feed(query, number, killed, kills):
    """One batch, as Spark repeats it; a step of it that is in `kills` is the end, once."""
    left, right = query.batches[number]

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
            return query.run_tuples(number, left, right)
        except Killed:
            alive = False


@relaxed
@given(batches=streams(max_rows=12), kills=kills, compact=compacts)
@example(batches=BATCHES, kills={(2, "merged"), (5, "decided"), (6, "joined")}, compact=(3, 4000))
@example(batches=BATCHES, kills={(1, "committed"), (2, "merging")}, compact=(2, 1 << 30))
def test_each_result_becomes_visible_once_and_stays(batches, kills, compact):
    world = MemoryWorld()
    query = start(world, compact)
    query.batches, killed, before = batches, set(), {}
    for number in range(len(batches)):
        feed(query, number, killed, kills)
        assert before.items() <= visible(world).items()
        before = visible(world)
    killed |= kills  # whoever finishes is left alone
    query.runner.finish()
    assert before.items() <= visible(world).items()
    assert query.output() == matched(*usable(batches, None), None)


def test_results_wait_until_there_are_those_of_several_batches():
    world = MemoryWorld()
    query = start(world, (3, 1 << 30))
    shown = []
    for number, (left, right) in enumerate(BATCHES):
        query.run_tuples(number, left, right)
        shown.append(len(visible(world)))
    assert shown == [0, 0, 1, 1, 1, 2, 2, 2, 3]
    check_results(query, BATCHES)
    assert len(query.checkpoint.showings.names()) <= 3
    assert not query.runner.delivery.sink.staging.names()


def test_a_damaged_showing_is_refused_by_name():
    query = start(MemoryWorld(), (3, 1 << 30))
    query.run_tuples(0, *BATCHES[0])
    folder = query.checkpoint.showings
    for content in (b'{"through": 2, "fil', b"[]", b'{"through": 2}'):
        folder.put("00000000", content)
        with pytest.raises(DamagedState, match=f"showing {folder.folder}/00000000 is truncated"):
            query.restart()


def test_every_bit_of_a_showing_counts():
    """Its last batch and its files say which results are visible."""
    query = start(MemoryWorld(), (2, 1 << 30))
    for number in range(2):
        query.run_tuples(number, *BATCHES[number])
    folder = query.checkpoint.showings
    whole, shown = folder.get("00000000"), showings.find(query.checkpoint, 0)
    for position in range(len(whole)):
        altered = bytearray(whole)
        altered[position] ^= 4
        folder.put("00000000", bytes(altered))
        with suppress(DamagedState):
            assert showings.find(query.checkpoint, 0) == shown


def test_a_showing_of_an_older_version_is_read():
    query = start(MemoryWorld(), (3, 1 << 30))
    query.checkpoint.showings.put("00000000", b'{"through": 2, "files": ["a"]}')
    assert showings.find(query.checkpoint, 0) == showings.Showing(2, ("a",))


def test_files_have_about_the_target_size():
    world = MemoryWorld()
    query = start(world, (9, 60_000))
    for number, (left, right) in enumerate(WIDE):
        query.run_tuples(number, left, right)
    sizes = sorted(map(len, visible(world).values()))[1:]
    assert len(sizes) > 1
    assert all(45_000 < size < 120_000 for size in sizes), sizes


def test_a_restart_shows_what_is_held_back():
    world = MemoryWorld()
    query = start(world, (5, 1 << 30))
    for number in range(3):
        query.run_tuples(number, *BATCHES[number])
    assert not visible(world)
    query.restart()
    check_results(query, BATCHES[:3])
    query.compact = (1, 1 << 30)  # the next start holds nothing back
    query.run_tuples(3, *BATCHES[3])
    query.restart()
    query.run_tuples(4, *BATCHES[4])
    check_results(query, BATCHES[:5])


def test_another_sink_leaves_nothing_behind():
    world = MemoryWorld()
    query = start(world, (5, 1 << 30))
    query.run_tuples(0, *BATCHES[0])
    plain = start(MemoryWorld(), None)._sink()
    held = (*query.runner.manifest.held, (0, query.runner.manifest.results))
    with pytest.raises(CheckpointMismatch, match="holds back results of the batches 0 to 0; start"):
        plain.deliver_held(held, query.checkpoint, 2, whole=True)
    query.runner.finish()
    assert plain.deliver_held(held, query.checkpoint, 2, whole=True) == ()


def test_a_quiet_batch_of_a_run_that_ends_shows_everything():
    world = MemoryWorld()
    query = start(world, (5, 1 << 30), finite=True)
    query.run_tuples(0, *BATCHES[0])
    assert not visible(world)
    assert query.runner.tick_due(world.now_s()) == 0.0
    query.run_tuples(1, [], [])
    check_results(query, BATCHES[:1])
    assert query.runner.tick_due(world.now_s()) != 0.0


def go_on(query, most):
    """Ask for batches as Spark does after a start: the last batch may come again."""
    first = max(query.runner.manifest.batch, 0)
    for number in range(first, min(first + most, len(BATCHES))):
        query.run_tuples(number, *BATCHES[number])


@pytest.mark.parametrize("seed", [*range(20), *SLOW])
def test_a_driver_that_slept_shows_nothing_twice(seed):
    """One driver sleeps at a step, others take over, go on for a while, and it wakes up."""
    rng, world = random.Random(seed), MemoryWorld()
    compact = rng.choice([2, 3, 4]), rng.choice([4000, 1 << 30])
    other = rng.choice([compact, (rng.choice([1, 2, 5]), 1 << 30)])
    tired, where, most = rng.randrange(1, 6), rng.choice(STEPS), rng.choice([0, 1, 2, 3, 9])
    asleep = []

    def step(name):
        if name == where and not asleep and first.runner.manifest.batch >= tired - 1:
            asleep.append(name)
            go_on(start(world, other), most)

    first = start(world, compact)
    first.jobs.step = first.runner.delivery.sink.step = step
    with suppress(TakenOver):
        go_on(first, len(BATCHES))
    last = start(world, rng.choice([compact, other]))
    go_on(last, len(BATCHES))
    last.runner.finish()
    check_results(last, BATCHES)


def test_a_showing_that_is_gone_is_not_made_again():
    """A driver slept after its merge until the showing of its stretch was history."""
    world = MemoryWorld()
    query = start(world, (2, 1 << 30))
    for number, batch in enumerate(BATCHES):
        query.run_tuples(number, *batch)
    assert showings.find(query.checkpoint, 0) is None
    assert fence.greatest(query.checkpoint.boundary, -1) > 1
    with pytest.raises(TakenOver, match=r"batch 1 .* are closed"):
        showings.create(query.checkpoint, 0, 1, ["g1-late.parquet"])


def test_who_is_called_after_a_batch_may_end_the_query():
    query = start(MemoryWorld(), (5, 1 << 30))
    query.runner.observe(lambda record: query.runner.finish())
    query.run_tuples(0, *BATCHES[0])
    check_results(query, BATCHES[:1])
