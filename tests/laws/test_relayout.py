"""Any layout to any other, on any number of instances, at any boundary: the same results."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.driver.settings import Settings
from joinengine.kernels.hashing import make_words
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import LAYOUTS, Bi, BiK, Mnrt
from joinengine.model.keys import PAIR, U_ONE
from joinengine.model.windows import within
from joinengine.routing.base_functions import BASES
from joinengine.routing.routes import PROBE, STORE
from joinengine.state.wished import Relayout
from tests.harness import LocalQuery, two_way
from tests.laws.cases import (
    CHOICES,
    EACH_ROUTER,
    check_results,
    feed,
    kills,
    matched,
    model,
    relaxed,
    schedules,
    skewed_batches,
    streams,
    values,
    ways,
    windows,
)


@relaxed
@given(
    batches=streams(),
    window=windows,
    layout=st.sampled_from(list(LAYOUTS)),
    schedule=schedules,
    lazy=st.booleans(),
    kills=kills,
    twice=st.booleans(),
    way=ways,
)
def test_switches_and_resizes_change_no_result(
    batches, window, layout, schedule, lazy, kills, twice, way
):
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(window, 5),
            layout,
            choice=CHOICES[layout],
            jobs=InlineJobs(twice=twice, **way),
            settings=Settings(schedule=schedule, lazy=lazy),
        )
        feed(query, batches, kills)
        pairs, last = model(batches, window)
        assert values(query.output()) == pairs
        assert query.state.late_rows == last.late


@pytest.mark.parametrize("first", EACH_ROUTER)
@pytest.mark.parametrize("second", ["mnrt", "dynamic", "shuffle", "bi", "bi-k", "pkg"])
def test_state_follows_a_switch(first, second, tmp_path):
    batches = skewed_batches()
    schedule = {2: [Relayout(CHOICES[second])], 4: [Relayout(CHOICES[first], 7)]}
    query = LocalQuery(
        tmp_path,
        two_way(None, 6),
        first,
        choice=CHOICES[first],
        settings=Settings(schedule=schedule),
    )
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
        assert query.held == [sum(len(a) + len(b) for a, b in batches[: number + 1])]
    check_results(query, batches)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("base", BASES)
def test_state_follows_a_base_function(base, lazy, tmp_path):
    """From modulo to another base, and on to more and fewer instances on it."""
    batches = skewed_batches(8)
    choice = replace(CHOICES["mnrt"], base=base)
    schedule = {2: [Relayout(choice)], 4: [Relayout(None, 9)], 6: [Relayout(None, 4)]}
    query = LocalQuery(
        tmp_path,
        two_way(None, 6),
        "mnrt",
        choice=CHOICES["mnrt"],
        settings=Settings(schedule=schedule, lazy=lazy),
    )
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    check_results(query, batches)
    assert query.runner.choices == [choice]
    assert (sum(r.joins[0].moved.rows for r in query.records) > 0) is not lazy


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_an_instance_that_is_full_makes_the_layout_grow(layout, tmp_path):
    query = LocalQuery(
        tmp_path,
        two_way(None, 4),
        layout,
        choice=CHOICES[layout],
        settings=Settings(capacity=300),
    )
    used = []
    batches = skewed_batches(8)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
        used.append(query.records[-1].joins[0].instances)
    assert used == sorted(used)
    assert used[-1] > used[0]
    if layout == "dynamic":
        assert used[-1] in (16, 64), "four for each"
    else:
        assert used[-1] == used[0] + len(set(used)) - 1, "one at a time"
    check_results(query, batches)


@pytest.mark.parametrize("choice", [Bi(tolerance=99), BiK(2, tolerance=99)], ids=lambda c: c.label)
def test_a_biclique_grows_without_moving_state(choice, tmp_path):
    query = LocalQuery(
        tmp_path, two_way(None, 4), "bi", choice=choice, settings=Settings(capacity=150)
    )
    for number, (left, right) in enumerate(skewed_batches(6)):
        query.run_tuples(number, left, right)
    assert query.records[-1].joins[0].instances > 4
    assert sum(record.joins[0].moved.rows for record in query.records) == 0


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_a_restart_with_another_layout_is_a_switch(layout, tmp_path):
    batches = skewed_batches(4)
    query = LocalQuery(tmp_path, two_way(None, 6), "hash", choice=CHOICES["hash"])
    for number, (left, right) in enumerate(batches[:2]):
        query.run_tuples(number, left, right)
    query.choice = CHOICES[layout]
    (spec,) = query.query.operators
    query.query = replace(query.query, operators=(replace(spec, instances=9),))
    query.restart()
    for number, (left, right) in enumerate(batches[2:], start=2):
        query.run_tuples(number, left, right)
        if number == 2:
            query.restart()  # the same wish again changes nothing more
    assert query.chosen.wanted == 9
    assert query.runner.choices[0].name == layout
    assert query.layout.instances == (8 if layout == "dynamic" else 9)
    check_results(query, batches)


def test_the_planner_of_a_checkpoint_may_get_other_settings(tmp_path):
    query = LocalQuery(tmp_path, two_way(None, 6), "mnrt", choice=CHOICES["mnrt"])
    query.run_tuples(0, *skewed_batches(1)[0])
    query.choice = Mnrt(imbalance=9.0)
    query.restart()
    assert query.runner.choices == [Mnrt(imbalance=9.0)]


words = st.lists(
    st.tuples(st.sampled_from([0, 1, 5, 77, (1 << 40) - 1]), st.integers(0, U_ONE - 1)),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@given(stored=words, probing=words, instances=st.integers(2, 12))
def test_meet_once(layout, stored, probing, instances):
    """Equal keys: the earlier tuple's homes, and where the later one probes, share one instance."""
    choice = CHOICES[layout]
    if layout == "bi-k":
        instances = max(instances, 2 * choice.subgroups(instances))
    router = choice.start(instances).router()
    for side in PAIR:
        first, second = (
            make_words(*(np.array(column, np.uint64) for column in zip(*rows, strict=True)))
            for rows in (stored, probing)
        )
        kept, sent = router.route(side, first), router.route(side.other, second)
        for i, (hash_, _) in enumerate(stored):
            here = (kept.rows == i) & ((kept.flags & STORE) > 0)
            homes = set(kept.instances[here].tolist())
            assert len(homes) == here.sum()
            for j in [j for j, (other, _) in enumerate(probing) if other == hash_]:
                there = (sent.rows == j) & ((sent.flags & PROBE) > 0)
                assert len(homes & set(sent.instances[there].tolist())) == 1


