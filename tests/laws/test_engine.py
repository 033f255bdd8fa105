"""Every layout against the nested loop and the protocol model, without Spark."""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joinengine.driver.settings import Settings
from joinengine.layouts import LAYOUTS
from joinengine.layouts.key_based import Planned
from joinengine.model.keys import U_ONE, Side
from joinengine.model.windows import INT_MAX, INT_MIN, within
from joinengine.reference.nested_loop import nested_loop
from joinengine.reference.protocol import Disk, Engine, Layout, Manifest, Row
from tests.harness import InlineJobs, Killed, LocalQuery, two_way

#: The planners at their most nervous: they re-plan for the smallest imbalance and gain.
NERVOUS = {"imbalance": 0.0, "threshold": 0.0, "min_gain": 0.0, "intervals": 1}
CHOICES = {
    name: choice(**{f.name: NERVOUS[f.name] for f in fields(choice) if f.name in NERVOUS})
    for name, choice in LAYOUTS.items()
}
SPLITTING = {"qmmp", "mnrt"}
PLANNED = {name for name, choice in LAYOUTS.items() if issubclass(choice, Planned)}


def enough(layout, instances):
    """At least as many instances as the layout needs."""
    return max(instances, 2) if layout.startswith("bi") else instances


STEPS = ("routed", "joined", "committed", "delivered")

#: How many cases a law tries for each layout; `make test-all` tries more.
EXAMPLES = int(os.environ.get("JOINENGINE_EXAMPLES", "8"))
relaxed = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=False
)


@pytest.fixture(autouse=True)
def no_noise_allowance(monkeypatch):
    """Small counts are all noise: without the allowance planners act on them."""
    monkeypatch.setattr("joinengine.layouts.key_based.NOISE_SIGMAS", 0.0)


#: Where the first and the last moments of event time are within the reach of streams.
ENDS = INT_MIN + 150, INT_MAX - 760
#: As long as bounds may be.
LONGEST = f"{INT_MAX} us"


@st.composite
def streams(draw, *, max_rows=30):
    """Batches of (left, right) tuples; one hot key, NULL keys, NULL times, some disorder.

    Event time may lie at either end of what 64 bits hold.
    """
    rng = random.Random(draw(st.integers(0, 10**9)))
    n_batches = draw(st.integers(1, 7))
    hot = draw(st.sampled_from([0.0, 0.5, 1.0]))
    n_keys = draw(st.sampled_from([1, 4, 20]))
    start = draw(st.sampled_from([0, 0, *ENDS]))
    nulls = draw(st.sampled_from([0.03, 0.6]))
    batches, serial = [], 0
    for batch in range(n_batches):
        sides = []
        for _ in Side:
            tuples = []
            for _ in range(rng.choice([0, 1, rng.randint(0, max_rows)])):
                serial += 1
                key = 0 if rng.random() < hot else rng.randrange(n_keys)
                time = start + 100 * batch + rng.randint(-150, 150)
                tuples.append(
                    (
                        None if rng.random() < nulls else key,
                        serial,
                        None if rng.random() < 0.03 else time,
                    )
                )
            sides.append(tuples)
        batches.append(tuple(sides))
    return batches


bounds = st.tuples(st.sampled_from([-200, -50, 0, 70]), st.sampled_from([0, 60, 300])).map(
    lambda ends: (f"{ends[0]} us", f"{ends[0] + ends[1]} us")
) | st.sampled_from([("0 us", LONGEST), (f"-{LONGEST}", LONGEST), (f"-{LONGEST}", "-50 us")])
windows = st.none() | st.builds(
    lambda ends, delay: within("lt", "rt", lower=ends[0], upper=ends[1], delay=delay),
    bounds,
    st.sampled_from(["0 us", "100 us", "400 us", "106751991 days"]),
)


def matched(left, right, window):
    def pairs(a, b):
        if a[0] != b[0]:
            return False
        return window is None or window.lower_us <= b[2] - a[2] <= window.upper_us

    return Counter({a + b: n for (a, b), n in nested_loop(left, right, pairs).items()})


#: Filters of the two sides, and what they let in.
FILTERS = {
    (None, None): lambda side, row: True,
    ("lv % 3 > 0", None): lambda side, row: side is Side.RIGHT or row[1] % 3 > 0,
    ("lk = 0", "rv % 2 = 0 or rk is null"): lambda side, row: (
        row[0] == 0 if side is Side.LEFT else row[1] % 2 == 0 or row[0] is None
    ),
}
filters = st.sampled_from(list(FILTERS))


def let_in(batches, asked):
    """The tuples that the filters let in."""
    return [
        tuple([row for row in batch[side] if FILTERS[asked](side, row)] for side in Side)
        for batch in batches
    ]


def usable(batches, window):
    """Per side the tuples with a key (and a time, under a window), in order of batches."""
    needed = (0,) if window is None else (0, 2)
    return [
        [
            [row for row in batch[side] if all(row[i] is not None for i in needed)]
            for batch in batches
        ]
        for side in Side
    ]


