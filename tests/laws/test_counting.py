"""Planners get the true state of a key, whatever the sides bring, and whenever."""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing.costs import Load
from joinengine.balancing.counting import Asked, KeysAt, count_keys
from joinengine.balancing.loads import gather_loads
from joinengine.balancing.statistics import Interval
from joinengine.driver import step
from joinengine.driver.settings import Settings
from joinengine.kernels.probing import Needles
from joinengine.layouts import LAYOUTS
from joinengine.layouts.key_based import KeyBased
from joinengine.model.keys import PAIR, U_BITS, Mode, Side
from joinengine.model.windows import within
from joinengine.routing.routes import BACKUP, only
from joinengine.state.run import RunStore
from joinengine.state.wished import Relayout
from tests.harness import LocalQuery, two_way
from tests.laws.cases import CHOICES, each_router, relaxed, streams, windows

COUNTING = [name for name, choice in CHOICES.items() if choice.counts_keys]


@pytest.fixture(autouse=True)
def few_heavy_keys(monkeypatch):
    """A key is light below a quarter of what a side stores; a light report has one heavy key."""
    monkeypatch.setattr("joinengine.layouts.layout.HEAVY_PART", 4)
    monkeypatch.setattr("joinengine.balancing.counting.MOST_LIGHT", 1)


@pytest.fixture
def seen(monkeypatch):
    """The facts of each plan: (state after the batch, the batch's layout, its counts)."""
    found = []
    original = step.interval_of

    def interval_of(reports, state, tasks, **more):
        interval = original(reports, state, tasks, **more)
        found.append((state, state.layouts.newest.layout, interval))
        return interval

    monkeypatch.setattr(step, "interval_of", interval_of)
    return found


def state_of_keys(query, state):
    """(side, key hash) -> how many tuples lie under the newest layout version, copies once.

    Backups do not count: a tuple that has left its home may still lie there, beside younger ones.
    """
    store, router = RunStore(query.checkpoint.runs), state.layouts.newest.layout.router()
    found = set()
    for run in state.shelves.state.values():
        if run.version == state.layouts.version:
            opened = store.open(run, state.shelves.files[run.file])
            values, live = opened.columns.column(1).to_numpy(), opened.live_rows()
            words, there = opened.words[live], router.route(run.side, opened.words[live])
            backed = only(there, (there.instances == run.instance) & (there.flags == BACKUP))
            for row in set(range(len(live))) - set(backed.rows.tolist()):
                found.add((run.side, int(words[row]) >> U_BITS, int(values[live[row]])))
    return Counter((side, hash_) for side, hash_, _ in found)


def check(query, seen):
    """Check the state of each key that the next plan may move, per side; their number.

    If not all reports of the history are whole, no plan follows: the keys that are there are true.
    """
    state, layout, interval = seen[-1]
    true = state_of_keys(query, state)
    kept = [one for *_, one in seen if query.choice.keeps(one)]
    history = kept[-query.choice.history_intervals :]
    whole = query.choice.keeps(interval) and all(one.whole for one in history)
    listed = layout.router().listed
    candidates = listed
    if isinstance(layout, KeyBased):  # others move no key, and ask only for those of the head
        moved = history if whole else [interval]
        candidates = np.unique(np.concatenate([listed, *(one.loaded for one in moved)]))
    told = Counter()
    for column, hash_ in enumerate(interval.hashes.tolist()):
        for side in PAIR:
            told[side, hash_] = int(interval.held[side, column])
    for hash_ in candidates.tolist():
        for side in PAIR:
            assert told[side, hash_] == true[side, hash_], (side, hash_)
    if isinstance(layout, KeyBased) and whole:
        loads = gather_loads(history, layout.table, layout.base)
        expected = [sum(true[side, hash_] for side in PAIR) for hash_ in loads.hashes.tolist()]
        assert loads.held.tolist() == expected
    return len(candidates)


