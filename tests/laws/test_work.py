"""Loads as work: what keys have done is told whole and once, priced, and followed at once."""

from __future__ import annotations

import json
import math
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing import loads as loads_module
from joinengine.balancing.costs import (
    FARTHEST,
    GAIN,
    MOST_CHANGE,
    PRICED,
    STEPS,
    Amounts,
    Costs,
    Load,
    shared_out,
)
from joinengine.balancing.loads import gather_loads
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs, Timeless
from joinengine.layouts import LAYOUTS, Mnrt
from joinengine.model.conditions import band
from joinengine.model.keys import Mode
from joinengine.model.windows import within
from joinengine.operators.join import candidate_pairs
from joinengine.state.plain_states import costs_from_json, costs_to_json
from tests.harness import LocalQuery, two_way
from tests.laws.cases import CHOICES, each_router, relaxed, skewed_batches, streams, windows


class Turned(Timeless):
    """A test turns the clock."""

    now = 0.0

    def timer_s(self):
        return self.now


WEIGHED = [name for name, choice in CHOICES.items() if choice.counts_keys]


def newest(query):
    """The counts of the last batch; None: the planner keeps none."""
    history = query.state.layouts.history
    return query.runner._counts[history[-1].name] if history else None


# What tasks tell


@pytest.mark.parametrize("layout", each_router(WEIGHED))
@relaxed
@given(batches=streams(), window=windows, on=st.sampled_from([None, "band"]), lazy=st.booleans())
def test_pairs_and_results_are_told_once(layout, batches, window, on, lazy):
    """Of reported keys and of all others together as many as instances have made."""
    on = band("lv", "rv", lower=-3, upper=3) if on else None
    with tempfile.TemporaryDirectory() as folder:
        plan, settings = two_way(window, 4, on=on), Settings(lazy=lazy)
        query = LocalQuery(folder, plan, layout, choice=CHOICES[layout], settings=settings)
        for number, (left, right) in enumerate(batches):
            before = query.state.layouts.history
            query.run_tuples(number, left, right)
            if query.state.layouts.history in ((), before):
                continue
            interval, record = newest(query), query.records[-1].joins[0]
            work = interval.work
            assert (work is None) == lazy
            if work is None:
                continue
            routed, stored, _, candidates, results = work.done.sum(axis=1)
            assert (routed, stored) == (sum(record.work.received), sum(record.work.stored))
            assert (candidates, results) == (record.work.candidates, sum(record.work.made))
            told = [one.sum() for one in (work.candidates, work.results)]
            assert np.allclose(told + work.others[3:].sum(axis=1), [candidates, results])
            assert (interval.arrived <= work.probed).all() or on or lazy


@pytest.mark.parametrize(("few", "told"), [(60, 60), (61, 0)])
def test_few_pairs_are_not_told_by_key(few, told, monkeypatch, tmp_path):
    """To sort them by key would cost more than a plan could save; they count all the same."""
    monkeypatch.setattr("joinengine.balancing.statistics.FEW_PAIRS", few)
    query = LocalQuery(tmp_path, two_way(None, 1), "auto", choice=LAYOUTS["auto"]())
    query.run_tuples(0, [(7, i, 0) for i in range(20)], [(7, 100 + i, 0) for i in range(3)])
    work = newest(query).work
    assert (work.done[3].sum(), work.candidates.sum(), work.others[3].sum()) == (
        60,
        told,
        60 - told,
    )
    assert work.probed.sum() == 23