def model(batches, window, asked=(None, None)):
    """What the protocol model delivers of the same batches, and its last manifest."""
    disk = Disk([Manifest(-1, (), (Layout(0, 1),))])
    for number, sides in enumerate(batches):
        rows = [
            Row(
                side,
                row[0] if FILTERS[asked](side, row) else None,
                row[1] % U_ONE,
                0 if window is None else row[2],
                row[1],
            )
            for side in Side
            for row in sides[side]
            if window is None or row[2] is not None
        ]
        Engine(disk, window).run_batch(number, rows)
    pairs = Counter((a.ident, b.ident) for found in disk.delivered.values() for a, b in found)
    return pairs, disk.manifests[-1]


def feed(query, batches, kills=()):
    """Feed the batches as Spark does: what was killed comes again, after a restart."""
    killed = set()
    for number, (left, right) in enumerate(batches):

        def step(name, number=number):
            if (number, name) in kills and (number, name) not in killed:
                killed.add((number, name))
                raise Killed

        for _ in range(len(STEPS) + 1):
            query.jobs.step = step
            try:
                query.restart() if killed else None
                query.run_tuples(number, left, right)
                break
            except Killed:
                continue


def values(output):
    """(left value, right value) of each result."""
    return Counter({(row[1], row[4]): n for row, n in output.items()})


def check_refused(query, batches, window, late, output):
    """Each tuple is joined or aside, once; those aside say why."""
    sides, reasons = [], Counter()
    for side in Side:
        given_ = Counter(row for batch in batches for row in batch[side])
        needed = (0,) if window is None else (0, 2)
        refused = query.refused(side)
        for (*row, reason), n in refused.items():
            reasons[reason] += n
            assert (reason == "null") == any(row[i] is None for i in needed)
        aside = Counter({tuple(row): n for (*row, _), n in refused.items()})
        assert aside <= given_
        sides.append(list((given_ - aside).elements()))
    assert reasons["late"] == late
    assert output == matched(*sides, window)


@pytest.mark.parametrize("layout", LAYOUTS)
@relaxed
@given(
    batches=streams(),
    window=windows,
    instances=st.sampled_from([1, 3, 7]),
    asked=filters,
    kills=st.sets(st.tuples(st.integers(0, 6), st.sampled_from(STEPS)), max_size=3),
    twice=st.booleans(),
)
def test_engine_delivers_what_the_model_delivers(
    layout, batches, window, instances, asked, kills, twice
):
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(window, enough(layout, instances), filters=asked),
            layout,
            choice=CHOICES[layout],
            jobs=InlineJobs(twice=twice),
            aside=True,
        )
        feed(query, batches, kills)
        pairs, last = model(batches, window, asked)
        output = query.output()
        assert values(output) == pairs
        assert query.state.late_rows == last.late
        assert query.state.clock.watermark == last.watermark
        wanted = let_in(batches, asked)
        check_refused(query, wanted, window, last.late, output)
        if last.late == 0:
            left, right = ([r for b in side for r in b] for side in usable(wanted, window))
            assert output == matched(left, right, window)


def test_an_idle_side_brings_no_event_time(tmp_path):
    """What has an event time keeps a side awake, wanted or not; what has none does not."""
    window = within("lt", "rt", lower="0 us", upper="9 us", delay="0 us", idle_after="1 day")
    plan = two_way(window, 2, how="full", filters=("lv > 0", None))
    query = LocalQuery(tmp_path, plan, "hash")
    query.run_tuples(0, [(1, 1, 0)], [(1, 2, 0)])
    first = query.state.idle_since
    query.run_tuples(1, [(1, 0, 5)], [(None, 3, None)])
    second = query.state.idle_since
    assert second[Side.LEFT] > first[Side.LEFT]
    assert second[Side.RIGHT] == first[Side.RIGHT]
    query.run_tuples(2, [], [(None, 4, 5)])
    assert query.state.idle_since[Side.LEFT] == second[Side.LEFT]
    assert query.state.idle_since[Side.RIGHT] > second[Side.RIGHT]


