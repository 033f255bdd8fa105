"""Two and more drivers on one checkpoint, asleep at any step: the law holds, each bug breaks it."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.model.keys import PAIR, Side
from tests.laws.cases import tries
from tests.reference.fence import BUGS, Disk, Driver, Failed, Stopped

STEPS = (
    *("claim", "read the newest", "read a link", "deliver", "start Spark", "look for items"),
    *("log them",),
    *("tell Spark how far", "compute", "write a run", "write results", "create the manifest"),
    *("ask again", "look at the boundary", "raise the boundary", "remove a manifest"),
    *("list the files", "remove a file", "tell Spark", "idle"),
)
#: Drivers that may be there at a time, the last one not counted.
DRIVERS = 3


def walk(driver, until, times=1):
    """Let a driver take steps until it would take `until`; False if it has ended."""
    for _ in range(times):
        for taken in range(200):
            try:
                step = next(driver)
            except (Stopped, Failed):
                return False
            if step == until or (taken and step == "idle"):
                break
    return True


def play(schedule, bugs=(), *, manners=True, last_first=False):
    """Carry a schedule out, then let a last driver finish the work; the disk.

    `schedule`: (who, until which step, how often, item's side, lost reply). `last_first`: those who
    sleep wake up only when the last driver has finished.
    """
    disk, drivers = Disk(), dict[int, object]()
    for number, (who, until, times, side, lost) in enumerate(schedule):
        disk.folder.append((side, number))
        if who not in drivers:
            drivers[who] = Driver(disk, bugs, manners, lost).run()
        if not walk(drivers[who], until, times):
            del drivers[who]
    disk.folder += [(Side.LEFT, -1), (Side.RIGHT, -2)]
    for turn in ("last", "sleepers") if last_first else ("sleepers", "last"):
        if turn == "last":
            finish(disk, bugs, manners)
        else:
            for sleeper in drivers.values():
                walk(sleeper, "idle", 2)
    if last_first:  # and if a sleeper did harm, the next driver sees it
        disk.folder.append((Side.LEFT, -3))
        finish(disk, bugs, manners)
    return disk


def finish(disk, bugs, manners):
    """A driver that is alone and stays awake until nothing is new; it must not fail."""
    driver = Driver(disk, bugs, manners).run()
    for step in driver:
        if step == "idle":
            return


def check(disk):
    """The law."""
    logged = disk.logged()
    assert Counter(logged) == Counter(disk.folder)
    left, right = ([item for item in disk.folder if item[0] is side] for side in PAIR)
    visible = Counter(pair for pairs in disk.visible.values() for pair in pairs)
    assert visible == Counter(product(left, right))
    assert disk.runs()
    assert set(disk.runs()) <= disk.files.keys()


moves = st.tuples(
    st.integers(0, DRIVERS - 1),
    st.sampled_from(STEPS),
    st.integers(1, 4),
    st.sampled_from(PAIR),
    st.booleans(),
)


@tries(500)
@given(st.lists(moves, max_size=12), st.booleans(), st.booleans())
def test_whoever_sleeps_does_no_harm(schedule, manners, last_first):
    check(play(schedule, manners=manners, last_first=last_first))


def schedules(seed):
    rng = random.Random(seed)
    return [
        (
            rng.randrange(DRIVERS),
            rng.choice(STEPS),
            rng.choice([1, 1, 2, 4]),
            rng.choice(list(PAIR)),
            rng.random() < 0.5,
        )
        for _ in range(rng.randrange(2, 13))
    ]


def is_broken(seed, bug):
    try:
        check(play(schedules(seed), {bug}, manners=False, last_first=bool(seed % 2)))
    except (AssertionError, Failed, Stopped):
        return True
    return False


@pytest.mark.parametrize("bug", BUGS)
def test_the_law_finds_each_planted_bug(bug):
    found = next((seed for seed in range(20_000) if is_broken(seed, bug)), None)
    assert found is not None
    # And it is the bug that it finds.
    assert not is_broken(found, "none")


def test_random_schedules_without_a_bug():
    assert not [seed for seed in range(2_000) if is_broken(seed, "none")]