@pytest.mark.parametrize("reach", [None, 20], ids=["full", "window"])
def test_pairs_of_a_band_are_told_by_the_cell_that_found_them(reach, monkeypatch, tmp_path):
    """Also where a tuple asks for all of its cells together; one of the cells is dense."""
    on, told, window = band("lv", "rv", lower=-10, upper=10), [], None
    if reach is not None:
        window = within("lt", "rt", lower="0 s", upper=f"{reach} us", delay="1 s")
    left = [(n, 25 * (n % 4), n) for n in range(40)]
    right = [(n, 25 * n, 5 * n) for n in range(10)] + [(n, 3, n) for n in range(10, 50)]
    near = [(a, b) for a in left for b in right if reach is None or 0 <= b[2] - a[2] <= reach]
    expected = sum(abs(a[1] - b[1]) <= 10 for a, b in near)
    for together in (True, False):
        monkeypatch.setattr(candidate_pairs, "are_distinct", lambda _, found=together: found)
        choice = LAYOUTS["auto"]()
        plan = two_way(window, 1, on=on)
        query = LocalQuery(tmp_path / str(together), plan, "auto", choice=choice)
        query.run_tuples(0, left, right)
        interval = newest(query)
        results = interval.work.results
        rows = sum(query.output().values())
        assert results.sum() == rows == expected == interval.work.done[4].sum()
        told.append(dict(zip(interval.hashes.tolist(), results.T.tolist(), strict=True)))
        assert max(map(max, told[0].values())) > rows / 2  # the dense one
    assert told[0] == told[1]


