"""The driver's decisions as values: a manifest and reports in, instructions and a manifest out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from joinengine.balancing.statistics import KeyCounts
from joinengine.driver import clock, relayout, step
from joinengine.driver.folding import fold
from joinengine.driver.relayout import Relayout
from joinengine.driver.settings import Settings
from joinengine.driver.step import Arrived, Batch, Done, Moment, Program
from joinengine.exchange.reports import Block, InputReport, InstanceReport, OperatorReport
from joinengine.exchange.results import Discard, ToOperator
from joinengine.layouts import Bi, Hash, Mnrt, choose
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.query import FromOperator, FromSource
from joinengine.model.windows import within
from joinengine.operators.base import QuerySpec
from joinengine.operators.timing import limit_of_side
from joinengine.state.keeper import Changes
from joinengine.state.operator_state import PENDING, STATE, Move, Rehome, Shelves
from joinengine.state.run import Run
from tests.harness import two_way

LEFT, RIGHT = Side.LEFT, Side.RIGHT
SECOND = 1_000_000


def window(lower="0 s", upper="10 s", idle_after=None):
    return within("lt", "rt", lower=lower, upper=upper, delay="0 s", idle_after=idle_after)


def program(query, **settings):
    return Program(query, Settings(**settings), "runs", 2, driver="one")


def manifest_of(query, *choices):
    return step.begin(query, choices or [Hash()] * len(query.operators), "q")


def seen(side, time, rows=1, operator=0):
    return InputReport(operator, side, rows=rows, newest_time=time)


def run_of(instance, side=LEFT, rows=10, oldest=0, newest=0, name="run", version=0):
    return Run(
        name, 0, side, instance, version, rows, rows * 8, 0, min_time=oldest, max_time=newest
    )


def holding(state, *runs, shelf=STATE):
    held = {run.ident: run for run in runs}
    return replace(state, shelves=Shelves({**state.shelves.runs, shelf: held}))


def with_state(manifest, state, at=0):
    operators = list(manifest.operators)
    operators[at] = state
    return replace(manifest, operators=tuple(operators))


def advanced(query, manifest, *inputs, now_s=0.0, progress=None):
    states = clock.advance(
        query, manifest.operators, manifest.operators, inputs, progress or {}, now_s
    )
    return replace(manifest, operators=states)


def chain(how="inner", upper="10 s"):
    """A join whose left side is another join's result, by that one's right time."""
    first = two_way(window(), how=how).operators[0]
    second = replace(
        first,
        index=1,
        inputs=(FromOperator(0), FromSource(2)),
        schemas=(first.output_schema, first.schemas[1]),
        window=replace(window(upper=upper), times=(("rt",), ("rt",)), delays_us=(0, 0)),
    )
    return QuerySpec((first, second), ("left", "right", "third"))


# Watermarks


def test_the_watermark_is_the_least_over_the_sides():
    query = two_way(window())
    after = advanced(query, manifest_of(query), seen(LEFT, 50), seen(RIGHT, 30), seen(LEFT, 20))
    assert after.operators[0].clock.watermark == 30
    assert [side.newest for side in after.operators[0].clock.sides] == [50, 30]


def test_a_watermark_never_falls_and_keeps_the_last_as_closed():
    query = two_way(window())
    once = advanced(query, manifest_of(query), seen(LEFT, 50), seen(RIGHT, 30))
    twice = advanced(query, once, seen(LEFT, 10), seen(RIGHT, 10))
    assert (twice.operators[0].clock.watermark, twice.operators[0].clock.closed) == (30, 30)


def test_a_side_that_has_brought_nothing_holds_the_watermark():
    query = two_way(window())
    after = advanced(query, manifest_of(query), seen(LEFT, 50))
    assert after.operators[0].clock.watermark == -math.inf


def test_an_idle_side_is_left_out_unless_both_are():
    query = two_way(window(idle_after="5 s"))
    start = advanced(query, manifest_of(query), seen(LEFT, 50), seen(RIGHT, 30), now_s=100.0)
    later = advanced(query, start, seen(LEFT, 90), now_s=106.0)
    assert later.operators[0].clock.watermark == 90
    silent = advanced(query, start, now_s=106.0)
    assert silent.operators[0].clock.watermark == 30


def test_progress_of_a_source_moves_the_watermark_without_tuples():
    query = two_way(window())
    after = advanced(query, manifest_of(query), progress={0: math.inf, 1: 70.0})
    clock_of = after.operators[0].clock
    assert clock_of.watermark == 70
    assert clock_of.sides[LEFT].newest == math.inf


def test_a_chain_waits_for_what_the_first_join_may_still_make():
    """An inner join's rows lag by what its window spans on the side that gives their time."""
    query = chain()
    inputs = [seen(LEFT, 50 * SECOND), seen(RIGHT, 50 * SECOND)]
    after = advanced(query, manifest_of(query), *inputs, seen(RIGHT, 99 * SECOND, operator=1))
    first, second = after.operators
    assert first.clock.watermark == 50 * SECOND
    lag = query.operators[0].output_lag_us(("rt",))
    assert second.clock.watermark == 50 * SECOND - lag
    assert not second.clock.held_back


