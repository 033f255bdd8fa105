"""Aggregates under every layout that serves them, against their definition, in any batches."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from contextlib import contextmanager

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine import InvalidRequest, StreamAggregate, last, session_windows, sliding, top, windows
from joinengine.api.column_checks import check_type
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import LAYOUTS
from joinengine.model.aggregation import Sessions
from joinengine.model.keys import Side
from joinengine.model.query import JoinType
from joinengine.model.windows import INT_MAX
from joinengine.predicates.grouping import compile_aggregate
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from joinengine.state.wished import Relayout
from tests.harness import LEFT, LocalQuery, rows
from tests.laws.cases import (
    CHOICES,
    DISORDERED,
    HOT,
    each_router,
    feed,
    kills,
    memories,
    on_time,
    relaxed,
    streams,
    ways,
    windows_of,
)
from tests.reference.histogram import in_bins

ADDING = [name for name, choice in LAYOUTS.items() if choice.serves_aggregates]
WHOLE = [name for name in ADDING if LAYOUTS[name].keeps_keys_whole]
SOURCE = Stream(None, {"kind": "recorded", "path": "left"}, Reading(LEFT))
AGGREGATES = {
    "n": "count(*)",
    "known": "count(lk)",
    "total": "sum(lv * 2)",
    "mean": "avg(lv)",
    "low": "min(lv)",
    "high": "max(lv)",
    "spread": "histogram(lv / 4, 3)",
}


def spans(delays):
    """Windows and sessions, with one of these delays."""
    sessions = st.builds(
        lambda gap, delay: session_windows("lt", f"{gap} us", delay=delay),
        *(st.sampled_from([1, 20, 60, 400]), delays),
    )
    return sessions | st.builds(
        lambda size, slide, delay: windows("lt", f"{size} us", f"{slide} us", delay=delay),
        *(st.sampled_from([1, 50, 130]), st.sampled_from([20, 50, 130, 200]), delays),
    )


#: Later than any disorder of the streams: no row is late.
NOT_LATE = st.just("400 us")
schedules = st.dictionaries(
    st.integers(1, 6),
    st.lists(
        st.builds(
            Relayout, st.none() | st.sampled_from(ADDING).map(CHOICES.get), st.integers(1, 7)
        ),
        min_size=1,
        max_size=2,
    ),
    max_size=3,
)


class OneStream(LocalQuery):
    """A query over the left tuples alone."""

    def run_tuples(self, batch, left, right, map_tasks=2):
        parts = [[(0, rows(Side.LEFT, left[task::map_tasks]))] for task in range(map_tasks)]
        self.run(batch, parts)


@contextmanager
def fed(plan, layout, batches, kills, jobs, settings):
    """The query of a plan, after all batches and the end of the stream."""
    choices = [node._choice for node in plan._flat()[0]]
    with tempfile.TemporaryDirectory() as folder:
        query = OneStream(
            folder, plan.query(), layout, choices=choices, jobs=jobs, settings=settings
        )
        feed(query, batches, kills)
        query.finish(len(batches))
        yield query


def in_sessions(tuples, gap):
    """(key, edges, value) of each tuple in its session, by DuckDB; there are none beyond time."""
    rows = [row for row in tuples if row[2] is not None]
    tuples = pa.table(dict(zip("kvt", zip(*rows, strict=True), strict=True))) if rows else None
    if tuples is None:
        return []
    sql = f"""
        with starts as (
            select *, t - lag(t) over w > {gap} is not false as starts
            from (select k, v, t::hugeint as t from tuples) window w as (partition by k order by t)
        ), numbered as (
            select *, sum(starts::int) over (partition by k order by t) as number from starts
        )
        select k, min(t) over w, max(t) over w + {gap}, v from numbered
        window w as (partition by k, number)
    """
    found = duckdb.sql(sql).fetchall()
    return [(key, (start, end), value) for key, start, end, value in found if end < INT_MAX]


def expected(tuples, window, best):
    """(key, aggregates, start, end) of each group and window, perhaps only the best."""
    found = defaultdict(lambda: defaultdict(list))
    if isinstance(window.panes, Sessions):
        for key, edges, value in in_sessions(tuples, window.panes.gap_us):
            found[edges][key].append(value)
    else:
        for key, value, time in tuples:
            for edges in windows_of(window.panes, time):
                found[edges][key].append(value)
    results = Counter()
    for edges, groups in found.items():
        lines = [
            (
                key,
                len(values),
                0 if key is None else len(values),
                2 * sum(values),
                sum(values) / len(values),
                min(values),
                max(values),
                in_bins([value / 4 for value in values], 3),
                *edges,
            )
            for key, values in groups.items()
        ]
        lines.sort(key=lambda line: (-line[3], line[0] is None, line[0] or 0))
        results.update(lines if best is None else lines[:best])
    return results


@pytest.mark.usefixtures("acting")
@pytest.mark.parametrize("layout", each_router(ADDING))
@relaxed
@example(
    batches=HOT,
    window=windows("lt", "130 us", "50 us", delay="400 us"),
    merge_every=2,
    aggregators=2,
    best=None,
    schedule={},
    lazy=False,
    kills={(1, "joined")},
    twice=True,
    way=DISORDERED,
)
@example(
    batches=HOT,
    window=session_windows("lt", "90 us", delay="0 us"),
    merge_every=2,
    aggregators=2,
    best=None,
    schedule={},
    lazy=False,
    kills={(1, "joined")},
    twice=True,
    way=DISORDERED,
)
@given(
    batches=streams(),
    window=spans(NOT_LATE | st.sampled_from(["0 us", "60 us"])),
    merge_every=st.integers(1, 3),
    aggregators=st.integers(1, 4),
    best=st.none() | st.integers(1, 3),
    schedule=schedules,
    lazy=st.booleans(),
    kills=kills,
    twice=st.booleans(),
    way=ways,
)
def test_every_layout_adds_up(
    layout, batches, window, merge_every, aggregators, best, schedule, lazy, kills, twice, way
):
    if isinstance(window.panes, Sessions):
        best = None
    plan = StreamAggregate(
        SOURCE,
        by="lk",
        aggregates=AGGREGATES,
        window=window,
        top=None if best is None else top(best, by="total"),
        layout=CHOICES[layout],
        instances=3,
        aggregators=aggregators,
        merge_every=merge_every,
    )
    eventful = InlineJobs(twice=twice, **way), Settings(schedule=schedule, lazy=lazy)
    with fed(plan, layout, batches, kills, *eventful) as query:
        in_time = on_time([(left,) for left, _ in batches], window.late.delays_us[:1])
        tuples = [row for (left,) in in_time for row in left]
        assert query.output() == expected(tuples, window, best)
        assert query.state.late_rows == sum(len(left) for left, _ in batches) - len(tuples)
        assert all(state.shelves.is_empty for state in query.runner.manifest.operators)


@pytest.mark.parametrize(
    "window", [windows("lt", "60 us", delay="0 us"), last("lt", rows=3, delay="0 us")]
)
@pytest.mark.parametrize("best", [None, 2])
def test_the_results_have_the_columns_that_are_selected(window, best):
    """In their order, under their names; one may come twice."""
    if best is not None and not hasattr(window.panes, "slide_us"):
        pytest.skip("last rows have no top")
    given = {"by": "lk", "aggregates": {"n": "count(*)", "s": "sum(lv)"}, "window": window}
    given |= {
        "instances": 2,
        "layout": "hash",
        **({} if best is None else {"top": top(best, by="n")}),
    }
    whole = StreamAggregate(SOURCE, **given)
    names = whole._output_schema().names
    select = {"z": names[-1], "s": "s", "again": "s", "k": "lk"}
    part = StreamAggregate(SOURCE, **given, select=select)
    assert part.schema.names == list(select)
    assert part.query().operators[-1].finish.lines[0].startswith(f"select {names[-1]} as z, s,")
    rows = []
    for plan in (whole, part):
        with fed(plan, "hash", HOT, set(), InlineJobs(), Settings()) as query:
            rows.append(query.output())
    places = [names.index(column) for column in select.values()]
    assert rows[0]
    expected = Counter()
    for row, n in rows[0].items():
        expected[tuple(row[place] for place in places)] += n
    assert rows[1] == expected


@relaxed
@example(batches=HOT, window=windows("lt", "60 us", delay="0 us"), merge_every=3)
@example(batches=HOT, window=session_windows("lt", "3 us", delay="0 us"), merge_every=3)
@given(batches=streams(), window=spans(NOT_LATE), merge_every=st.integers(1, 4))
def test_what_is_over_waits_for_no_more_data(batches, window, merge_every):
    plan = StreamAggregate(
        SOURCE,
        by="lk",
        aggregates=AGGREGATES,
        window=window,
        layout=CHOICES["hash"],
        instances=3,
        merge_every=merge_every,
    )
    with tempfile.TemporaryDirectory() as folder:
        choices = [node._choice for node in plan._flat()[0]]
        query = OneStream(folder, plan.query(), "hash", choices=choices, jobs=InlineJobs())
        feed(query, batches, set())
        query.settle(len(batches))
        reached = query.runner.manifest.operators[0].clock.watermark
        found = query.output()
    # A tuple at the end of a session would go on with it.
    last = reached - isinstance(window.panes, Sessions)
    tuples = [row for left, _ in batches for row in left]
    over = {row: n for row, n in expected(tuples, window, None).items() if row[-1] <= last}
    assert found == over
    assert over or batches is not HOT


def expected_running(tuples, rows):
    """The results of each tuple with a time, by SQL's window over rows."""
    tuples = [row for row in tuples if row[2] is not None]
    if not tuples:
        return Counter()
    tuples = pa.table(dict(zip("kvt", zip(*tuples, strict=True), strict=True)))
    sql = f"""
        select k, count(*) over w, count(k) over w, (sum(v * 2) over w)::bigint, avg(v) over w,
        min(v) over w, max(v) over w, list(v / 4) over w, min(t) over w, t from tuples window w as (
            partition by k order by t, k, v rows between {rows - 1} preceding and current row
        )
    """
    found = duckdb.sql(sql).fetchall()
    return Counter((*row[:7], in_bins(row[7], 3), *row[8:]) for row in found)


