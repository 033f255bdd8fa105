"""Backups over several instances: whatever is lost, planned or wished, results stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import Ftlb, backup_spread
from joinengine.model.errors import DamagedState
from joinengine.state.wished import Relayout
from joinengine.world.memory import MemoryWorld
from tests.harness import LocalQuery, two_way
from tests.laws.cases import check_results, relaxed, skewed_batches
from tests.laws.losing import NERVOUS, feed, joins, lose

SPREADS = [1, 2, 3, "all"]
#: Service levels with more backups than other keys have, and with as many.
LEVELS = [
    (),
    {"gold": {"keys": [1, 5], "backups": 3}, "hot": {"top": 2, "backups": 2}},
]
settings = st.fixed_dictionaries(
    {
        "domains": st.sampled_from([None, 3]),
        "levels": st.sampled_from(LEVELS),
        "base": st.sampled_from(["modulo", "ring", "cells"]),
        "refill_rows": st.sampled_from([20, 10**6]),
    }
)
wishes = st.dictionaries(
    st.integers(1, 6),
    st.lists(
        st.builds(
            Relayout,
            st.none() | st.builds(Ftlb, spread=st.sampled_from([None, *SPREADS])),
            st.none() | st.integers(5, 9),
        ),
        min_size=1,
        max_size=1,
    ),
    max_size=2,
)


def takes_keys_along(layout, lost):
    """Whether instances have the home, and with those that lack copies all backups of a key."""
    missing = lost | {one for one, _ in layout.incomplete}
    listed = [one.holders for one in layout.table.placements.values()]
    rows = [*layout.base.roles.tolist(), *listed]
    return any(row[0] in lost and set(row) <= missing for row in rows)


def query_of(spread, **more):
    choice = {**NERVOUS, **more.pop("choice", {})}
    return LocalQuery(
        "/q",
        two_way(None, 6),
        "ftlb",
        choice=Ftlb(spread=spread, **choice),
        jobs=InlineJobs(world=MemoryWorld()),
        **more,
    )


@pytest.mark.parametrize("spread", SPREADS)
@relaxed
@given(
    settings,
    wishes,
    st.dictionaries(st.integers(1, 6), st.sets(st.integers(0, 5), min_size=1, max_size=1)),
    st.sets(st.integers(1, 6), max_size=2),
    st.booleans(),
    st.integers(0, 99),
)
def test_no_result_is_lost_with_an_instance(spread, settings, wishes, losses, restarts, lazy, seed):
    """One after another, each once the one before has its copies again, or is not its backup."""
    query = query_of(spread, choice=settings, settings=Settings(schedule=wishes, lazy=lazy))
    batches = skewed_batches(7, seed=seed)
    for number, sides in enumerate(batches):
        if number in restarts:
            query.restart()
        before = getattr(query.state.layouts.pending, "before", query.chosen)
        whole = not query.chosen.absent and not before.absent
        if whole and not query.state.layouts.older:
            lose(query, losses.get(number, ()))
        query.run_tuples(number, *sides)
    check_results(query, batches)


@pytest.mark.parametrize("spread", SPREADS)
@relaxed
@given(
    st.lists(st.sets(st.integers(0, 5), min_size=2, max_size=3), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 99),
)
def test_several_lost_at_once_take_along_only_keys_with_all_copies_there(
    spread, losses, resized, seed
):
    """Whether a loss is survived follows from the rows of the base function and from the table."""
    schedule = {1: [Relayout(instances=8)]} if resized else {}
    choice = {"backups": 1 + seed % 2}
    query = query_of(spread, choice=choice, settings=Settings(schedule=schedule))
    batches = skewed_batches(9, seed=seed)
    feed(query, batches[:3], {})
    for number, lost in enumerate([*losses, *[set()] * 5][:6], start=3):
        before = getattr(query.state.layouts.pending, "before", query.chosen)
        fatal = any(takes_keys_along(one.layout, lost) for one in (query.chosen, before))
        gone = lose(query, lost)
        assert gone == lost, "every instance held something"
        if fatal:
            with pytest.raises(DamagedState, match="is lost, and no copy exists of"):
                query.run_tuples(number, *batches[number])
            return
        query.run_tuples(number, *batches[number])
        assert set(joins(query)[number].lost.instances) == lost
    check_results(query, batches)


@pytest.mark.parametrize("spread", SPREADS)
def test_all_copies_come_again_and_homes_return(spread):
    """The keys of a lost instance go on at `spread` others, which refill it."""
    choice = {"imbalance": 9.0, "refill_rows": 400}
    query = query_of(spread, choice=choice)
    batches = skewed_batches(10)
    feed(query, batches[:3], {2: {1}})
    roles = query.layout.base.roles
    others = 5 if spread == "all" else spread
    heirs = np.unique(roles[1::6, 0])
    assert len(heirs) == others
    assert 1 not in heirs
    before = query.choice.start(6)
    for number in range(3, 10):
        query.run_tuples(number, *batches[number])
    check_results(query, batches)
    assert query.layout == before
    assert joins(query)[2].lost.unbacked_keys > 0
    assert joins(query)[-1].lost.unbacked_keys == 0
    assert joins(query)[-1].state.rows == 2 * sum(len(side) for one in batches for side in one)


def test_another_spread_moves_backups_and_no_home():
    query = query_of(1, choice={"imbalance": 9.0})
    batches = skewed_batches(6)
    feed(query, batches[:2], {})
    homes = query.layout.base.roles[:, 0].tolist()
    query.choice = Ftlb(spread=3, imbalance=9.0)
    query.restart()
    for number in range(2, 6):
        query.run_tuples(number, *batches[number])
    assert query.layout.base.roles[:, 0].tolist() == 3 * homes
    assert query.layout.base == query.choice.start(6).base
    rows = sum(len(side) for one in batches[:2] for side in one)
    assert 0 < joins(query)[2].moved.rows < rows
    check_results(query, batches)


def test_a_checkpoint_of_before_goes_on_with_one_neighbour(monkeypatch):
    """Whatever the default is now, also once it is resized; until a start asks for a spread."""
    monkeypatch.setattr(backup_spread, "DEFAULT_SPREAD", 3)
    with monkeypatch.context() as before:
        kept = Ftlb.settings
        before.setattr(backup_spread, "DEFAULT_SPREAD", 1)
        before.setattr(
            Ftlb, "settings", lambda self: {k: v for k, v in kept(self).items() if k != "spread"}
        )
        query = query_of(None, choice={"imbalance": 9.0})
        batches = skewed_batches(8)
        feed(query, batches[:2], {})
    query.choice = Ftlb(imbalance=9.0, min_gain=0.0)
    query.settings = Settings(schedule={3: [Relayout(instances=7)]})
    for number, (rows, moves) in enumerate([(7, False), (7, True), (7, False)], start=2):
        query.restart()
        query.run_tuples(number, *batches[number])
        assert query.layout.base == Ftlb(spread=1).start(rows).base
        assert bool(joins(query)[number].moved.rows) is moves
    query.choice = Ftlb(imbalance=9.0, spread=2)
    for number in (5, 6, 7):
        query.restart()
        query.run_tuples(number, *batches[number])
        assert query.layout.base.spread == 2
    check_results(query, batches)
    assert query_of(None).layout.base.spread == 3


def test_a_restart_that_leaves_the_spread_open_keeps_it():
    query = query_of(2, choice={"imbalance": 9.0})
    batches = skewed_batches(4)
    feed(query, batches[:2], {})
    query.choice = Ftlb(imbalance=9.0)
    query.restart()
    for number in (2, 3):
        query.run_tuples(number, *batches[number])
    assert query.layout.base.spread == 2
    assert sum(join.moved.rows for join in joins(query)) == 0
    check_results(query, batches)