def test_results_that_come_a_batch_late_hold_the_next_join_back_by_a_batch():
    query = chain(how="full")
    inputs = [seen(LEFT, 50 * SECOND), seen(RIGHT, 50 * SECOND)]
    after = advanced(query, manifest_of(query), *inputs, seen(RIGHT, 99 * SECOND, operator=1))
    second = after.operators[1].clock
    assert second.watermark == -math.inf
    assert second.held_back
    quiet = advanced(query, after)
    assert quiet.operators[1].clock.watermark > -math.inf
    assert not quiet.operators[1].clock.held_back


def test_the_limit_of_a_side_is_that_of_its_source_less_the_delay():
    query = two_way(replace(window(), delays_us=(7, 0)))
    (join,) = query.operators
    upstream = clock.Upstream(query.operators, (), (), {})
    assert limit_of_side(join, LEFT, 100, upstream).time == 93
    assert limit_of_side(join, RIGHT, 100, upstream).time == 100


# Batches without data


def test_no_batch_is_due_where_nothing_is_held():
    query = two_way(window())
    assert clock.tick_due(query, manifest_of(query), quiet=True, now_s=5.0) is None


def test_a_quiet_batch_that_let_state_expire_makes_one_due():
    query = two_way(window())
    manifest = advanced(
        query, manifest_of(query), seen(LEFT, 50 * SECOND), seen(RIGHT, 50 * SECOND)
    )
    old = holding(manifest.operators[0], run_of(0, newest=SECOND))
    young = holding(manifest.operators[0], run_of(0, newest=45 * SECOND))
    assert clock.tick_due(query, with_state(manifest, old), quiet=True, now_s=5.0) == 5.0
    assert clock.tick_due(query, with_state(manifest, old), quiet=False, now_s=5.0) is None
    assert clock.tick_due(query, with_state(manifest, young), quiet=True, now_s=5.0) is None


def test_a_side_that_may_become_idle_makes_one_due_then():
    query = two_way(window(idle_after="5 s"))
    manifest = advanced(query, manifest_of(query), seen(LEFT, 50), seen(RIGHT, 30), now_s=100.0)
    held = with_state(manifest, holding(manifest.operators[0], run_of(0, newest=50)))
    assert clock.tick_due(query, held, quiet=False, now_s=102.0) == 105.0


def test_entries_that_can_be_judged_make_one_due():
    query = two_way(window(), how="left")
    manifest = advanced(query, manifest_of(query), seen(LEFT, 50), seen(RIGHT, 50))
    due = holding(manifest.operators[0], run_of(0, oldest=49, newest=60), shelf=PENDING)
    open_ = holding(manifest.operators[0], run_of(0, oldest=50, newest=60), shelf=PENDING)
    assert clock.tick_due(query, with_state(manifest, due), quiet=False, now_s=3.0) == 3.0
    assert clock.tick_due(query, with_state(manifest, open_), quiet=False, now_s=3.0) is None


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
    changes.change(replace(run_of(1, name="b"), excluded=4))
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
    other, replanned = wished(query, manifest, Relayout(choose("bi")))
    assert isinstance(other.layouts.pending, Rehome)
    assert other.layouts.newest.choice == Bi()
    assert not replanned


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
    grown, replanned = wished(query, held, capacity=60)
    assert grown.layouts.newest.layout.instances > 2
    assert not replanned
    kept, _ = wished(query, held, capacity=100)
    assert kept.layouts.newest.layout.instances == 2


