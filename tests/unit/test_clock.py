"""Watermarks, and batches without data, as values."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from joinengine.driver import clock
from joinengine.model.windows import within
from joinengine.operators.timing import limit_of_side
from joinengine.sources.places import Seen
from joinengine.state.operator_state import PENDING
from joinengine.state.partitions import Partitions
from joinengine.wire.reports import Lag, RouteReport
from tests.harness import two_way
from tests.unit.states import (
    LEFT,
    RIGHT,
    SECOND,
    advanced,
    chain,
    holding,
    manifest_of,
    run_of,
    seen,
    window,
    with_state,
)

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


def test_a_side_that_has_ended_is_not_idle_and_waits_for_the_other():
    """The end comes, however long all have been silent, but not while one side may go on."""
    query = two_way(window(idle_after="5 s"))
    start = advanced(query, manifest_of(query), seen(LEFT, 50), seen(RIGHT, 30), now_s=100.0)
    one = advanced(query, start, seen(LEFT, 90), progress={0: math.inf}, now_s=106.0)
    assert one.operators[0].clock.watermark == 30
    both = advanced(query, start, progress={0: math.inf, 1: math.inf}, now_s=106.0)
    assert both.operators[0].clock.watermark == math.inf


def partitioned(source, newest, behind, idle_s=5):
    """What a batch tells of the partitions of a source."""
    lag = Lag(behind, int(idle_s * 1e6))
    return RouteReport(0, newest={source: Seen(newest)}, lags={source: lag})


def test_the_slowest_partition_counts_until_it_is_idle():
    query = two_way(window())
    told = partitioned(0, {0: 90, 1: 40}, {0: 0, 1: 0})
    start = advanced(
        query, manifest_of(query), seen(LEFT, 90), seen(RIGHT, 99), routed=[told], now_s=100.0
    )
    assert start.operators[0].clock.watermark == 40
    again = partitioned(0, {0: 95}, {0: 0, 1: 0})
    held = advanced(query, start, seen(LEFT, 95), routed=[again], now_s=104.0)
    assert held.operators[0].clock.watermark == 40
    aside = advanced(query, held, seen(LEFT, 95), routed=[again], now_s=105.0)
    assert aside.operators[0].clock.watermark == 95
    waiting = advanced(query, held, routed=[partitioned(0, {}, {0: 0, 1: 7})], now_s=105.0)
    assert waiting.operators[0].clock.watermark == 40  # it has something to read


def test_a_partition_that_has_brought_nothing_is_waited_for_and_all_idle_ones_are_not():
    query = two_way(window())
    told = partitioned(0, {0: 90}, {0: 0, 1: 0})
    start = advanced(
        query, manifest_of(query), seen(LEFT, 90), seen(RIGHT, 99), routed=[told], now_s=100.0
    )
    assert start.operators[0].clock.watermark == -math.inf
    silent = advanced(query, start, routed=[partitioned(0, {}, {0: 0, 1: 0})], now_s=109.0)
    assert silent.operators[0].clock.watermark == 90


def test_a_tick_is_due_when_the_slowest_partition_steps_aside():
    query = two_way(window())
    told = partitioned(0, {0: 90, 1: 40}, {0: 0, 1: 0})
    start = advanced(
        query, manifest_of(query), seen(LEFT, 90), seen(RIGHT, 99), routed=[told], now_s=100.0
    )
    kept = with_state(start, holding(start.operators[0], run_of(LEFT, 90)))
    assert clock.tick_due(query, replace(kept, quiet=False), 101.0) == 105.0
    assert clock.tick_due(query, replace(kept, quiet=False), 106.0) is None


def test_the_time_for_which_no_driver_ran_is_no_silence():
    query = two_way(window())
    told = partitioned(0, {0: 90, 1: 40}, {0: 0, 1: 0})
    last = advanced(query, manifest_of(query), seen(LEFT, 90), routed=[told], now_s=100.0)
    last = replace(last, clock_s=102.0)
    again = clock.awake(last, 202.0)
    assert [side.idle_since for side in again.operators[0].clock.sides] == [200.0, 200.0]
    assert again.partitions[0].clocks == {0: (90, 200.0), 1: (40, 200.0)}
    set_back = clock.awake(last, 50.0)  # by 52 s and some more: the machine's clock was set back
    assert [side.idle_since for side in set_back.operators[0].clock.sides] == [48.0, 48.0]
    older = replace(last, clock_s=0.0)  # an earlier version's
    assert clock.awake(older, 202.0) == older


def test_partitions_come_back_from_a_manifest():
    told = Partitions(5.0, {0: (90.0, 1.5), 3: (-math.inf, 2.5)}, {0: 0, 3: 7}, {0: 1.25})
    content = json.loads(json.dumps(told.to_json()))
    assert Partitions.from_json(content) == told
    older = [content[0], [row[:4] for row in content[1]]]
    assert Partitions.from_json(older) == replace(told, read={})


def test_the_lag_of_a_partition_is_the_age_of_the_message_that_was_read_last():
    query = two_way(window())
    tasks = [
        RouteReport(0, newest={0: Seen({}, {0: 92_500, 1: 40_000})}),
        RouteReport(1, newest={0: Seen({}, {0: 90_000})}),
    ]
    told = [partitioned(0, {}, {0: 5, 1: 0, 2: 3}), *tasks]
    after = advanced(query, manifest_of(query), routed=told, now_s=100.0)
    again = partitioned(0, {}, {0: 6, 1: 1, 2: 0})
    for manifest, expected in (
        (after, [7.5, 0.0, None]),
        (advanced(query, after, routed=[again], now_s=101.0), [7.5, 60.0, 0.0]),
    ):
        one = manifest.partitions[0]
        assert [one.lag_s(number, 100.0) for number in range(3)] == expected
    assert after.partitions[0].lag_s(0, 90.0) == 0.0  # a clock that was set back


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


def test_an_open_interval_bounds_the_age_of_its_rows_by_one_side_alone():
    earlier, later = chain().operators
    opened = within("lt", "rt", lower="-3 us", delay="0 us")
    query = replace(chain(), operators=(replace(earlier, window=opened), later))
    inputs = [seen(LEFT, 50), seen(RIGHT, 40), seen(RIGHT, 99, operator=1)]
    after = advanced(query, manifest_of(query), *inputs)
    assert query.operators[0].output_lag_us(("rt",)) == 3
    assert after.operators[1].clock.watermark == 37
    assert query.operators[0].output_lag_us(("lt",)) is None
    assert query.operators[0].output_lag_us(("lt", "rt")) == 0


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
    assert clock.tick_due(query, replace(manifest_of(query), quiet=True), 5.0) is None


def test_a_quiet_batch_that_let_state_expire_makes_one_due():
    query = two_way(window())
    manifest = advanced(
        query, manifest_of(query), seen(LEFT, 50 * SECOND), seen(RIGHT, 50 * SECOND)
    )
    old = holding(manifest.operators[0], run_of(0, newest=SECOND))
    young = holding(manifest.operators[0], run_of(0, newest=45 * SECOND))
    assert clock.tick_due(query, replace(with_state(manifest, old), quiet=True), 5.0) == 5.0
    assert clock.tick_due(query, replace(with_state(manifest, old), quiet=False), 5.0) is None
    assert clock.tick_due(query, replace(with_state(manifest, young), quiet=True), 5.0) is None


def test_a_side_that_may_become_idle_makes_one_due_then():
    query = two_way(window(idle_after="5 s"))
    manifest = advanced(query, manifest_of(query), seen(LEFT, 50), seen(RIGHT, 30), now_s=100.0)
    held = with_state(manifest, holding(manifest.operators[0], run_of(0, newest=50)))
    assert clock.tick_due(query, replace(held, quiet=False), 102.0) == 105.0


def test_entries_that_can_be_judged_make_one_due():
    query = two_way(window(), how="left")
    manifest = advanced(query, manifest_of(query), seen(LEFT, 50), seen(RIGHT, 50))
    due = holding(manifest.operators[0], run_of(0, oldest=49, newest=60), shelf=PENDING)
    open_ = holding(manifest.operators[0], run_of(0, oldest=50, newest=60), shelf=PENDING)
    assert clock.tick_due(query, replace(with_state(manifest, due), quiet=False), 3.0) == 3.0
    assert clock.tick_due(query, replace(with_state(manifest, open_), quiet=False), 3.0) is None
