"""The batch protocol, killed and re-laid out at random, delivers every pair exactly once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.model.keys import PAIR, U_ONE, Fragment, Mode, Placement, Side
from joinengine.model.windows import within
from tests.laws.cases import INSTANCES, placements, tries
from tests.reference.nested_loop import nested_loop
from tests.reference.protocol import (
    NEVER,
    Disk,
    Engine,
    Layout,
    Manifest,
    Row,
    matches,
    relayout,
    stores,
)

KEYS = 3
STEPS = ("routed", "joined an instance", "results staged", "planned", "committed", "delivered")


class Killed(Exception):
    """The process died between two steps."""


tables = st.dictionaries(st.integers(0, KEYS - 1), placements(), max_size=KEYS)
replans = st.none() | st.tuples(tables, st.booleans())


@st.composite
def streams(draw: st.DrawFn) -> list[list[Row]]:
    """Batches of tuples whose times advance with some disorder."""
    batches = []
    for batch in range(draw(st.integers(1, 6))):
        drawn = st.tuples(
            st.sampled_from(PAIR),
            st.none() | st.integers(0, KEYS - 1),
            st.integers(0, U_ONE - 1),
            st.integers(-4, 4),
        )
        rows = draw(st.lists(drawn, max_size=8))
        batches.append(
            [
                Row(side, key, u, batch * 3 + shift, 100 * batch + i)
                for i, (side, key, u, shift) in enumerate(rows)
            ]
        )
    return batches


windows = st.none() | st.builds(
    lambda lower, width, delay: within(
        "a", "b", lower=f"{lower} us", upper=f"{lower + width} us", delay=f"{delay} us"
    ),
    st.integers(-6, 4),
    st.integers(0, 8),
    st.integers(0, 9),
)


def fresh_disk() -> Disk:
    return Disk([Manifest(-1, (), (Layout(0, INSTANCES),))])


def deliver_all(disk, batches, window, plans, kills):
    """Feed the batches as Spark does.

    After a kill the same batch comes again; so it may after a success whose commit log is lost.
    """
    killed = set()
    for batch, rows in enumerate(batches):

        def step(name, batch=batch):
            if (batch, name) in kills and (batch, name) not in killed:
                killed.add((batch, name))
                raise Killed(name)

        plan = plans[batch % len(plans)]
        replan = plan and (lambda m, plan=plan: relayout(m, plan[0], lazy=plan[1]))
        for _ in range(len(STEPS) + 1):
            try:
                Engine(disk, window, step).run_batch(batch, rows, replan)
                break
            except Killed:
                continue
        if batch % 2:
            Engine(disk, window).run_batch(batch, rows, replan)
    return Counter(pair for pairs in disk.delivered.values() for pair in pairs)


def on_time_rows(batches, window):
    """The tuples at or above the watermark of their batch, by the definition of the watermark."""
    kept, newest, watermark = [], {side: NEVER for side in PAIR}, NEVER
    for rows in batches:
        kept += [row for row in rows if row.key is not None and row.time >= watermark]
        for row in rows:
            newest[row.side] = max(newest[row.side], row.time)
        if window is not None:
            watermark = max(watermark, min(newest.values()) - window.delays_us[0])
    return kept


def expected(rows, window):
    left, right = ([row for row in rows if row.side is side] for side in PAIR)
    return nested_loop(left, right, lambda a, b: matches(window, a, b))


@tries(400)
@given(
    batches=streams(),
    window=windows,
    plans=st.lists(replans, min_size=1, max_size=4),
    kills=st.sets(st.tuples(st.integers(0, 5), st.sampled_from(STEPS)), max_size=5),
)
def test_every_pair_is_delivered_exactly_once(batches, window, plans, kills):
    disk = fresh_disk()
    delivered = deliver_all(disk, batches, window, plans, kills)
    on_time = on_time_rows(batches, window)
    assert delivered == expected(on_time, window)
    wanted = [row for rows in batches for row in rows if row.key is not None]
    assert disk.manifests[-1].late == len(wanted) - len(on_time)


@tries(200)
@given(batches=streams(), plans=st.lists(replans, min_size=1, max_size=4))
def test_state_stands_where_its_version_says(batches, plans):
    """Full history: each tuple is held at its version's homes, once each, and nowhere else."""
    plans = [plan and (plan[0], False) for plan in plans]
    disk = fresh_disk()
    deliver_all(disk, batches, None, plans, set())
    # One empty batch carries out the moves that the last one planned.
    Engine(disk, None).run_batch(len(batches), [])
    last = disk.manifests[-1]
    engine = Engine(disk, None)
    held = Counter((run.instance, row) for run in last.runs for row in engine._live(run))
    layout = last.layouts[-1]
    rows = [row for batch in batches for row in batch if row.key is not None]
    assert held == Counter(
        (instance, row)
        for row in rows
        for instance in stores(layout.place(row.key), row.side, row.u)
    )


@tries(100)
@given(batches=streams(), window=windows.filter(bool))
def test_how_a_stream_is_cut_changes_nothing_where_no_row_is_late(batches, window):
    window = replace(window, delays_us=(10**6, 10**6))
    rows = [row for batch in batches for row in batch]
    one = deliver_all(fresh_disk(), [rows], window, [None], set())
    many = deliver_all(fresh_disk(), [[row] for row in rows], window, [None], set())
    assert one == many == expected(rows, window)


def test_the_comparison_can_fail():
    """Canary: a delivery twice under another name is seen."""
    rows = [Row(Side.LEFT, 0, 0, 0, 1), Row(Side.RIGHT, 0, 0, 0, 2)]
    disk = fresh_disk()
    assert deliver_all(disk, [rows], None, [None], set()) == expected(rows, None)
    disk.delivered[99] = disk.delivered[0]
    doubled = Counter(pair for pairs in disk.delivered.values() for pair in pairs)
    assert doubled != expected(rows, None)


def test_versions_are_needed_for_copied_modes():
    """If tuples probe old and new homes together, and not by version, pairs come twice."""
    table = {
        0: Placement(Mode.COPIED, (Fragment(0, 0, U_ONE // 2), Fragment(1, U_ONE // 2, U_ONE)))
    }
    copied = Row(Side.RIGHT, 0, 0, 0, 1)
    late_left = Row(Side.LEFT, 0, 0, 0, 2)
    plans = [(table, False), (table, True), None]
    disk = fresh_disk()
    delivered = deliver_all(disk, [[], [copied], [late_left]], None, plans, set())
    assert delivered == Counter({(late_left, copied): 1})
    assert len(disk.manifests[-1].layouts) == 2


@pytest.mark.parametrize("batch", [-1, 3])
def test_a_batch_out_of_order_is_refused(batch):
    disk = fresh_disk()
    Engine(disk, None).run_batch(0, [])
    with pytest.raises(AssertionError):
        Engine(disk, None).run_batch(batch, [])