@relaxed
@given(batches=streams(), window=windows, layout=st.sampled_from(["hash", "llfd", "mixed"]))
def test_loads_are_what_instances_have_done(batches, window, layout):
    """Where keys are whole, and pairs are believed however few tuples have made them."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(loads_module, "FEW_TUPLES", 1e-9)
        choice = CHOICES["mixed"] if layout == "hash" else CHOICES[layout]
        query = LocalQuery(folder, two_way(window, 3), layout, choice=choice)
        for number, (left, right) in enumerate(batches):
            before = query.layout
            query.run_tuples(number, left, right)
            interval = newest(query)
            if interval is None or not interval.work.done.any():
                continue
            level = gather_loads([interval], before.table, before.base).per_instance()
            seconds = interval.work.seconds()
            assert np.allclose(level / level.sum(), seconds / seconds.sum())
            assert np.isclose(level.sum(), interval.work.done[1].sum())


def test_a_divided_key_is_told_as_if_it_were_whole(tmp_path):
    """What it costs does not depend on its homes: neither copies nor probes count twice."""
    window = within("lt", "rt", lower="-1 day", upper="1 day", delay="1 day")
    found = {}
    for name, choice in (("whole", Mnrt(imbalance=99.0)), ("divided", Mnrt(imbalance=0.0))):
        query = LocalQuery(tmp_path / name, two_way(window, 4), "mnrt", choice=choice)
        for number in range(3):
            left = [(0, 1000 * number + i, number) for i in range(200)]
            right = [(0, 10_000 + 1000 * number + i, number) for i in range(20)]
            query.run_tuples(number, left, right)
        interval = newest(query)
        found[name] = [interval.arrived, *interval.work[:3]]
        modes = {p.mode for p in query.layout.table.placements.values()}
        assert modes == ({Mode.COPIED} if name == "divided" else set())
    for one, other in zip(found["whole"], found["divided"], strict=True):
        assert np.array_equal(one, other)


def test_planners_balance_tuples_if_they_are_asked(tmp_path):
    settings = Settings(load=Load.TUPLES)
    query = LocalQuery(tmp_path, two_way(None, 4), "mnrt", choice=Mnrt(), settings=settings)
    for number, (left, right) in enumerate(skewed_batches(2)):
        query.run_tuples(number, left, right)
    assert newest(query).work is None
    assert query.state.costs == Costs()


def products(hot, batches):
    """Batches in which four keys bring 40 tuples a side each, and `hot` all within 40 us."""

    def side(batch, first):
        for key in range(4):
            for i in range(40):
                apart = 1 if key == hot else 500
                yield key, first + 1000 * batch + 40 * key + i, 1_000_000 * batch + apart * i

    return [([*side(b, 0)], [*side(b, 100_000)]) for b in range(batches)]


def test_a_key_with_many_pairs_is_divided_although_all_bring_as_many_tuples(tmp_path):
    """Four keys on four instances, 40 tuples a side each; one of them makes nearly all results."""
    window = within("lt", "rt", lower="-40 us", upper="40 us", delay="1 s")
    divided = {}
    for load in Load:
        settings, choice = Settings(load=load), Mnrt(imbalance=0.05)
        folder = tmp_path / load
        query = LocalQuery(folder, two_way(window, 4), "mnrt", choice=choice, settings=settings)
        for number, (left, right) in enumerate(products(0, 4)):
            query.run_tuples(number, left, right)
        placed = query.layout.table.placements.values()
        divided[load] = max((len(one.homes) for one in placed), default=1)
    assert divided[Load.WORK] > divided[Load.TUPLES] == 1


# Prices


def task(scales, size=1000.0):
    """What a task tells whose steps are slower than the first machine by these factors."""
    amounts = Amounts(1, *(size * n for n in (50, 40, 50, 900, 600, 600 * 48)))
    parts = zip(STEPS.values(), scales, strict=True)
    return {step.parts[0]: f * float(np.dot(step.prices, amounts)) for step, f in parts}, amounts


SCALES = st.lists(st.floats(0.2, 20), min_size=len(STEPS), max_size=len(STEPS))


@given(scales=SCALES, seed=st.integers(0, 99))
def test_prices_come_to_what_was_measured(scales, seed):
    """Within a fifth after twenty batches that are off by a tenth each."""
    rng, costs = np.random.default_rng(seed), Costs()
    for _ in range(20):
        noise = rng.uniform(0.9, 1.1, len(scales))
        costs = costs.after([task(np.array(scales) * noise) for _ in range(2)])
    assert np.allclose(costs.scales, scales, rtol=0.2)
    assert costs.result_bytes == 48


def test_one_batch_that_was_disturbed_changes_little():
    costs = Costs()
    for _ in range(10):
        costs = costs.after([task([2.0] * len(STEPS))])
    disturbed = costs.after([task([2000.0] * len(STEPS))])
    assert max(disturbed.scales) <= 2.0 * MOST_CHANGE**GAIN * 1.01


def test_a_task_among_many_that_was_disturbed_counts_for_nothing():
    tasks = [task([1.0] * len(STEPS)) for _ in range(5)] + [task([500.0] * len(STEPS))]
    assert np.allclose(Costs().after(tasks).scales, 1.0)


@given(
    seconds=st.lists(
        st.sampled_from([0.0, 1e-9, 5.0, math.nan, math.inf, -1.0]), min_size=5, max_size=5
    ),
    amounts=st.lists(st.sampled_from([0.0, 1.0, 1e12]), min_size=7, max_size=7),
)
def test_prices_are_finite_and_positive_whatever_was_measured(seconds, amounts):
    parts = dict(zip((step.parts[0] for step in STEPS.values()), seconds, strict=True))
    costs = Costs()
    for _ in range(40):
        costs = costs.after([(parts, Amounts(*amounts))])
    prices = costs.prices()
    assert len(prices) == len(PRICED)
    assert np.isfinite(prices).all() and (prices > 0).all()


@pytest.mark.parametrize(
    "scales", [(math.nan,) * 5, (0.0,) * 5, (1.0,) * 4, (2 * FARTHEST,) * 5, ("x",) * 5]
)
def test_costs_that_cannot_be_are_not_believed(scales):
    """A checkpoint may come from anywhere, or have been written by another version."""
    assert Costs(scales, 7) == Costs()
    assert costs_from_json({"costs": [7, 48, *scales]}) == Costs(result_bytes=48)
    assert costs_from_json({}) == Costs()


def test_costs_of_another_machine_are_left_behind(tmp_path):
    """Those of a checkpoint count at first, and batches here replace them."""
    costs = Costs((1000.0,) * len(STEPS), 500)
    assert costs_from_json({"costs": json.loads(json.dumps(costs_to_json(costs)))}) == costs
    for _ in range(60):
        costs = costs.after([task([1.0] * len(STEPS))])
    assert np.allclose(costs.scales, 1.0, rtol=0.3)


class Slow(Timeless):
    """Each look at the clock takes a millisecond more."""

    def __init__(self):
        self.looks = 0

    def timer_s(self):
        self.looks += 1
        return self.looks / 1e3


def test_a_restart_goes_on_with_the_costs_of_the_manifest(tmp_path):
    query = LocalQuery(tmp_path, two_way(None, 3), "mnrt", jobs=InlineJobs(world=Slow()))
    for number, (left, right) in enumerate(skewed_batches(3)):
        query.run_tuples(number, left, right)
    before = query.state.costs
    assert before.batches == 3 and before.scales != Costs().scales
    query.restart()
    assert query.state.costs == before


def test_steps_of_a_team_are_shared_out_by_what_they_cost():
    one = Amounts(0.5, 100, 100, 100, 0, 0, 0)
    other = Amounts(0.5, 100, 100, 100, 10**6, 10**6, 0)
    spent = {"sort": 1.0, "match": 1.0, "result": 2.0, "probe": 1.0, "untold": 1.0}
    first, second = shared_out(spent, [one, other])
    assert np.isclose(sum(first) + sum(second), sum(spent.values()))
    steps = [*STEPS, "other"]
    assert np.isclose(first[steps.index("receive")], second[steps.index("receive")])
    assert first[steps.index("make")] < 0.1
    assert second[steps.index("make")] > 1.8


@pytest.mark.parametrize("instances", [1, 6])
def test_the_seconds_of_instances_are_those_of_their_steps(instances, tmp_path):
    jobs = InlineJobs(world=Slow())
    reports = []
    original = jobs.run
    jobs.run = lambda *given: reports.append(original(*given)) or reports[-1]
    query = LocalQuery(tmp_path, two_way(None, instances), "hash", jobs=jobs)
    query.run_tuples(0, *skewed_batches(1)[0])
    for one in (one for report in reports[0] for one in report.instances.values()):
        assert len(one.seconds) == len(STEPS) + 1
        assert np.isclose(sum(one.seconds), one.busy_s)
        assert one.busy_s > 0


def test_pairs_are_timed_apart_from_the_search_for_keys(tmp_path, monkeypatch):
    """They have prices of their own: a hot key has far more pairs to a tuple than others."""
    jobs, reports = InlineJobs(world=Turned()), []
    for name in ("expand_pairs", "find_seated"):
        original = getattr(candidate_pairs, name)

        def ticking(*given, original=original):
            jobs.world.now += 1.0
            return original(*given)

        monkeypatch.setattr(candidate_pairs, name, ticking)
    run = jobs.run
    jobs.run = lambda *given: reports.extend(run(*given)) or reports
    query = LocalQuery(tmp_path, two_way(None, 1), "hash", jobs=jobs)
    query.run_tuples(0, [(key, key, 0) for key in range(9)], [(3, 100, 0), (4, 101, 0)])
    spent = reports[0].seconds
    assert (spent["probe"], spent["match"]) == (1.0, 1.0)


# What is expected of the next batch


@pytest.mark.parametrize(("rights", "part"), [(1, 1 / 3), (40, 40 / 42)])
def test_a_tuple_that_meets_all_that_has_waited_is_no_sign_of_others(rights, part, tmp_path):
    """Few right tuples meet 300 left ones each: a part of these pairs is expected again."""
    query = LocalQuery(tmp_path, two_way(None, 2), "mnrt", choice=Mnrt(imbalance=99))
    query.run_tuples(0, [(0, i, 0) for i in range(300)], [])
    query.run_tuples(1, [], [(0, 1000 + i, 0) for i in range(rights)])
    interval, layout = newest(query), query.layout
    loads = gather_loads([interval], layout.table, layout.base)
    work = interval.work
    assert work.candidates.sum() == work.results.sum() == 300 * rights
    spent = 300 * rights * work.costs[3:].sum() / work.seconds().sum()
    assert np.isclose(loads.parts.pairs.sum() / work.done[1].sum(), part * spent)