def test_a_wish_that_a_layout_cannot_serve_is_refused():
    query = two_way(window(), instances=4)
    (operator,), (state,) = query.operators, manifest_of(query).operators
    with pytest.raises(InvalidRequest, match="layout bi cannot have 1"):
        relayout.check(operator, state.layouts, Relayout(choose("bi"), 1))


def test_a_restart_with_other_settings_forgets_moves_that_were_not_made():
    query = two_way(window(), instances=4)
    manifest = manifest_of(query)
    planned, _ = wished(query, manifest, Relayout(instances=6))
    asked = replace(query.operators[0], instances=5)
    resumed = step.resume(
        QuerySpec((asked,), query.sources), with_state(manifest, planned), [Hash()], lazy=False
    )
    layouts = resumed.operators[0].layouts
    assert layouts.newest.wanted == 5
    assert isinstance(layouts.pending, Rehome)
    assert layouts.pending.before.wanted == 4


# Whole steps


def block(operator, side, instances):
    return Block(operator, side, f"block-{operator}-{side}", (np.arange(instances + 1),))


def test_a_join_gets_tasks_only_where_something_arrives_or_is_due():
    query = two_way(window(), instances=4)
    manifest = manifest_of(query)
    (operator,), (state,) = query.operators, manifest.operators
    batch = Batch(0, "exchange", 1)
    none = step.order(program(query), manifest, batch, operator, state, Arrived(), {}, Discard)
    assert none == []
    arrived = Arrived((block(0, LEFT, 4),))
    tasks = step.order(program(query), manifest, batch, operator, state, arrived, {}, Discard)
    assert [task.header.hosted for task in tasks] == [(0, 2), (1, 3)]
    assert {type(task.header.target) for task in tasks} == {Discard}


def test_results_of_an_earlier_join_go_into_the_next_one():
    query = chain()
    manifest = manifest_of(query)
    first = query.operators[0]
    arrived = Arrived((block(0, LEFT, 3),))
    batch = Batch(4, "exchange", 1)
    tasks = step.order(
        program(query), manifest, batch, first, manifest.operators[0], arrived, {}, Discard
    )
    targets = [task.header.target for task in tasks]
    assert all(isinstance(target, ToOperator) for target in targets)
    assert [(t.role.operator, t.role.side, t.origin) for t in targets] == [
        (1, LEFT, (4, number)) for number in range(len(tasks))
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
    states = [fold(state, reports) for state in manifest.operators]
    done = Done(states, [reports], Arrived(inputs=(seen(LEFT, 5), seen(RIGHT, 5))), {})
    batch = Batch(manifest.batch + 1, "exchange", 1)
    return step.close(
        program(query, **settings), manifest, batch, done, {}, [], Moment(1.0, "nonce")
    )


def test_a_hot_key_is_planned_for_with_its_counts_sealed():
    query = two_way(window(), instances=4)
    after = closed(query, manifest_of(query, Mnrt()), [hot()])
    layouts = after.manifest.operators[0].layouts
    assert after.replanned == (True,)
    assert isinstance(layouts.pending, Move)
    assert layouts.newest.layout.table.split_keys == 1
    (name,) = after.sealed
    assert name == "g1-counts-00000000-0-nonce.npz"
    assert [stored.name for stored in layouts.history] == [name]
    assert set(after.counts) == {name}
    assert after.manifest.batch == 0
    assert after.manifest.operators[0].clock.watermark == 5


def test_a_step_is_a_function_of_its_arguments():
    query = two_way(window(), instances=4)
    first, second = (closed(query, manifest_of(query, Mnrt()), [hot()]) for _ in range(2))
    assert [one.layouts.newest.to_json() for one in first.manifest.operators] == [
        one.layouts.newest.to_json() for one in second.manifest.operators
    ]
    assert first.manifest.results == second.manifest.results


def test_a_layout_without_a_planner_seals_no_counts():
    query = two_way(window(), instances=4)
    after = closed(query, manifest_of(query), [hot()])
    assert after.sealed == {}
    assert after.replanned == (False,)
