"""What a prompt shows of streams, tables and queries: one line, and why rows wait."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from joinengine import (
    InvalidRequest,
    StreamAggregate,
    StreamJoin,
    asof,
    equi,
    theta,
    windows,
    within,
)
from joinengine.driver.records import BatchRecord, OperatorRecord, SideRecord, StateRecord, Worked
from joinengine.driver.settings import Settings
from joinengine.lab.emulation.emulating import Emulation
from joinengine.layouts import choose
from joinengine.reporting.explain import explain, not_reached, waiting_for
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream, Table
from joinengine.state.wished import Relayout

TIME = pa.timestamp("us", "UTC")
CLICKS = pa.schema([("user_id", pa.int64()), ("clicked_at", TIME)])
SALES = pa.schema(
    [("buyer_id", pa.int64()), ("bought_at", TIME), *((f"c{n}", pa.int8()) for n in range(9))]
)

TIMES = "clicked_at", "bought_at"


def stream(path, schema):
    return Stream(None, {"kind": "folder", "path": path}, Reading(schema))


@pytest.fixture
def joined():
    window = within(
        "clicked_at", "bought_at", lower="0 s", upper="1 hour", delay="5 minutes", idle_after="9 s"
    )
    on = equi("user_id", "buyer_id")
    sides = stream("/clicks", CLICKS), stream("/sales", SALES)
    return StreamJoin(*sides, on=on, within=window, how="left", layout="bi", instances=4)


def test_one_line_each(joined):
    clicks = stream("/clicks", CLICKS)
    columns = "user_id int64, clicked_at timestamp[us, tz=UTC]"
    assert repr(clicks) == f"<Stream of /clicks: {columns}>"
    assert repr(clicks.where("user_id > 3")) == f"<Stream of /clicks: {columns} where user_id > 3>"
    assert repr(Table(None, "/sales", SALES)).endswith("c5 int8 and 3 more>")
    assert repr(joined) == (
        "<StreamJoin of folder /clicks and folder /sales: left, user_id = buyer_id, "
        "0 s <= bought_at - clicked_at <= 60 min; layout bi on 4 instances>"
    )
    counts = StreamAggregate(
        clicks,
        by="user_id",
        aggregates={"n": "count(*)"},
        window=windows("clicked_at", size="1 hour", delay="1 s"),
        instances=3,
    )
    assert repr(counts).startswith("<StreamAggregate of folder /clicks: ")
    assert repr(counts).endswith("; layout pkg on 3 instances>")
    # A query that cannot be built has a line all the same.
    twice = StreamJoin(joined, joined, on="user_id", suffixes=("_l", "_r"), instances=1)
    assert repr(twice) == "<StreamJoin>"


def test_a_plan_is_shown_as_it_is(joined):
    plan = explain(joined.query(), [joined._choice], instances=[6])
    assert repr(plan) == str(plan)
    assert "layout bi on 6 instances" in plan


def test_a_row_is_late_by_the_watermark_of_both_sides(joined):
    """It was told of each side as if its own newest row counted alone."""
    text = joined.explain()
    assert text.splitlines()[-1] == (
        "  late  rows before the watermark are left out: the newest left row - 5 min or the newest "
        "right row - 5 min, whichever is earlier; a side that is silent for 9 s does not count, "
        "unless all are"
    )
    assert "a row is late only" not in text


def test_what_pairs_must_fulfil_is_told_once():
    sides = stream("/clicks", CLICKS), stream("/sales", SALES)
    given = {"on": theta("left.user_id < buyer_id"), "instances": 2}
    (first, *_) = StreamJoin(*sides, **given, where="c1 > 3").explain().splitlines()
    assert first == "operator 0: inner join on (left.user_id < buyer_id) and (c1 > 3)"
    (first, *_) = StreamJoin(*sides, **given).explain().splitlines()
    assert first == "operator 0: inner join on left.user_id < buyer_id"
    keyed = {"on": equi("user_id", "buyer_id"), "instances": 2}
    (first, *_) = StreamJoin(*sides, **keyed, where="c1 > 3").explain().splitlines()
    assert first == "operator 0: inner join on user_id = buyer_id, where c1 > 3"


@pytest.mark.parametrize("how", ["inner", "left", "left_semi"])
def test_what_survives_losses_is_told(how):
    sides = stream("/clicks", CLICKS), stream("/sales", SALES)
    near = within("clicked_at", "bought_at", lower="0 s", upper="1 hour", delay="0 s")
    on = {"on": equi("user_id", "buyer_id"), "within": near}
    text = StreamJoin(*sides, **on, how=how, layout="ftlb", instances=3).explain()
    assert "inner joins survive the loss of any instance" in text
    assert ("this is no inner join: losses end the query" in text) is (how != "inner")


def test_what_was_requested_is_one_line(joined):
    def last(*wishes):
        lines = explain(joined.query(), [joined._choice], wishes=wishes).splitlines()
        return [line for line in lines if line.startswith("requested: ")]

    resized, switched = Relayout(instances=6), Relayout(choose("qmmp"))
    later = "; takes effect with the next batch"
    assert last() == []
    assert last(resized) == [f"requested: 6 instances{later}"]
    assert last(switched, resized) == [f"requested: layout qmmp on 6 instances{later}"]
    # The last wish of each kind is granted.
    wishes = Relayout(choose("hash"), 3), switched, resized
    assert last(*wishes) == last(switched, resized)


def test_who_waits_for_a_side_that_brings_nothing(joined):
    def told(pending, newest):
        sides = [SideRecord(newest=time) for time in newest]
        join = OperatorRecord(4, sides=sides, state=StateRecord(pending_rows=pending))
        return waiting_for(joined.query(), [BatchRecord(0, 0.0, joins=[join])])

    never = float("-inf")
    (said,) = told(60, (1.0, never))
    assert said.startswith("60 rows of operator 0 are still waiting")
    assert "its right side (folder /sales) has delivered no row with an event time" in said
    assert said.endswith("would wait 9 s for this side, if the other brings rows meanwhile")
    assert told(0, (1.0, never)) == told(60, (1.0, 2.0)) == []
    assert waiting_for(joined.query(), []) == []
    joined._window = replace(joined._window, idle_after_us=None)
    (said,) = told(60, (1.0, never))
    assert said.endswith("without idle_after= this side holds the watermark back for ever")


def test_a_writer_is_one_line_too(joined, monkeypatch):
    monkeypatch.setattr(type(joined), "_resolved", lambda self: None)
    writer = joined.writeStream.format("parquet").option("path", "/out")
    assert repr(writer) == f"<JoinWriter of {joined!r}: parquet, path='/out'; .start() starts it>"
    assert "no sink yet" in repr(joined.writeStream)


def test_a_name_is_refused_that_spark_could_not_take(joined, monkeypatch):
    monkeypatch.setattr(type(joined), "_resolved", lambda self: None)
    for name, why in {"a\ud800": r"'a\\ud800' holds half of a character", " ": "is empty"}.items():
        with pytest.raises(InvalidRequest, match=f"queryName: .*{why}"):
            joined.writeStream.queryName(name)
    assert joined.writeStream.queryName("größe \U0001f600").name == "größe \U0001f600"


def test_habits_of_dataframes_are_told_what_to_write(joined, monkeypatch):
    with pytest.raises(AttributeError, match=r"'Stream' .* no attribute 'filter': write \.where"):
        stream("/clicks", CLICKS).filter("user_id > 3")
    with pytest.raises(AttributeError, match=r"'StreamJoin' .* 'drop': name the columns to keep"):
        joined.drop("user_id")
    with pytest.raises(AttributeError, match=r"'StreamJoin' object has no attribute 'nonsense'$"):
        _ = joined.nonsense
    monkeypatch.setattr(type(joined), "_resolved", lambda self: None)
    with pytest.raises(AttributeError, match=r"'JoinWriter' .*: start the query first: \.start"):
        joined.writeStream.format("noop").awaitTermination()


def test_what_was_planned_for_batches_that_never_came_is_told():
    wish = [Relayout(instances=3)]
    trial = Emulation(losses={99: (3, 4), 2: (1,)})
    plans = Settings(trial=trial, kills=frozenset({50, 3}), schedule={4: wish, 5: wish})
    assert not_reached(plans, range(4)) == [
        "not reached: the change of layout before batch 5, the kill of an executor before batch "
        "50, the loss of instance 3 before batch 99, the loss of instance 4 before batch 99; this "
        "run had 4 batches, 0 to 3"
    ]
    (again,) = not_reached(plans, range(3, 100))
    assert again == (
        "not reached: the loss of instance 1 before batch 2; this run had 97 batches, 3 to 99"
    )
    (none,) = not_reached(Settings(kills=frozenset({1})), range(7, 7))
    assert none.endswith("before batch 1; this run had 0 batches")
    assert not_reached(plans, range(100)) == not_reached(Settings(), range(0)) == []


@pytest.mark.parametrize(
    ("direction", "tolerance", "until"),
    [
        ("backward", "1 hour", "clicked_at"),
        ("forward", None, "clicked_at and its nearest row"),
        ("nearest", "1 hour", "clicked_at and its nearest row, or clicked_at + 60 min"),
    ],
)
def test_how_long_a_row_waits_for_its_nearest_is_told(direction, tolerance, until):
    sides = stream("/clicks", CLICKS), stream("/sales", SALES)
    by = equi("user_id", "buyer_id")
    on = asof(*TIMES, by=by, direction=direction, tolerance=tolerance, delay="5 s")
    lines = StreamJoin(*sides, on=on, instances=2).explain().splitlines()
    assert f"  left  folder /clicks: a row waits until the watermark has passed {until}" in lines


def test_the_default_layout_of_an_aggregate_says_that_joins_probe():
    panes = windows("clicked_at", size="1 hour", delay="1 s")
    given = {"aggregates": {"n": "count(*)"}, "window": panes, "instances": 3}
    text = StreamAggregate(stream("/clicks", CLICKS), by="user_id", **given).explain()
    assert "a row is stored at the one with less load; in a join it probes both" in text


def test_pairs_compared_in_vain_are_told_with_what_there_is_to_do():
    def told(how="inner", **more):
        sides = stream("/clicks", CLICKS), stream("/sales", SALES)
        joined = StreamJoin(*sides, on=equi("user_id", "buyer_id"), how=how, instances=2, **more)
        entry = OperatorRecord(2, work=Worked(compared=[2_000_000], made=[3]))
        records = [BatchRecord(0, 0.0, joins=[entry])]
        lines = explain(joined.query(), [joined._choice], records=records).splitlines()
        return [line for line in lines if "were compared for 3 results" in line]

    near = {"within": within(*TIMES, lower="0 s", upper="1 hour", delay="0 s")}
    assert "to compare fewer, use a window, or add" in told()[0]
    assert "to compare fewer, use a shorter window, or add" in told(**near)[0]
    assert told("left_semi") == told("left_anti", **near) == []


def test_of_a_topic_the_slowest_partition_decides_what_is_late():
    sides = Stream(None, {"kind": "kafka", "path": "c"}, Reading(CLICKS)), stream("/sales", SALES)
    near = {"lower": "0 s", "upper": "1 hour", "delay": "5 s"}
    on = equi("user_id", "buyer_id")
    plans = {"within": within(*TIMES, **near), "on": on}, {"on": asof(*TIMES, by=on, delay="5 s")}
    for plan in plans:
        late = StreamJoin(*sides, **plan, instances=2).explain().splitlines()[-1]
        assert "the newest row of the slowest left partition - 5 s or the newest right row" in late
    panes = windows("clicked_at", size="1 hour", delay="1 s")
    given = {"aggregates": {"n": "count(*)"}, "window": panes, "instances": 3}
    text = StreamAggregate(sides[0], by="user_id", **given).explain()
    assert "more than 1 s behind the newest of the slowest partition" in text