@pytest.mark.usefixtures("acting")
@pytest.mark.parametrize("layout", WHOLE)
@relaxed
@example(
    batches=HOT,
    rows=4,
    delay="0 us",
    schedule={},
    lazy=False,
    kills={(1, "joined")},
    twice=True,
    way=DISORDERED,
    memory=1200,
)
@given(
    batches=streams(),
    rows=st.sampled_from([1, 2, 5, 1000]),
    delay=st.just("400 us"),
    schedule=st.dictionaries(
        st.integers(1, 6),
        st.lists(
            st.builds(
                Relayout, st.none() | st.sampled_from(WHOLE).map(CHOICES.get), st.integers(1, 7)
            ),
            min_size=1,
            max_size=2,
        ),
        max_size=3,
    ),
    lazy=st.booleans(),
    kills=kills,
    twice=st.booleans(),
    way=ways,
    memory=memories,
)
def test_the_last_rows_up_to_each(
    layout, batches, rows, delay, schedule, lazy, kills, twice, way, memory
):
    plan = StreamAggregate(
        SOURCE,
        by="lk",
        aggregates=AGGREGATES,
        window=last("lt", rows=rows, delay=delay),
        layout=CHOICES[layout],
        instances=3,
    )
    settings = Settings(schedule=schedule, lazy=lazy, memory_per_task=memory)
    eventful = InlineJobs(twice=twice, **way), settings
    with fed(plan, layout, batches, kills, *eventful) as query:
        assert query.output() == expected_running([r for left, _ in batches for r in left], rows)
        assert query.state.shelves.is_empty


