"""Which intervals count for a plan: those that agree, but for chance and what is not told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from joinengine.balancing import statistics
from joinengine.balancing.agreement import agreeing, alike
from joinengine.balancing.statistics import Interval, noise
from joinengine.layouts import LAYOUTS, Mnrt
from joinengine.layouts.key_based import KeyBased


def interval_of(counts, instances=4):
    hashes = np.arange(len(counts), dtype=np.uint64)
    arrived = np.array([counts, np.zeros(len(counts))], float)
    stored = np.zeros((2, instances))
    np.add.at(stored[0], np.arange(len(counts)) % instances, counts)
    return Interval(hashes, arrived, arrived, np.zeros(instances), stored)


GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "plans").glob("*.json"))


def drawn(path, seed, batches=20):
    """Batches in which the keys of a golden case bring as many tuples as there, but for chance."""
    case = json.loads(path.read_text())
    rates = [10 * (one["left"] + one["right"]) for one in case["keys"].values()]
    rng = np.random.default_rng(seed)
    return [interval_of(rng.poisson(rates), case["instances"]) for _ in range(batches)]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_intervals_of_a_steady_stream_agree(path):
    for seed in range(6):
        history = drawn(path, seed)
        assert all(len(agreeing(history[:n])) == n for n in range(1, len(history) + 1))


def moved(layout, history):
    """Tuples that plans move over a history, as the layout's own."""
    choice = LAYOUTS[layout]()
    state, total = choice.start(history[0].stored.shape[1]), 0.0
    for n in range(1, len(history) + 1):
        plan = choice.plan(state, history[max(n - choice.history_intervals, 0) : n])
        if plan is not None:
            state, total = plan.layout, total + plan.reason.cost.rows
    return total


@pytest.mark.parametrize("layout", ["mnrt", "qmmp", "mixed"])
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_steady_stream_moves_no_more_than_if_all_intervals_counted(path, layout, monkeypatch):
    found = [sum(moved(layout, drawn(path, seed)) for seed in range(3))]
    monkeypatch.setattr("joinengine.layouts.key_based.agreeing", lambda history: history)
    found.append(sum(moved(layout, drawn(path, seed)) for seed in range(3)))
    assert found[0] <= found[1]


