"""What a query says unasked: rows that it leaves out, and state that grows for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joinengine import StreamAggregate, windows
from joinengine.balancing.reasons import Balance, Cause, Cost, Reason
from joinengine.driver.records import BatchRecord, OperatorRecord, Refused, SideRecord, StateRecord
from joinengine.model.keys import Side
from joinengine.model.windows import within
from joinengine.reporting.alerts import MARKED, Alerts
from joinengine.wire.reports import CappedKey
from tests.harness import LEFT, two_way
from tests.laws.changing import SCHEMAS, joined, stream
from tests.unit.states import chain


def batch(number, left=None, right=None, **more):
    sides = [SideRecord(refused=one or Refused(100)) for one in (left, right)]
    entry = OperatorRecord(3, sides=sides, **more)
    return BatchRecord(number, 0.0, {"elapsed_s": 0.0}, joins=[entry])


@pytest.fixture
def alerts():
    window = within("lt", "rt", lower="0 s", upper="1 s", delay="0 s")
    return Alerts(two_way(window))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("late", "arrived later than the delay allows"),
        ("null", "have no key or no event time"),
        ("ahead", "further ahead of the clock than max_ahead"),
        ("change", "have a change that is NULL, 0 or a word without a meaning"),
    ],
)
def test_a_stream_is_named_once_and_in_the_end(reason, words, alerts):
    few = Refused(1000, **{reason: int(MARKED * 1000) - 1})
    assert alerts.take(batch(0, left=few)) == []
    many = Refused(1000, **{reason: int(MARKED * 1000)})
    (said,) = alerts.take(batch(1, left=many))
    assert said.startswith("batch 1: 10 of 1,000 rows (1%) of ")
    assert words in said
    assert alerts.take(batch(2, left=many)) == []
    (other,) = alerts.take(batch(3, left=many, right=many))
    assert other != said
    first, second = alerts.sums()
    assert first.startswith("in total, 39 of 4,000 rows (1%) of ")
    assert second.startswith("in total, 10 of 1,300 rows (1%) of ")
    assert words in first


def test_a_row_without_a_time_is_in_no_window_of_an_aggregate():
    panes = windows("lt", "1 hour", delay="1 s")
    given = {"aggregates": {"n": "count(*)"}, "window": panes, "instances": 3}
    alerts = Alerts(StreamAggregate(stream("left", LEFT), by="lk", **given).query())
    entries = [batch(0, left=Refused(10, null=3)).joins[0], *[OperatorRecord(3)] * 9]
    entries = entries[: len(alerts.query.operators)]
    (said,) = alerts.take(BatchRecord(0, 0.0, {"elapsed_s": 0.0}, joins=entries))
    assert "have no event time, so no window holds them. If that is not intended" in said
    alerts.take(BatchRecord(1, 0.0, {"elapsed_s": 0.0}, joins=entries))
    assert alerts.sums()[0].endswith("have no event time, so no window holds them")


def test_a_join_that_leaves_out_pairs_is_named_once_and_in_the_end(alerts):
    keys = [CappedKey(7, 1_000, 2_000, "lisa"), CappedKey(9, 1_000, 4, None)]
    (said,) = alerts.take(batch(0, capped_pairs=2_004, capped=keys))
    assert said.startswith("batch 0: the key lisa of join 0 has 3,000 pairs, of which")
    assert "left out 2,000," in said
    assert alerts.take(batch(1)) == []
    assert alerts.take(batch(2, capped_pairs=6, capped=keys[1:])) == []
    assert [*alerts.sums()] == ["in total, max_pairs_per_key left out 2,010 pairs of join 0"]
    (said,) = Alerts(alerts.query).take(batch(0, capped_pairs=4, capped=keys[1:]))
    assert "the key with a value that is not told of join 0" in said


def test_an_instance_that_stays_full_is_named_once(alerts):
    alerts = replace(alerts, capacity=80)
    full, room = (StateRecord(held=held) for held in ([20, 130], [20, 70]))
    grown = Reason(Cause.CAPACITY, Balance(1, 1), None, Cost())
    for number, (state, reason) in enumerate(
        [(full, None), (full, grown), (full, None), (room, None), (full, None), (full, None)]
    ):
        assert alerts.take(batch(number, state=state, reason=reason)) == []
    (said,) = alerts.take(batch(6, state=full))
    assert said.startswith("batch 6: instance 1 of join 0 holds 130 rows, above its capacity of 80")
    assert not any(alerts.take(batch(number, state=full)) for number in range(7, 12))
    unbound = replace(alerts, capacity=None)
    assert not any(unbound.take(batch(number, state=full)) for number in range(5))


def named(alerts, left, right):
    """The alerts of a query whose sources have these names."""
    return replace(alerts, query=replace(alerts.query, sources=(left, right)))


def test_two_frames_are_told_apart_by_their_sides_and_get_a_cure_for_frames(alerts):
    frames = named(alerts, "dataframe", "dataframe")
    first, second = frames.take(batch(0, left=Refused(10, late=4), right=Refused(10, null=3)))
    assert first.startswith("batch 0: 4 of 10 rows (40%) of the left side (dataframe) arrived")
    assert first.partition(". ")[2].startswith("Give a longer delay=, or if none is given, ")
    assert "--file-order" not in first
    assert "3 of 10 rows (30%) of the right side (dataframe) have no key" in second
    assert second.endswith("check these columns in the source")
    assert frames.sums() == [], "one batch has said it all"
    assert frames.take(batch(1)) == []
    assert "of the right side (dataframe)" in frames.sums()[1]


def test_a_folder_gets_the_cure_for_files(alerts):
    folders = named(alerts, "folder /clicks", "folder /sales")
    (said,) = folders.take(batch(0, right=Refused(10, late=4)))
    assert "of the right side (folder /sales) arrived" in said
    assert "parquet_stream(.., order='time') or --file-order time" in said


def test_the_operator_is_named_if_there_are_several():
    alerts = Alerts(chain())
    late = [SideRecord(), SideRecord(refused=Refused(10, late=4))]
    entries = [OperatorRecord(3), OperatorRecord(3, sides=late)]
    (said,) = alerts.take(BatchRecord(0, 0.0, {"elapsed_s": 0.0}, joins=entries))
    assert "of the right side of operator 1 (" in said


def test_reasons_are_named_one_by_one(alerts):
    said = alerts.take(batch(0, right=Refused(10, late=4, null=3, ahead=2)))
    assert alerts.take(batch(1)) == []
    assert len(said) == len(alerts.sums()) == 3


def test_a_side_that_brings_nothing_is_not_named(alerts):
    assert alerts.take(batch(0, left=Refused(), right=Refused())) == []
    assert alerts.sums() == []


def test_a_join_without_a_window_says_once_how_its_state_grows():
    alerts = Alerts(two_way(None))
    assert alerts.take(batch(0)) == []
    (said,) = alerts.take(batch(1, state=StateRecord(200, 6000)))
    assert said.startswith("join 0 has no window, so its state grows without bound: by 30.0 MB per")
    assert alerts.take(batch(2, state=StateRecord(400, 12_000))) == []
    assert alerts.sums() == []


@pytest.mark.parametrize("why", ["a window", "a table", "changes"])
@pytest.mark.parametrize("ends", [False, True])
def test_state_that_does_not_grow_for_ever_needs_no_word(why, ends):
    window = within("lt", "rt", lower="0 s", upper="1 s", delay="0 s") if "window" in why else None
    query = two_way(window, table=Side.RIGHT if "table" in why else None)
    query = joined().query() if "changes" in why else query
    alerts = Alerts(query, ends=ends, before=[(100, 3000)])
    assert alerts.take(batch(1, state=StateRecord(200, 6000))) == []
    assert alerts.sums() == []


def test_changes_of_one_side_alone_do_not_keep_the_state_from_growing():
    query = joined(schemas=(LEFT, SCHEMAS[1]), changes=(None, "_change")).query()
    (said,) = Alerts(query).take(batch(1, state=StateRecord(200, 6000)))
    assert "its state grows without bound" in said


def test_a_query_that_ends_says_at_its_end_how_its_state_grows_from_start_to_start():
    alerts = Alerts(two_way(None), ends=True, before=[(200, 6000)])
    assert alerts.take(batch(4, state=StateRecord(300, 9000))) == []
    assert alerts.take(batch(5, state=StateRecord(1400, 42_000))) == []
    (said,) = alerts.sums()
    assert said.startswith(
        "join 0 has no window, so its state grows with every start: in this run from 200 rows "
        "(6.0 kB) to 1,400 rows (42.0 kB). If old rows need not match"
    )


@pytest.mark.parametrize("before", [[], [(0, 0)], [(200, 6000)]])
def test_a_single_run_and_one_without_new_rows_say_nothing_of_growth(before):
    alerts = Alerts(two_way(None), ends=True, before=before)
    assert alerts.take(batch(1, state=StateRecord(200, 6000))) == []
    assert alerts.sums() == []