def test_no_switch_divides_a_key_of_which_the_last_rows_are_asked(tmp_path):
    plan = StreamAggregate(
        SOURCE, by="lk", aggregates=AGGREGATES, window=last("lt", 3, delay="0 s"), instances=3
    )
    switch = Settings(schedule={1: [Relayout(CHOICES["w-choices"])]})
    with pytest.raises(InvalidRequest, match="layout w-choices may divide the rows of a key"):
        OneStream(tmp_path, plan.query(), "hash", settings=switch)


@pytest.mark.parametrize("text", ["sum(*)", "sum()", "avg(*)", "min(*)", "max()", "count(lk, lv)"])
def test_only_count_goes_without_an_expression(text):
    with pytest.raises(InvalidRequest, match=r"Give one, or count rows with count\(\*\)"):
        compile_aggregate("n", text, LEFT, [])
    assert compile_aggregate("n", "count( * )", LEFT, []).sql is None


def test_windows_without_end_are_refused():
    """A tuple in 3.6 billion windows: the query would never end."""
    with pytest.raises(
        InvalidRequest, match="at most 131072 windows for each row, found 3600000000"
    ):
        check_type(JoinType.INNER, sliding("lt", "rt", "1 hour", "1 us"), None)
    check_type(JoinType.INNER, sliding("lt", "rt", "1 day", "1 s"), None)
    with pytest.raises(InvalidRequest, match="Make the slide larger"):
        StreamAggregate(
            SOURCE,
            by="lk",
            aggregates={"n": "count(*)"},
            window=windows("lt", "1 hour", "1 us", delay="0 s"),
            instances=1,
        )