@pytest.mark.parametrize("layout", ["mnrt", "qmmp"])
def test_a_shift_of_the_hot_keys_is_level_in_the_second_batch(layout):
    """A quarter of the tuples change their key every six batches."""
    choice, rng = LAYOUTS[layout](), np.random.default_rng(1)
    state, history, skews = choice.start(8), [], []
    for batch in range(30):
        rates = np.full(200, 50.0)
        rates[(7 * (batch // 6)) % 200] = 5000
        history.append(interval_of(rng.poisson(rates), 8))
        assert isinstance(state, KeyBased)
        level = choice.gather(state.base, state.table, history[-1:]).per_instance()
        skews.append(level.max() / level.mean())
        plan = choice.plan(state, history[-choice.history_intervals :])
        state = state if plan is None else plan.layout
    shifts = range(0, 30, 6)
    assert all(skews[first] > 1.8 for first in shifts)
    assert all(skew < 1.2 for n, skew in enumerate(skews) if n not in shifts), skews


def scaled(interval, times):
    """The same keys in a batch that is so many times as long."""
    of = {name: times * getattr(interval, name) for name in ("arrived", "held", "stored")}
    return interval._replace(**of)


def test_intervals_count_as_far_back_as_they_agree():
    hot, cold = interval_of([500, 20, 20, 20]), interval_of([20, 20, 20, 500])
    tick, long = scaled(hot, 0), scaled(hot, 3)
    for history, agree in (
        ([hot, hot, cold], 1),
        ([hot, cold, cold], 2),
        ([hot, hot], 2),
        ([cold, hot, tick], 2),  # a batch without tuples says nothing
        ([hot, tick, hot], 3),
        ([long, hot], 2),
        ([hot, long], 2),
        ([long, cold], 1),
    ):
        found = agreeing(history)
        assert [id(one) for one in found] == [id(one) for one in history[-agree:]]


def light(interval, *listed):
    """The same interval, of which only some keys are told."""
    some = {name: getattr(interval, name)[..., list(listed)] for name in ("arrived", "held")}
    hashes = interval.hashes[list(listed)]
    return interval._replace(hashes=hashes, whole=False, **some)


def test_a_key_that_a_light_report_does_not_list_may_be_as_before(monkeypatch):
    """Up to what such a report lists: of 4,000 tuples nothing but the table, of more one in 32."""
    monkeypatch.setattr(statistics, "FEW_TUPLES", 4000)
    hot, cold = interval_of([500, 60, 20, 60]), interval_of([20, 60, 20, 500])
    big = interval_of([40_000, 60, 20, 60])
    for history, agree in (
        ([hot, light(hot, 0)], 2),
        ([hot, light(hot)], 2),
        ([light(hot), hot], 2),
        ([light(hot, 0), light(hot, 0), hot], 3),
        ([hot, light(cold, 0)], 1),
        ([light(cold, 0), hot], 1),
        ([light(cold), hot], 2),
        ([big, light(big, 1)], 1),  # which would list it
        ([light(big, 1), big], 1),
        ([scaled(hot, 3), light(hot)], 2),
    ):
        assert len(agreeing(history)) == agree


def test_a_planner_gets_intervals_that_tell_as_many_keys(monkeypatch):
    monkeypatch.setattr(statistics, "FEW_TUPLES", 4000)
    whole = interval_of([500, 60, 20, 60])
    told, tick = light(whole, 0), scaled(whole, 0)
    for history, places in (
        ([whole, told, whole], (0, 2)),
        ([whole, told, told], (1, 2)),
        ([whole, told, tick], (1, 2)),  # which says nothing
        ([told, whole, tick], (1, 2)),
        ([tick], (0,)),
    ):
        assert list(map(id, alike(agreeing(history)))) == [id(history[place]) for place in places]


@pytest.mark.parametrize("among", [8, 64, 512, 4096])
def test_of_any_number_of_even_loads_one_seems_too_great_in_a_hundred_intervals(among, monkeypatch):
    monkeypatch.setattr(statistics, "NOISE_SIGMAS", 3.0)
    rng, mean = np.random.default_rng(among), 400
    greatest = rng.poisson(mean, (1000, among)).max(axis=1)
    assert 0.002 < (greatest > mean + noise(mean, among)).mean() < 0.025


def test_many_instances_are_seldom_planned_for_chance(monkeypatch):
    """Of a steady stream an instance gets 117 tuples a batch; few keys are told each time."""
    monkeypatch.setattr(statistics, "NOISE_SIGMAS", 3.0)
    monkeypatch.setattr(statistics, "FEW_TUPLES", 4000)
    monkeypatch.setattr(statistics, "FEW_PAIRS", 80_000)
    choice, rng, n, plans = Mnrt(), np.random.default_rng(0), 512, []
    state, history = choice.start(n), []
    parts = rng.permutation(np.arange(1, 100 * n + 1) ** -0.8)
    for batch in range(20):
        recent = history[-choice.history_intervals :]
        interval = interval_of(rng.poisson(117 * n * parts / parts.sum()), n)
        assert isinstance(state, KeyBased)
        if not choice.asks(state, recent):
            listed = np.array(sorted(state.table.placements), int)
            rest = interval.stored.sum(axis=0)
            rest -= np.bincount(listed % n, interval.arrived[0, listed], n)
            interval = light(interval, *listed)._replace(rest=rest)
        history.append(interval)
        plan = choice.plan(state, [*recent, interval])
        if plan is not None:
            state, plans = plan.layout, [*plans, batch]
    assert plans[0] == 0
    assert len(plans) <= 3
