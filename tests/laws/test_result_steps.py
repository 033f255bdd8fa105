"""Filters, columns and names behind a join: of its results, however they are cut into batches."""

from __future__ import annotations

import tempfile
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine import InvalidRequest, StreamAggregate, StreamJoin, equi, windows, within
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import LAYOUTS
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from tests.harness import LEFT, RIGHT, LocalQuery
from tests.laws.cases import CHOICES, HOT, each_router, enough, feed, kills, relaxed, streams, ways
from tests.laws.changing import FED, Changing, joined, net_of_pairs
from tests.laws.changing import streams as streams_of_changes

SOURCES = [
    Stream(None, {"kind": "recorded", "path": name}, Reading(schema))
    for name, schema in (("l", LEFT), ("r", RIGHT))
]
#: No row is late, and bounds are far from those of 64 bits.
NEAR = within("lt", "rt", lower="-200 us", upper="300 us", delay="1 day")
#: Layouts that serve outer joins under windows.
EACH = [name for name in LAYOUTS if name not in ("bi", "bi-k")]


def join_of(layout, how="inner", **given):
    return StreamJoin(
        *SOURCES,
        on=equi("lk", "rk"),
        within=NEAR,
        how=how,
        layout=CHOICES[layout],
        instances=enough(layout, 3),
        **given,
    )


def stepped(join):
    """A filter, a column that is added, one that is replaced by itself, and other names."""
    return (
        join.where("coalesce(rv, lv) % 3 > 0")
        .withColumn("Mixed", "lv + coalesce(rv, 0)")
        .withColumn("LV", "lv * 2")
        .where("mixed > 3")
        .select({"v": "LV", "time": "lt", "k": "rk", "mixed": "Mixed"})
    )


def by_hand(results):
    """The same in Python, of rows (lk, lv, lt, rk, rv, rt)."""
    rows = Counter()
    for (_, lv, lt, rk, rv, _), n in results.items():
        both = None if lv is None else lv + (rv or 0)
        known = lv if rv is None else rv
        if known is not None and known % 3 and both is not None and both > 3:
            rows[lv * 2, lt, rk, both] += n
    return rows


def output(plan, layout, batches, kills=(), twice=False, way=None):
    """The results of a plan over batches, to the end of its sources."""
    choices = [node._choice for node in plan._flat()[0]]
    with tempfile.TemporaryDirectory() as folder:
        jobs = InlineJobs(twice=twice, **(way or {}))
        settings = Settings(checksum=True)
        query = LocalQuery(
            folder, plan.query(), layout, jobs=jobs, choices=choices, settings=settings
        )
        feed(query, batches, kills)
        query.jobs.step = lambda name: None
        query.finish(len(batches), most=20)
        found = query.output()
        told = sum(record.output_rows for record in query.records)
        assert kills or told == found.total(), "a record counts what leaves"
        return found


#: Near enough to the first moment, for windows that Python can count.
calm = streams().map(
    lambda batches: [
        tuple([row for row in side if row[2] is None or abs(row[2]) < 10**6] for side in both)
        for both in batches
    ]
)


@pytest.mark.parametrize("layout", each_router(EACH))
@relaxed
@given(calm, kills, st.booleans(), ways, st.sampled_from(["inner", "left", "full"]))
def test_steps_are_those_of_python(layout, batches, kills, twice, way, how):
    batches = [*batches, *HOT]
    plain = output(join_of(layout, how), layout, batches)
    found = output(stepped(join_of(layout, how)), layout, batches, kills, twice, way)
    assert found == by_hand(plain)
    assert found


