"""Every layout against the nested loop and the protocol model, without Spark."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.keys import PAIR, Side
from joinengine.model.windows import within
from joinengine.reporting.progress import batch_line
from joinengine.state.operator_state import STATE
from joinengine.world.memory import MemoryWorld
from tests.harness import LocalQuery, two_way
from tests.laws.cases import (
    CHOICES,
    DISORDERED,
    EACH_ROUTER,
    HOT,
    PLANNED,
    SHAPED,
    SPLITTING,
    check_results,
    enough,
    everything,
    feed,
    filters,
    kills,
    let_in,
    matched,
    model,
    relaxed,
    streams,
    usable,
    values,
    ways,
    windows,
)
from tests.reference.nested_loop import nested_loop


def check_refused(query, batches, window, late, output):
    """Each tuple is joined or aside, once; those aside say why."""
    sides, reasons = [], Counter()
    for side in PAIR:
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


@pytest.mark.usefixtures("acting")
@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@example(
    batches=HOT,
    window=None,
    instances=3,
    asked=(None, None),
    kills={(1, "joined")},
    twice=True,
    way=DISORDERED,
)
@given(
    batches=streams(),
    window=windows,
    instances=st.sampled_from([1, 3, 7]),
    asked=filters,
    kills=kills,
    twice=st.booleans(),
    way=ways,
)
def test_engine_delivers_what_the_model_delivers(
    layout, batches, window, instances, asked, kills, twice, way
):
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(window, enough(layout, instances), filters=asked),
            layout,
            choice=CHOICES[layout],
            jobs=InlineJobs(twice=twice, **way),
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
            assert output == matched(*usable(wanted, window), window)


def test_an_idle_side_brings_no_event_time():
    """A row with an event time keeps its side awake, dropped or not; a row without one does not."""
    window = within("lt", "rt", lower="0 us", upper="9 us", delay="0 us", idle_after="1 day")
    plan = two_way(window, 2, how="full", filters=("lv > 0", None))
    query = LocalQuery("/nowhere/query", plan, "hash", jobs=InlineJobs(world=MemoryWorld()))
    query.run_tuples(0, [(1, 1, 0)], [(1, 2, 0)])
    first = [side.idle_since for side in query.state.clock.sides]
    query.run_tuples(1, [(1, 0, 5)], [(None, 3, None)])
    second = [side.idle_since for side in query.state.clock.sides]
    assert second[Side.LEFT] > first[Side.LEFT]
    assert second[Side.RIGHT] == first[Side.RIGHT]
    query.run_tuples(2, [], [(None, 4, 5)])
    third = [side.idle_since for side in query.state.clock.sides]
    assert third[Side.LEFT] == second[Side.LEFT]
    assert third[Side.RIGHT] > second[Side.RIGHT]


@pytest.mark.usefixtures("acting")
@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@example(batches=HOT, instances=2, seed=1)
@example(batches=HOT, instances=5, seed=1)
@given(batches=streams(), instances=st.sampled_from([2, 5]), seed=st.integers(0, 99))
def test_batching_and_order_change_nothing(layout, batches, instances, seed):
    """The same tuples in one batch, in many, and shuffled inside batches: the same multiset."""
    left, right = everything(batches)
    shuffled = [tuple(random.Random(seed).sample(side, len(side)) for side in b) for b in batches]
    outputs = []
    for feeding in ([(left, right)], batches, shuffled):
        with tempfile.TemporaryDirectory() as folder:
            query = LocalQuery(folder, two_way(None, instances), layout, choice=CHOICES[layout])
            feed(query, feeding)
            outputs.append(query.output())
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_hot_keys_move_split_and_come_back(layout, tmp_path):
    """A hot key that wanders: with planners state really moves, and the results stay exact."""
    rng = random.Random(5)
    batches, serial = [], 0
    for batch in range(9):
        hot = 1 + batch // 3
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
    expected = matched(*everything(batches), None)
    assert expected
    assert query.output() == expected
    records = [record.joins[0] for record in query.records]
    moved = sum(record.moved.rows for record in records)
    split = max(record.split_keys for record in records)
    assert (moved > 0, split > 0) == (layout in PLANNED | SHAPED, layout in SPLITTING)
    assert any(record.replanned for record in records) == (layout in PLANNED | SHAPED)
    if layout in ("d-choices", "w-choices"):
        hot = {1, 2, 3}
        assert len(query.layout.degrees) >= len(hot), "each has been hot, and stays in the head"
    if layout == "pkg":
        assert len(set(query.layout.loads)) > 1, "the next tuples go by what has been stored"


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_a_side_or_a_batch_may_be_empty(layout, tmp_path):
    """The left side first, then the right one, then both; and keys of one side alone."""
    left = [(i % 5, i, i) for i in range(40)]
    right = [(i % 5, 100 + i, i) for i in range(20)]
    batches = [
        ([], [(99, 99, 0)]),
        (left[:20], []),
        ([], []),
        ([(98, 98, 0)], right),
        (left[20:], []),
    ]
    query = LocalQuery(tmp_path, two_way(None, 4), layout, choice=CHOICES[layout])
    for number, batch in enumerate(batches):
        query.run_tuples(number, *batch)
        assert bool(query.output()) == (number > 2)
    check_results(query, batches)


def test_the_comparison_can_fail(tmp_path):
    """Canary: one result file delivered twice is seen."""
    query = LocalQuery(tmp_path, two_way(None, 2), "hash")
    query.run_tuples(0, [(1, 1, 0)], [(1, 2, 0)])
    (file,) = (tmp_path / "out").glob("*.parquet")
    (tmp_path / "out" / "again.parquet").write_bytes(file.read_bytes())
    assert query.output() != matched([(1, 1, 0)], [(1, 2, 0)], None)


def test_a_tuple_in_the_wrong_place_is_seen(tmp_path):
    """Canary: a run that another instance claims, and a run that two claim."""
    query = LocalQuery(tmp_path, two_way(None, 3), "hash")
    query.run_tuples(0, [(1, 1, 0)], [])
    assert query.held == [1]
    whole = query.runner.manifest
    ((ident, run),) = query.state.shelves.state.items()
    elsewhere = run._replace(instance=(run.instance + 1) % 3)
    for runs in ({ident: elsewhere}, {ident: run, "again": elsewhere}):
        shelves = replace(query.state.shelves, runs={STATE: runs})
        wrong = (replace(query.state, shelves=shelves),)
        query.runner.manifest = replace(whole, operators=wrong)
        with pytest.raises(AssertionError, match="its homes are"):
            query.check_state()
        query.runner.manifest = whole


def test_little_memory_spills_and_changes_nothing(tmp_path):
    """Arrivals that do not fit are taken in pieces, each sealed as a run of its own."""
    left = [(i % 7, i, i) for i in range(200)]
    right = [(i % 7, 1000 + i, i) for i in range(80)]
    tight = Settings(memory_per_task=1000)
    query = LocalQuery(tmp_path, two_way(None, 2), "mnrt", settings=tight)
    query.run_tuples(0, left[:120], right[:40])
    assert len(query.state.shelves.state) > 20
    query.run_tuples(1, left[120:], right[40:])
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
    """One microsecond decides: a tuple at w is on time, at w - 1 it is late and meets nothing."""
    window = within("lt", "rt", lower="0 us", upper="1000 us", delay="10 us")
    query = LocalQuery(tmp_path, two_way(window, 2), "hash")
    query.run_tuples(0, [(1, 1, 100)], [(1, 2, 100)])  # the watermark is 90 now
    assert "watermark 1970-01-01T00:00:00.000Z" in batch_line(query.records[0])
    # One map task: if no tuple is late, it does not look at the times one by one.
    query.run_tuples(1, [(1, 3, 90), (1, 4, 89)], [(1, 5, 100)], map_tasks=1)
    assert query.state.late_rows == 1
    assert values(query.output()) == Counter([(1, 2), (1, 5), (3, 2), (3, 5)])


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_equal_hashes_of_different_keys_are_told_apart(layout, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "joinengine.exchange.keying.hash_columns",
        lambda columns: np.full(len(columns[0]), 7 << 24, np.uint64),
    )
    left = [(i % 9, i, i) for i in range(120)]
    right = [(i % 11, 1000 + i, i) for i in range(120)]
    query = LocalQuery(tmp_path, two_way(None, 4), layout, choice=CHOICES[layout])
    for batch in range(3):
        query.run_tuples(batch, left[batch::3], right[batch::3])
    assert query.output() == matched(left, right, None)
    assert query.output()
