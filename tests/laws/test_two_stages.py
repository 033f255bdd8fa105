"""Reports in two stages: few keys while loads are in balance, all of them before a plan."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import count

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.balancing.costs import Load
from joinengine.balancing.statistics import MOST_LIGHT, Interval
from joinengine.driver.settings import Settings
from joinengine.kernels.hashing import hash_columns
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import Ftlb, Hash, Mnrt
from joinengine.model.keys import U_BITS
from joinengine.model.windows import within
from joinengine.state.wished import Relayout
from tests.harness import LEFT, LocalQuery, two_way
from tests.laws.cases import CHOICES, check_results, relaxed, skewed_batches

INSTANCES = 4
#: Level loads are within it, those of batches with hot keys are not.
CALM = {"imbalance": 0.1, "min_gain": 0.0}


def hash_of(key):
    (found,) = hash_columns([pa.array([key], LEFT.field(0).type)]).tolist()
    return found >> U_BITS


def keys_of_homes(each):
    """Per instance `each` keys that have their home there, in the order of their hashes."""
    layout, homes = Ftlb().start(INSTANCES), [[] for _ in range(INSTANCES)]
    for key in count():
        home = homes[layout.place(hash_of(key)).homes[0]]
        home += [key] * (len(home) < each)
        if all(len(home) == each for home in homes):
            return [sorted(home, key=hash_of) for home in homes]


HOMES = keys_of_homes(3 * MOST_LIGHT)
LEVEL = [key for home in HOMES for key in home]
#: Some keys of instance 0, and one of instance 2 that light reports have no room for.
HOT, LATE = HOMES[0][-4:], HOMES[2][-1]


def batches_of(hot, times=(80, 80, 80, 80)):
    """All keys once in each batch; in those that are `hot` some keys many times."""
    serial, found = count(), []
    more = [key for key, n in zip(HOT, times, strict=False) for _ in range(n)]
    for is_hot in hot:
        keys = LEVEL + more * is_hot
        found.append(([(key, next(serial), 0) for key in keys], [(LEVEL[0], next(serial), 0)]))
    return found


def newest(query):
    """What the last batch has counted; None: the history begins anew."""
    history = query.state.layouts.history
    return query.runner._counts[history[-1].name] if history else None


def asked(query):
    """The batches for which whole reports were asked."""
    return [n for n, record in enumerate(query.records) if record.joins[0].told.whole]


def replanned(query):
    return [n for n, record in enumerate(query.records) if record.joins[0].replanned]


@relaxed
@given(st.integers(1, 3), st.integers(0, 3), st.booleans())
@example(intervals=1, level=0, restarted=False)
@example(intervals=3, level=2, restarted=True)
def test_all_keys_are_told_after_an_imbalance_alone(intervals, level, restarted):
    """After as many batches as the load is taken over there is a plan."""
    hot = [False] * level + [True] * (intervals + 1) + [False] * (2 * intervals + 1)
    batches, late = batches_of(hot), hash_of(LATE)
    with tempfile.TemporaryDirectory() as folder:
        # In tuples, since pairs grow with the state, and noise counts for nothing here.
        choice, settings = Ftlb(intervals=intervals, **CALM), Settings(load=Load.TUPLES)
        plan = two_way(None, INSTANCES)
        query = LocalQuery(folder, plan, "ftlb", choice=choice, settings=settings)
        for number, (left, right) in enumerate(batches):
            query.restart() if restarted else None
            listed = query.layout.table.placements
            query.run_tuples(number, left, right)
            interval = newest(query)
            assert interval.whole == (number in asked(query))
            assert (late in interval.hashes.tolist()) == (interval.whole or late in listed)
            if not interval.whole:
                assert len(interval.hashes) <= 2 * MOST_LIGHT * INSTANCES + len(listed)
        check_results(query, batches)
    assert asked(query)[:intervals] == list(range(level + 1, level + 1 + intervals))
    assert replanned(query)[0] == level + intervals
    assert asked(query)[-1] < len(hot) - 1, "balanced again"


STATISTICS = "joinengine.balancing.statistics."


def fed(folder, name, intervals, batches):
    """A query that balances tuples, after these batches."""
    choice = replace(CHOICES[name], intervals=intervals, **CALM)
    settings = Settings(load=Load.TUPLES)
    query = LocalQuery(folder, two_way(None, INSTANCES), name, choice=choice, settings=settings)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    check_results(query, batches)
    return query


@pytest.mark.parametrize("name", ["mnrt", "mixed"])
def test_small_batches_tell_all_keys_first_and_after_an_imbalance(name, tmp_path, monkeypatch):
    """Then there is a plan; in large ones each tells them, and one follows at once."""
    hot = [False] * 3 + [True] * 3 + [False] * 3
    for few, expected, first in ((1 << 20, [0, 4], 4), (0, list(range(len(hot))), 3)):
        monkeypatch.setattr(STATISTICS + "FEW_TUPLES", few)
        monkeypatch.setattr(STATISTICS + "FEW_PAIRS", few)
        query = fed(tmp_path / str(few), name, 1, batches_of(hot))
        assert asked(query)[: len(expected)] == expected
        assert replanned(query)[0] == first


@pytest.mark.parametrize("name", ["mnrt", "mixed"])
def test_a_key_that_becomes_hot_in_a_small_batch_is_planned_for_after_it(
    name, tmp_path, monkeypatch
):
    """Its instance has more than others had, and tells it in a light report."""
    batches = batches_of([False] * 3 + [True] * 3 + [False] * 3, [500, 400])
    monkeypatch.setattr(STATISTICS + "FEW_TUPLES", 1 << 20)
    monkeypatch.setattr(STATISTICS + "FEW_PAIRS", 1 << 20)
    for least, first in ((0, 3), (1 << 20, 4)):
        monkeypatch.setattr(STATISTICS + "LEAST_TUPLES", least)
        query = fed(tmp_path / str(least), name, 2, batches)
        assert asked(query)[:2] == [0, 4]
        assert replanned(query)[0] == first


def plans_of(batches, intervals, sizes, restarts=()):
    """The batches after which there is a plan; `sizes`: batch -> the instances from then on."""
    schedule = {batch: [Relayout(instances=size)] for batch, size in sizes.items()}
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(None, 6),
            "ftlb",
            choice=Ftlb(imbalance=0.0, min_gain=0.0, intervals=intervals),
            settings=Settings(schedule=schedule),
        )
        for number, (left, right) in enumerate(batches):
            query.restart() if number in restarts else None
            query.run_tuples(number, left, right)
        check_results(query, batches)
    begins, plans = max([0, *sizes]), replanned(query)
    for number in plans:
        needed = range(number - intervals + 1, number + 1)
        assert set(needed) <= set(asked(query))
        # In the first batch of a history there is nothing to ask after.
        assert needed[0] > (begins if number >= begins else 0)
    return plans


@relaxed
@given(
    st.integers(1, 3),
    st.dictionaries(st.integers(2, 7), st.sampled_from([3, 5, 8]), max_size=1),
    st.sets(st.integers(1, 8), max_size=2),
    st.integers(0, 99),
)
def test_a_plan_is_made_on_whole_reports_alone(intervals, sizes, restarts, seed):
    """On as many as the load is taken over, also once the history has begun anew."""
    plans_of(skewed_batches(10, seed=seed), intervals, sizes, restarts)


@pytest.mark.parametrize("intervals", [1, 2, 3])
def test_there_are_plans_before_a_resize_and_after_it(intervals):
    plans = plans_of(skewed_batches(14), intervals, {6: 8}, {3, 8})
    assert plans[0] < 6 + intervals <= plans[-1]


def test_as_many_reports_are_whole_as_the_load_is_taken_over():
    """Also if a restart asks for more intervals than the history has."""
    arrived = np.array([[60.0, 10.0, 50.0], [0.0, 0.0, 0.0]])
    whole = Interval(np.arange(3, dtype=np.uint64), arrived, arrived, np.zeros(2))
    light = whole._replace(whole=False)
    choice = Ftlb(intervals=2, min_gain=0.0)
    layout = choice.start(2)
    for history in ([whole], [light, whole], [whole, light]):
        assert choice.plan(layout, history) is None
        assert choice.asks(layout, history)
    assert choice.plan(layout, [whole, whole]) is not None


def test_light_reports_are_followed_by_a_plan_if_loads_have_changed():
    """Also if an interval that brought nothing comes after them."""
    arrived = np.array([[6000.0, 1000.0, 5000.0], [0.0, 0.0, 0.0]])
    stored = np.array([[11000.0, 1000.0], [0.0, 0.0]])
    whole = Interval(np.array([2, 3, 4], np.uint64), arrived, arrived, np.zeros(2), stored)
    light = whole._replace(whole=False)
    empty = whole._replace(arrived=0 * arrived, stored=0 * stored)
    choice = Mnrt(intervals=2, min_gain=0.0)
    layout = choice.start(2)
    for history in ([whole], [light, whole], [whole, empty]):
        assert choice.plan(layout, history) is not None
    for history in ([light], [whole, light], [light, empty]):
        assert choice.plan(layout, history) is None
    level = whole._replace(arrived=arrived[:, [1, 0, 2]], stored=arrived[:, :1].repeat(2, 1))
    for history in ([level, light], [level, light, empty]):
        assert choice.plan(layout, history) is not None


def test_an_imbalance_lasts_over_batches_that_bring_nothing(tmp_path):
    """Watchers work in the batch after each; it would else be the only one that reports whole."""
    window = within("lt", "rt", lower="-10 us", upper="10 us", delay="0 us")
    query = LocalQuery(
        tmp_path, two_way(window, INSTANCES, how="full"), "ftlb", choice=Ftlb(**CALM)
    )
    ((left, right),) = batches_of([True])
    for number in range(0, 6, 2):
        moved = [
            [(key, 10_000 * number + n, 1000 * number) for key, n, _ in side]
            for side in (left, right)
        ]
        query.run_tuples(number, *moved)
        query.run_tuples(number + 1, [], [])
    ran = [bool(record.work_s) for record in query.records]
    assert all(ran[:4])
    assert asked(query)[:2] == [1, 2]
    assert replanned(query)[0] == 2
    heat = [record.joins[0].heat for record in query.records]
    assert [one.under_hash is None for one in heat] == [False, True] * 3


class Counting(InlineJobs):
    """Runs the tasks, and adds up the bytes of what they are asked and of what they report."""

    def __post_init__(self):
        super().__post_init__()
        self.bytes = []

    def run(self, operator, tasks):
        reports = super().run(operator, tasks)
        counted = [one for task in tasks if (one := task.header.counted) is not None]
        down = 8 * sum(len(one.listed.hashes) + len(one.recent.hashes) for one in counted)
        rows = sum(len(one.hashes) for report in reports for one in report.keys)
        instances = sum(len(report.instances) for report in reports)
        self.bytes.append([8 * (8 * rows + 4 * instances), down] if counted else [0, 0])
        return reports


@pytest.mark.parametrize("choice", [Ftlb(**CALM), Mnrt(intervals=2), Hash()])
def test_report_bytes_are_what_is_sent(choice, tmp_path):
    jobs = Counting()
    query = LocalQuery(tmp_path, two_way(None, INSTANCES), choice.name, choice=choice, jobs=jobs)
    for number, (left, right) in enumerate(batches_of([True] * 4)):
        query.run_tuples(number, left, right)
    joins = [record.joins[0] for record in query.records]
    assert [[one.told.up_bytes, one.told.down_bytes] for one in joins] == jobs.bytes
    ways = np.array(jobs.bytes)
    assert (ways.all(axis=1).any(), ways.any()) == ((choice.counts_keys,) * 2)
    assert {one.told.whole for one in joins} == {"ftlb": {0, 1}, "mnrt": {1}, "hash": {0}}[
        choice.name
    ]


def test_light_reports_tell_the_same_loads_in_fewer_bytes(tmp_path, monkeypatch):
    """While loads are in balance; also what the hash layout would make of them is the same."""
    batches, found = batches_of([False] * 5), []
    for whole in (False, True):
        monkeypatch.setattr(Ftlb, "asks", lambda *_: True) if whole else None
        choice = Ftlb(**CALM)
        folder = tmp_path / str(whole)
        query = LocalQuery(folder, two_way(None, INSTANCES), "ftlb", choice=choice)
        told = []
        for number, (left, right) in enumerate(batches):
            query.run_tuples(number, left, right)
            layout, interval = query.layout, newest(query)
            loads = choice.gather(layout.base, layout.table, [interval]).per_instance()
            assert interval.whole == whole
            told.append([*loads.tolist(), query.records[-1].joins[0].heat.under_hash])
        found.append((told, sum(one.joins[0].told.up_bytes for one in query.records)))
    (light, fewer), (whole, more) = found
    assert np.allclose(light, whole)
    assert fewer < 0.5 * more