@pytest.mark.parametrize("layout", each_router(EACH))
@relaxed
@given(calm, kills, st.booleans(), ways, st.booleans())
def test_steps_may_stand_between_two_operators(layout, batches, kills, twice, way, renamed):
    """Event time is handed on under its new name, and rows that are left out reach no window."""
    batches = [*batches, *HOT]
    join = join_of(layout, "left").where("rv is null or rv % 2 = 0").withColumn("s", "lv % 7")
    time = "lt"
    if renamed:
        join, time = join.select({"time": "lt", "s": "s", "lk": "lk"}), "time"
    counts = StreamAggregate(
        join,
        by="s",
        aggregates={"n": "count(*)", "k": "sum(lk)"},
        window=windows(time, "100 us"),
        instances=3,
    )
    wanted = Counter()
    groups = {}
    for (lk, lv, lt, _, rv, _), n in output(join_of(layout, "left"), layout, batches).items():
        if lt is not None and (rv is None or rv % 2 == 0):
            group = groups.setdefault((lv % 7, lt // 100 * 100), [])
            group += [lk] * n
    for (s, start), keys in groups.items():
        known = [key for key in keys if key is not None]
        wanted[s, len(keys), sum(known) if known else None, start, start + 100] += 1
    assert output(counts, layout, batches, kills, twice, way) == wanted
    assert wanted


def test_a_join_of_computed_rows():
    """The key of the second join is a column that the first one does not have."""
    near = {"within": NEAR, "instances": 3, "layout": "hash"}
    first = StreamJoin(*SOURCES, on=equi("lk", "rk"), **near).withColumn("key", "lk + 3")
    first = first.select({"key": "key", "was": "lv", "at": "lt"})
    later = within("at", "rt", lower="-1 s", upper="1 s", delay="1 day")
    second = StreamJoin(first, SOURCES[1], on=equi("key", "rk"), **near | {"within": later})
    assert len(second.query().operators) == 2, "steps keep joins apart"
    pairs = output(join_of("hash"), "hash", HOT)
    wanted = Counter()
    for (lk, lv, lt, *_), n in pairs.items():
        for rk, rv, rt in (row for _, right in HOT for row in right):
            if rk == lk + 3:
                wanted[lk + 3, lv, lt, rk, rv, rt] += n
    assert output(second, "hash", HOT) == wanted
    assert wanted


@pytest.mark.parametrize("layout", ["hash", "mnrt", "pkg"])
@relaxed
@given(changes=streams_of_changes(), kills=kills, twice=st.booleans(), way=ways)
def test_a_result_that_goes_is_computed_as_it_came(layout, changes, kills, twice, way):
    """The column of the changes stays the last one, and no step sees it."""
    told, batches = changes
    given = {"layout": layout}
    given |= {"schemas": FED, "changes": ("_change_type", "_change")} if told else {}
    plan = joined(**given).where("lv % 2 = 0").withColumn("sum", "lv + rv").select("sum", "lk")
    assert plan.schema.names == ["sum", "lk", "_change"]
    with tempfile.TemporaryDirectory() as folder:
        query = Changing(folder, plan, layout, jobs=InlineJobs(twice=twice, **way))
        feed(query, batches, kills)
        wanted = Counter()
        for (lk, lv, _, _, rv, _), n in net_of_pairs(batches).items():
            wanted[lv + rv, lk] += n * (lv % 2 == 0)
        assert query.net() == {row: n for row, n in wanted.items() if n}


REFUSED = {
    "where: column 'x' does not exist": lambda join: join.where("x > 3"),
    "where: expected a predicate, found 'lv'": lambda join: join.where("lv"),
    r"where: 3 \(int\) is not text": lambda join: join.where(3),
    "withColumn: the name of the column is empty": lambda join: join.withColumn("", "lv"),
    "select: column 'lv' does not exist": lambda join: join.select("lk").select("lv"),
    "select: no column is named": lambda join: join.select(),
    "select: the name of a column is empty": lambda join: join.select({"": "lk"}),
    "ambiguous column names: select has k twice": lambda join: join.select({"k": "lk", "K": "lv"}),
    "transform: where cannot follow it": lambda join: join.transform(lambda f: f).where("lk = 1"),
    "within: s is computed of results": lambda join: StreamAggregate(
        join.withColumn("s", "lt + interval '1 second'"),
        aggregates={"n": "count(*)"},
        window=windows("s", "1 s"),
        instances=3,
    ),
    "window: the source has no windows": lambda join: StreamAggregate(
        join.withColumn("window_end", "lt"), aggregates={"n": "count(*)"}, instances=3
    ),
}


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (None, "within: a comes from a full-history join"),
        (within("lt", "rt", lower="-1 s", delay="1 s"), "a may have any age, .* side: t"),
    ],
)
def test_event_time_is_told_by_the_names_that_it_has(window, message):
    join = StreamJoin(*SOURCES, on=equi("lk", "rk"), within=window, instances=2)
    named = join.select({"k": "lk", "a": "lt", "t": "rt"})
    given = {"aggregates": {"n": "count(*)"}, "window": windows("a", "1 s"), "instances": 2}
    with pytest.raises(InvalidRequest, match=message):
        StreamAggregate(named, **given)


@pytest.mark.parametrize("message", REFUSED)
def test_what_steps_cannot_do(message):
    with pytest.raises(InvalidRequest, match=message):
        REFUSED[message](join_of("hash"))


def test_the_changes_of_rows_are_no_column_of_steps():
    for refused in (
        lambda join: join.where("_change > 0"),
        lambda join: join.withColumn("_change", "lv"),
        lambda join: join.select("lv", "_change"),
    ):
        with pytest.raises(InvalidRequest, match="_change"):
            refused(joined())


def test_steps_are_in_the_plan_and_in_the_account():
    join = stepped(join_of("hash"))
    assert "  then  where mixed > 3\n  then  select lv as v, lt as time" in join.explain()
    assert join.schema.names == ["v", "time", "k", "mixed"]
    assert "lk = rk, -0.0002 s <= rt - lt <= 0.0003 s, where coalesce(rv, lv) % 3" in repr(join)
    assert join_of("hash").explain() in join.explain()
    assert pa.types.is_int64(join._results.schema.field("mixed").type)
