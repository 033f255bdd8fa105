"""The driver's decisions as values: a manifest and reports in, instructions and a manifest out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from joinengine.balancing.reasons import Cause
from joinengine.balancing.statistics import KeyCounts
from joinengine.driver import relayout, step
from joinengine.driver.folding import fold
from joinengine.driver.layout_fit import Naming
from joinengine.driver.stages import Arrived, Computed, Moment, Ran, Routed
from joinengine.exchange.task_results import ToOperator
from joinengine.layouts import Bi, Dynamic, Ftlb, Hash, Mnrt, choose
from joinengine.model.errors import InvalidRequest
from joinengine.operators.base import Attempt, QuerySpec
from joinengine.results.targets import Discard
from joinengine.routing.moves import Drop, Moves, Pull
from joinengine.state.operator_state import STATE, Move, Rehome
from joinengine.state.upkeep import Changes
from joinengine.state.wished import Relayout
from joinengine.wire.reports import Block, InstanceReport, OperatorReport
from joinengine.world.storage import StoredFile
from tests.harness import two_way
from tests.laws.intervals import counted
from tests.unit.states import (
    LEFT,
    RIGHT,
    SECOND,
    advanced,
    chain,
    holding,
    manifest_of,
    opened,
    program,
    run_of,
    seen,
    window,
    with_state,
)

# Expiry


def test_a_run_leaves_when_its_last_partner_would_be_late():
    query = two_way(window(upper="10 s"))
    manifest = advanced(
        query, manifest_of(query), seen(LEFT, 30 * SECOND), seen(RIGHT, 30 * SECOND)
    )
    gone = run_of(0, newest=20 * SECOND - 1, rows=3, name="a")
    stays = run_of(0, newest=20 * SECOND, name="b")
    state = holding(manifest.operators[0], gone, stays)
    ((after, rows),) = step.expire(query, with_state(manifest, state))
    assert rows == 3
    assert list(after.shelves.state) == [stays.ident]


# Folding


def test_folding_replaces_removes_and_forgets_files():
    query = two_way(window())
    state = holding(manifest_of(query).operators[0], run_of(0, name="a"), run_of(1, name="b"))
    changes = Changes()
    changes.remove(run_of(0, name="a"))
    changes.change(run_of(1, name="b")._replace(excluded=4))
    changes.change(run_of(2, name="c"))
    after = fold(state, [OperatorReport(0, changes={STATE: changes})])
    assert {run.file: run.live for run in after.shelves.state.values()} == {"b": 6, "c": 10}


def test_after_a_rehoming_only_what_is_reported_is_there():
    query = two_way(window())
    state = holding(manifest_of(query).operators[0], run_of(0, name="a"), run_of(1, name="b"))
    pending = replace(state.layouts, pending=Rehome(state.layouts.newest))
    changes = Changes()
    changes.change(run_of(1, name="b"))
    report = OperatorReport(0, changes={STATE: changes})
    after = fold(replace(state, layouts=pending), [report])
    assert [run.file for run in after.shelves.state.values()] == ["b"]
    assert after.layouts.pending is None


# Layouts


def wished(query, manifest, *wishes, **settings):
    (operator,), (state,) = query.operators, manifest.operators
    options = {"capacity": None, "lazy": False} | settings
    return relayout.after_batch(operator, state, [], wishes, **options)


def test_a_wish_between_key_layouts_moves_word_ranges_and_others_rehome():
    query = two_way(window(), instances=4)
    manifest = manifest_of(query)
    resized, _ = wished(query, manifest, Relayout(instances=6))
    assert isinstance(resized.layouts.pending, Rehome)
    other, reason = wished(query, manifest, Relayout(choose("bi")))
    assert isinstance(other.layouts.pending, Rehome)
    assert other.layouts.newest.choice == Bi()
    assert reason.cause is Cause.SWITCH
    assert not reason.cause.is_replan


def test_of_several_wishes_the_last_of_each_kind_counts():
    query = two_way(window(), instances=4)
    state, _ = wished(
        query, manifest_of(query), Relayout(choose("bi")), Relayout(Mnrt()), Relayout(instances=7)
    )
    assert (state.layouts.newest.choice, state.layouts.newest.wanted) == (Mnrt(), 7)


def test_under_lazy_moves_the_old_layout_stays_as_a_version():
    query = two_way(window(), instances=4)
    manifest = manifest_of(query)
    held = with_state(manifest, holding(manifest.operators[0], run_of(0)))
    state, _ = wished(query, held, Relayout(choose("bi")), lazy=True)
    assert state.layouts.pending is None
    assert state.layouts.live_versions == (1, 0)
    assert state.layouts.older[0].choice == Hash()


def test_a_full_instance_makes_the_layout_grow():
    query = two_way(window(), instances=2)
    manifest = manifest_of(query)
    held = with_state(manifest, holding(manifest.operators[0], run_of(0, rows=100)))
    grown, reason = wished(query, held, capacity=60)
    assert grown.layouts.newest.layout.instances > 2
    assert reason.cause is Cause.CAPACITY
    assert reason.before.greatest == 100
    kept, _ = wished(query, held, capacity=100)
    assert kept.layouts.newest.layout.instances == 2


def full(held, choice, *, whole=True):
    """What comes of 4 instances that hold (4,) tuples each, with a hot key at instance 1."""
    query = two_way(window(), instances=4)
    manifest = manifest_of(query, choice)
    runs = [run_of(instance, rows=rows, name=f"{instance}") for instance, rows in enumerate(held)]
    state = holding(manifest.operators[0], *runs)
    interval = counted({0: (90_000, 90_000, 0)}, 4)._replace(whole=whole, work=None)
    (operator,), history = query.operators, [interval]
    return relayout.after_batch(operator, state, history, [], capacity=200, lazy=False)


@pytest.mark.parametrize(
    ("held", "choice", "cause"),
    [
        ((90, 210, 90, 90), Mnrt(), Cause.HEAVY_KEY),
        ((190, 410, 190, 190), Mnrt(), Cause.CAPACITY),
        ((90, 210, 90, 90), Hash(), Cause.CAPACITY),
        ((30, 210, 30, 30), Hash(), None),
    ],
)
def test_a_layout_grows_if_no_plan_relieves_full_instances_and_others_fill_up(held, choice, cause):
    state, reason = full(held, choice)
    assert (reason and reason.cause) == cause
    assert state.layouts.newest.layout.instances == 4 + (cause is Cause.CAPACITY)


def test_a_layout_does_not_grow_while_its_planner_waits_for_all_keys():
    assert full((90, 210, 90, 90), Ftlb(), whole=False)[1] is None
    assert full((90, 210, 90, 90), Ftlb())[1].cause is not Cause.CAPACITY


@pytest.mark.parametrize(
    ("choice", "instances"),
    [(Dynamic(), 1 << 15), (Ftlb(standby=True), 1 << 15), (Hash(), 1 << 16)],
)
def test_a_layout_that_cannot_have_more_instances_stays(choice, instances):
    query = two_way(window(), instances=instances)
    manifest = manifest_of(query, choice)
    most = manifest.operators[0].layouts.newest.layout.instances
    runs = [run_of(instance, rows=100, name=f"{instance}") for instance in range(most)]
    state, reason = wished(
        query, with_state(manifest, holding(manifest.operators[0], *runs)), capacity=60
    )
    assert reason is None
    assert state.layouts.newest.layout.instances == most


def test_a_wish_that_a_layout_cannot_serve_is_refused():
    query = two_way(window(), instances=4)
    (operator,), (state,) = query.operators, manifest_of(query).operators
    check = partial(relayout.check, operator, state.layouts.newest, operators=1, naming=Naming())
    with pytest.raises(InvalidRequest, match=r"layout bi needs .* found 1"):
        check([Relayout(choose("bi"), 1)])
    # What is granted next is fitted to what was granted before.
    wishes = [Relayout(instances=1), Relayout(choose("bi"))]
    with pytest.raises(InvalidRequest, match=r"layout bi needs .* found 1"):
        check(wishes)
    check([*wishes[:1], Relayout(choose("bi"), 2)])


def test_a_restart_with_other_settings_forgets_moves_that_were_not_made():
    query = two_way(window(), instances=4)
    manifest = manifest_of(query)
    planned, _ = wished(query, manifest, Relayout(instances=6))
    asked = replace(query.operators[0], instances=5)
    resumed, (reason,) = step.resume(
        QuerySpec((asked,), query.sources), with_state(manifest, planned), [Hash()], lazy=False
    )
    layouts = resumed.operators[0].layouts
    assert layouts.newest.wanted == 5
    assert isinstance(layouts.pending, Rehome)
    assert layouts.pending.before.wanted == 4
    assert reason.cause is Cause.RESTART


# Whole steps


def block(operator, side, instances):
    return Block(operator, side, f"block-{operator}-{side}", (np.arange(instances + 1),))


def test_a_join_gets_tasks_only_where_something_arrives_or_is_due():
    query = two_way(window(), instances=4)
    manifest = manifest_of(query)
    (operator,), (state,) = query.operators, manifest.operators
    batch = opened(manifest)
    none = step.order(program(query), batch, operator, Attempt(state), Arrived(), Discard)
    assert none == []
    arrived = Arrived((block(0, LEFT, 4),))
    tasks = step.order(program(query), batch, operator, Attempt(state), arrived, Discard)
    assert [task.header.hosted for task in tasks] == [(0, 2), (1, 3)]
    assert {type(task.header.target) for task in tasks} == {Discard}


def test_results_of_an_earlier_join_go_into_the_next_one():
    query = chain()
    manifest = replace(manifest_of(query), serials=70)
    first = query.operators[0]
    arrived = Arrived((block(0, LEFT, 3),))
    batch = opened(manifest, number=4)
    tasks = step.order(
        program(query), batch, first, Attempt(manifest.operators[0]), arrived, Discard
    )
    targets = [task.header.target for task in tasks]
    assert all(isinstance(target, ToOperator) for target in targets)
    assert [(t.role.operator, t.role.side, t.origin) for t in targets] == [
        (1, LEFT, (4, number, 70 + number)) for number in range(len(tasks))
    ]


def test_an_operator_gets_its_own_blocks_alone():
    query = chain()
    manifest = manifest_of(query)
    second = query.operators[1]
    ours, others = block(1, RIGHT, 3), block(0, LEFT, 3)
    (task, *_) = step.order(
        program(query),
        opened(manifest),
        second,
        Attempt(manifest.operators[1]),
        Arrived((others, ours)),
        Discard,
    )
    assert [[block.file for block in side] for side in task.blocks] == [[], [ours.file]]


def test_a_task_is_told_of_its_own_runs_moves_and_files_alone():
    query = two_way(window(), instances=4)
    manifest = manifest_of(query)
    runs = [run_of(instance, name=f"run-{instance}") for instance in range(4)]
    state = holding(manifest.operators[0], *runs)
    files = {run.file: StoredFile(run.file, 1, 1) for run in runs}
    state = replace(state, shelves=replace(state.shelves, files=files))
    moves = Moves((Pull(LEFT, 3, 0, 5, 9),), (Drop(LEFT, 3, 5, 9),))
    layouts = replace(state.layouts, pending=Move(state.layouts.newest, moves))
    state = replace(state, layouts=layouts)
    batch, arrived = opened(manifest), Arrived((block(0, LEFT, 4),))
    tasks = step.order(program(query), batch, query.operators[0], Attempt(state), arrived, Discard)
    assert [task.header.hosted for task in tasks] == [(0, 2), (1, 3)]
    assert [sorted(task.header.files) for task in tasks] == [
        ["run-0", "run-2", "run-3"],  # it pulls from instance 3
        ["run-1", "run-3"],
    ]
    for task in tasks:
        named = {run.file for spine in task.stored.runs.values() for run in spine}
        assert named == set(task.header.files)
    assert [(len(t.stored.moves.pulls), len(t.stored.moves.drops)) for t in tasks] == [
        (1, 0),
        (0, 1),
    ]


def hot(instances=4, tuples=1000):
    """A report of one hot key, all of it at its home."""
    home, hash_ = 2, 2
    counts = InstanceReport(received=[tuples, 0], stored=[tuples, 0])
    keys = KeyCounts(
        *(np.array([value]) for value in (home, 0)),
        np.array([hash_], np.uint64),
        np.array([tuples]),
        np.array([tuples]),
    )
    changes = Changes()
    changes.change(run_of(home, rows=tuples))
    return OperatorReport(0, {home: counts}, {STATE: changes}, [keys])


def closed(query, manifest, reports, **settings):
    ran = [Ran(Attempt(state), [], reports, fold(state, reports)) for state in manifest.operators]
    arrived = Arrived(inputs=(seen(LEFT, 5), seen(RIGHT, 5)))
    computed = Computed(Routed(opened(manifest), []), ran, arrived)
    return step.close(program(query, **settings), computed, Moment(1.0, "nonce"))


def test_a_hot_key_is_planned_for_with_its_counts_sealed():
    query = two_way(window(), instances=4)
    after = closed(query, manifest_of(query, Mnrt()), [hot()])
    layouts = after.outcome.operators[0].layouts
    (join,) = after.record.joins
    assert join.reason.cause is Cause.HEAVY_KEY
    assert isinstance(layouts.pending, Move)
    assert layouts.newest.layout.table.split_keys == 1
    (name,) = after.sealed
    assert name == "g1-counts-00000000-0-nonce.npz"
    assert [stored.name for stored in layouts.history] == [name]
    assert set(after.counts) == {name}
    assert after.outcome.batch == 0
    assert after.outcome.operators[0].clock.watermark == 5


def test_a_step_is_a_function_of_its_arguments():
    query = two_way(window(), instances=4)
    first, second = (closed(query, manifest_of(query, Mnrt()), [hot()]) for _ in range(2))
    assert [one.layouts.newest.to_json() for one in first.outcome.operators] == [
        one.layouts.newest.to_json() for one in second.outcome.operators
    ]
    assert first.outcome.results == second.outcome.results


def test_a_layout_without_a_planner_seals_no_counts():
    query = two_way(window(), instances=4)
    after = closed(query, manifest_of(query), [hot()])
    assert after.sealed == {}
    assert after.record.joins[0].reason is None