@pytest.mark.parametrize("layout", LAYOUTS)
@relaxed
@given(batches=streams(), instances=st.sampled_from([2, 5]), seed=st.integers(0, 99))
def test_batching_and_order_change_nothing(layout, batches, instances, seed):
    """The same tuples in one batch, in many, and shuffled inside batches: the same multiset."""
    left, right = ([row for b in batches for row in b[side]] for side in Side)
    shuffled = [tuple(random.Random(seed).sample(side, len(side)) for side in b) for b in batches]
    outputs = []
    for feeding in ([(left, right)], batches, shuffled):
        with tempfile.TemporaryDirectory() as folder:
            query = LocalQuery(folder, two_way(None, instances), layout, choice=CHOICES[layout])
            feed(query, feeding)
            outputs.append(query.output())
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hot_keys_move_split_and_come_back(layout, tmp_path):
    """A hot key that wanders: with planners state really moves, and the results stay exact."""
    rng = random.Random(5)
    batches, serial = [], 0
    for batch in range(12):
        hot = 1 + batch // 4
        left, right = [], []
        for _ in range(60):
            serial += 1
            key = hot if rng.random() < 0.7 else rng.randrange(30)
            left.append((key, serial, 10 * batch))
            if serial % 6 == 0:
                right.append((rng.randrange(30), serial, 10 * batch))
        batches.append((left, right))
    query = LocalQuery(tmp_path, two_way(None, 5), layout, choice=CHOICES[layout])
    feed(query, batches)
    left, right = ([row for b in batches for row in b[side]] for side in Side)
    expected = matched(left, right, None)
    assert expected
    assert query.output() == expected
    moved = sum(record.joins[0].moved_rows for record in query.records)
    split = max(record.joins[0].split_keys for record in query.records)
    if layout in PLANNED | {"hash"}:
        assert (moved > 0, split > 0) == (layout in PLANNED, layout in SPLITTING)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", ["one key", "empty left", "empty right", "one side only"])
def test_odd_shapes(layout, case, tmp_path):
    left = [(0 if case == "one key" else i % 5, i, i) for i in range(40)]
    right = [(0 if case == "one key" else i % 5, 100 + i, i) for i in range(20)]
    if case == "empty left":
        left = []
    if case == "empty right":
        right = []
    if case == "one side only":
        right = [(99, 100, 0)]
    query = LocalQuery(tmp_path, two_way(None, 4), layout, choice=CHOICES[layout])
    for batch in range(4):
        query.run_tuples(batch, left[batch::4], right[batch::4])
    assert query.output() == matched(left, right, None)
    assert bool(query.output()) == (case == "one key")


def test_the_comparison_can_fail(tmp_path):
    """Canary: one result file delivered twice is seen."""
    query = LocalQuery(tmp_path, two_way(None, 2), "hash")
    query.run_tuples(0, [(1, 1, 0)], [(1, 2, 0)])
    (file,) = (tmp_path / "out").glob("*.parquet")
    (tmp_path / "out" / "again.parquet").write_bytes(file.read_bytes())
    assert query.output() != matched([(1, 1, 0)], [(1, 2, 0)], None)


def test_little_memory_spills_and_changes_nothing(tmp_path):
    """Arrivals that do not fit are taken in pieces, each sealed as a run of its own."""
    left = [(i % 7, i, i) for i in range(500)]
    right = [(i % 7, 1000 + i, i) for i in range(200)]
    tight = Settings(memory_per_task=2000)
    query = LocalQuery(tmp_path, two_way(None, 2), "mnrt", settings=tight)
    query.run_tuples(0, left[:300], right[:100])
    assert len(query.state.shelves.state) > 20
    query.run_tuples(1, left[300:], right[100:])
    assert query.output() == matched(left, right, None)


def test_composite_keys_meet_only_where_all_columns_agree(tmp_path):
    from joinengine.model.conditions import equi  # noqa: PLC0415

    left = [(i % 3, i % 4, i) for i in range(60)]
    right = [(i % 3, i % 5, i) for i in range(60)]
    query = LocalQuery(tmp_path, two_way(None, 3, equi(["lk", "lv"], ["rk", "rv"])), "hash")
    query.run_tuples(0, left, right)
    expected = nested_loop(left, right, lambda a, b: a[:2] == b[:2])
    assert query.output() == Counter({a + b: n for (a, b), n in expected.items()})


def test_a_tuple_at_the_watermark_is_on_time(tmp_path):
    """One microsecond decides: w is on time, w - 1 is late and meets nothing."""
    window = within("lt", "rt", lower="0 us", upper="1000 us", delay="10 us")
    query = LocalQuery(tmp_path, two_way(window, 2), "hash")
    query.run_tuples(0, [(1, 1, 100)], [(1, 2, 100)])  # the watermark is 90 now
    # One map task: where no tuple is late the times are not looked at one by one.
    query.run_tuples(1, [(1, 3, 90), (1, 4, 89)], [(1, 5, 100)], map_tasks=1)
    assert query.state.late_rows == 1
    assert values(query.output()) == Counter([(1, 2), (1, 5), (3, 2), (3, 5)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equal_hashes_of_different_keys_are_told_apart(layout, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "joinengine.exchange.keying.hash_columns",
        lambda columns: np.full(len(columns[0]), 7 << 24, np.uint64),
    )
    left = [(i % 9, i, i) for i in range(120)]
    right = [(i % 11, 1000 + i, i) for i in range(120)]
    query = LocalQuery(tmp_path, two_way(None, 4), layout, choice=CHOICES[layout])
    for batch in range(4):
        query.run_tuples(batch, left[batch::4], right[batch::4])
    assert query.output() == matched(left, right, None)
    assert query.output()