def test_a_restart_that_asks_for_the_same_keeps_what_has_become_of_it(tmp_path):
    schedule = {1: [Relayout(CHOICES["dynamic"], 8)]}
    query = LocalQuery(
        tmp_path,
        two_way(None, 6),
        "hash",
        choice=CHOICES["hash"],
        settings=Settings(schedule=schedule),
    )
    for number, (left, right) in enumerate(skewed_batches(2)):
        query.run_tuples(number, left, right)
    query.restart()
    assert (query.chosen.choice.name, query.chosen.wanted) == ("dynamic", 8)
    assert query.state.layouts.pending is None


def test_a_key_that_leaves_the_head_is_still_found(tmp_path):
    """Its tuples stand at more candidates than a light key has."""
    query = LocalQuery(tmp_path, two_way(None, 8), "w-choices", choice=CHOICES["w-choices"])
    stored = [(1, i, 0) for i in range(400)]
    query.run_tuples(0, stored[:200], [(2, 900, 0)])
    query.run_tuples(1, stored[200:], [(2, 901, 0)])
    assert {run.instance for run in query.state.shelves.state.values()} == set(range(8))
    for number in (2, 3, 4, 5, 6, 7):  # now there is only another key
        query.run_tuples(number, [(3, 1000 * number + i, 0) for i in range(300)], [])
    query.run_tuples(8, [], [(1, 9999, 0)])
    assert sum(n for row, n in query.output().items() if row[4] == 9999) == 400


@pytest.mark.parametrize("layout", ["d-choices", "w-choices"])
def test_a_key_that_has_cooled_is_no_longer_looked_for_where_it_was_hot(layout, tmp_path):
    """It is stored at two candidates at once; when the window is over, only these are probed."""
    window = within("lt", "rt", lower="-250 us", upper="250 us", delay="0 us")
    query = LocalQuery(tmp_path, two_way(window, 8), layout, choice=CHOICES[layout])
    serial, sides, degrees = iter(range(10**6)), ([], []), []
    for number in range(12):
        hot = 1 if number < 3 else 2
        keys = [hot] * 80 + [1 if hot == 2 else 3] * 2 + list(range(10, 200))
        left, right = ([(key, next(serial), 100 * number) for key in keys] for _ in PAIR)
        query.run_tuples(number, left, right)
        sides[0].extend(left), sides[1].extend(right)
        layout_now = query.state.layouts.newest.layout
        degrees.append({one.hash_: one[1:] for one in layout_now.degrees})
    assert query.output() == matched(*sides, window)
    cooled = next(iter(degrees[1]))
    assert degrees[1][cooled][0] > 2
    probed, stored = degrees[4][cooled]
    assert probed > 2
    assert stored == 0
    assert cooled not in degrees[-1]
    assert degrees[-1], "the key that is hot now"


@pytest.mark.parametrize("layout", ["d-choices", "w-choices"])
def test_a_head_has_no_fewer_candidates_than_any_other_key(layout, tmp_path):
    """Five candidates a key: one that enters the head lies at all of them already."""
    choice = replace(CHOICES[layout], choices=5, intervals=1)
    query = LocalQuery(tmp_path, two_way(None, 8), layout, choice=choice)
    stored = [(key, 100 * key + i, 0) for key in range(40) for i in range(20)]
    query.run_tuples(0, stored, [])
    query.run_tuples(
        1, [(1, 9000 + i, 0) for i in range(10)] + [(50 + i, i, 0) for i in range(300)], []
    )
    probing = [(key, 10_000 + key, 0) for key in range(40)]
    query.run_tuples(2, [], probing)
    assert sum(n for row, n in query.output().items() if row[4] >= 10_000) == 40 * 20 + 10


def test_a_checkpoint_without_degrees_of_storing_stores_as_it_did():
    state = {"instances": 8, "choices": 2, "loads": [0.0] * 8, "degrees": [[77, 5], [99, 4, 0]]}
    layout = CHOICES["d-choices"].restore(state)
    assert [tuple(one) for one in layout.degrees] == [(77, 5, 5), (99, 4, 0)]
    assert CHOICES["d-choices"].restore(layout.to_json()) == layout


def test_a_biclique_that_has_grown_keeps_its_subgroups(tmp_path):
    """With 8 instances bi-k would begin with two subgroups a side; this one began with one."""
    query = LocalQuery(
        tmp_path,
        two_way(None, 5),
        "bi-k",
        choice=BiK(),
        settings=Settings(schedule={1: [Relayout(None, 8)]}),
    )
    query.run_tuples(0, [(0, 1, 0)], [(0, 2, 0)])
    query.run_tuples(1, [(0, 3, 0)], [(0, 10 + i, 0) for i in range(40)])
    query.run_tuples(2, [(0, 4, 0)], [])
    assert sum(query.output().values()) == 3 * 41