@pytest.mark.parametrize("layout", each_router(COUNTING))
@relaxed
@given(
    batches=streams(),
    window=windows,
    intervals=st.sampled_from([1, 3]),
    resize=st.none() | st.integers(1, 5),
    lazy=st.booleans(),
)
def test_state_per_key_is_true(layout, seen, batches, window, intervals, resize, lazy):
    choice = replace(CHOICES[layout], intervals=intervals)
    schedule = {} if resize is None else {resize: [Relayout(None, 4)]}
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(window, 3),
            layout,
            choice=choice,
            settings=Settings(schedule=schedule, lazy=lazy),
        )
        del seen[:]
        for number, (left, right) in enumerate(batches):
            before = len(seen)
            query.run_tuples(number, left, right)
            if len(seen) > before:
                check(query, seen)
            if number + 1 == resize:  # another number of instances: the history begins anew
                del seen[:]


@pytest.mark.parametrize("layout", ["mnrt", "mixed", "w-choices"])
def test_a_side_that_is_silent_still_holds_what_it_holds(layout, seen, tmp_path):
    """A thousand left tuples of a key, then batches of a few right ones, past the history."""
    choice = replace(CHOICES[layout], intervals=2)
    query = LocalQuery(tmp_path, two_way(None, 3), layout, choice=choice)
    query.run_tuples(0, [(0, i, 0) for i in range(1000)], [])
    for number in range(1, 5):
        query.run_tuples(number, [], [(0, 10_000 + 10 * number + i, 0) for i in range(3)])
        assert check(query, seen) == 1, number
        *_, interval = seen[-1]
        assert interval.held.sum(axis=1).tolist() == [1000, 3 * number]


def test_the_larger_side_is_split_although_it_is_silent(seen, tmp_path):
    """Copied is the side with the smaller state, not the one that was quiet."""
    choice = replace(CHOICES["mnrt"], intervals=1)
    query = LocalQuery(tmp_path, two_way(None, 3), "mnrt", choice=choice)
    query.run_tuples(0, [(0, i, 0) for i in range(900)], [])
    query.run_tuples(1, [], [(0, 1000 + i, 0) for i in range(90)])
    (_, layout, interval) = seen[-1]
    loads = gather_loads([interval], layout.table, layout.base)
    assert loads.copied.all()
    assert loads.split_sides.tolist() == [Side.LEFT]


def test_state_that_has_expired_is_not_told(seen, tmp_path):
    """A key that was heavy and whose tuples have left the window holds nothing."""
    window = within("lt", "rt", lower="-10 us", upper="10 us", delay="0 us")
    choice = replace(CHOICES["mixed"], intervals=4, imbalance=99.0)
    settings = Settings(load=Load.TUPLES)
    query = LocalQuery(tmp_path, two_way(window, 3), "mixed", choice=choice, settings=settings)
    query.run_tuples(0, [(0, i, 0) for i in range(50)], [(0, 100 + i, 0) for i in range(50)])
    for number in (1, 2):
        time = 1000 * number
        tuples = [[(5, time + 10 * side + i, time) for i in range(8)] for side in PAIR]
        query.run_tuples(number, *tuples)
    check(query, seen)
    history = [one for *_, one in seen]
    _, layout, _ = seen[-1]
    loads = gather_loads(history, layout.table, layout.base)
    assert loads.spread.tolist() == sorted([100, 32])[:: 1 if loads.spread[0] == 32 else -1]
    assert loads.held[loads.spread == 100].tolist() == [0]


def test_what_has_expired_at_its_home_is_not_told_of_a_backup(seen, tmp_path):
    """It still lies there, in a run with younger tuples of other keys."""
    window = within("lt", "rt", lower="-1 day", upper="-50 us", delay="100 us")
    choice = replace(CHOICES["ftlb"], intervals=3)
    query = LocalQuery(tmp_path, two_way(window, 3), "ftlb", choice=choice)
    query.run_tuples(0, [(1, 0, 35), (1, 1, -25), (1, 2, 150), (1, 3, -26), (2, 4, -29)], [])
    query.run_tuples(1, [], [(2, 7000, 392)])
    query.run_tuples(2, [(2, 8000, 256)], [])
    assert check(query, seen)


def test_counts_survive_bytes_also_those_without_holders(seen, tmp_path):
    query = LocalQuery(tmp_path, two_way(None, 3), "mixed", choice=CHOICES["mixed"])
    query.run_tuples(0, [(i, i, 0) for i in range(9)], [(0, 100, 0)])
    *_, interval = seen[-1]
    assert interval.holders.shape[1] >= 3
    again = Interval.from_bytes(interval.to_bytes())
    work, weighed = again.work, interval.work
    assert all(np.array_equal(a, b) for a, b in zip(work, weighed, strict=True))
    plain = interval._replace(work=None)
    found = zip(plain, again._replace(work=None), strict=True)
    assert all(np.array_equal(a, b) for a, b in found)
    assert Interval.from_bytes(plain.to_bytes()).work is None
    buffer = io.BytesIO()
    later = {"holders", "work"}
    earlier = {name: value for name, value in interval._asdict().items() if name not in later}
    np.savez(buffer, **earlier)
    again = Interval.from_bytes(buffer.getvalue())
    assert np.array_equal(again.held, interval.held)
    assert again.holders.shape == (2, 0)


def test_a_light_report_tells_no_key_where_there_are_few_tuples():
    """Unless it is asked for; of many tuples it tells the heaviest."""
    asked = Asked(KeysAt(np.array([0]), np.array([5], np.uint64)), whole=False, few=100)
    for copies, told in ((1, [5]), (2, [5, 7])):
        rows = copies * np.array([1, 1, 60, 3])
        needles = Needles(np.array([3, 5, 7, 9], np.uint64), np.append(0, np.cumsum(rows)))
        nothing = Needles(np.empty(0, np.uint64), np.zeros(1, np.int64))
        counts = count_keys([0], [needles, nothing], [[], []], asked)
        assert counts.hashes.tolist() == told
        assert counts.stored.tolist() == [copies, 60 * copies][: len(told)]


def test_there_are_layouts_that_count():
    assert set(COUNTING) >= {"mnrt", "mixed", "w-choices"}
    assert len(COUNTING) < len(LAYOUTS)


def test_copies_of_the_small_side_are_counted_once(seen, tmp_path):
    """A key whose small side stands at every home, while the other side brings nothing."""
    query = LocalQuery(tmp_path, two_way(None, 3), "mnrt", choice=CHOICES["mnrt"])
    for number in range(3):
        left = [(0, 100 * number + i, 0) for i in range(90)]
        query.run_tuples(number, left, [(0, 1000 + number, 0)])
        check(query, seen)
    query.run_tuples(3, [(5, 999, 0)], [])
    check(query, seen)
    _, layout, interval = seen[-1]
    assert Mode.COPIED in [p.mode for p in layout.table.placements.values()]
    assert sorted(interval.held.T.tolist()) == [[1, 0], [270, 3]]


def test_what_a_merge_has_dropped_is_not_told(seen, tmp_path):
    """Tuples that have expired leave their run when it is merged, in the middle of a batch."""
    window = within("lt", "rt", lower="-10 us", upper="10 us", delay="50 us")
    choice = replace(CHOICES["mixed"], imbalance=99.0)
    query = LocalQuery(tmp_path, two_way(window, 1), "mixed", choice=choice)
    for number in range(6):
        first = 0 if number == 0 else 100
        left = [(0, 10 * number + i, first) for i in range(7)] + [(0, 10 * number + 9, 100)]
        query.run_tuples(number, left, [(0, 1000 + number, 100)])
        check(query, seen)
    *_, interval = seen[-1]
    assert interval.held[Side.LEFT].tolist() == [6 * 8 - 7]
