"""Aggregates over joins: rows that come some batches late reach their windows, and queries end."""

from __future__ import annotations

import pyarrow as pa
import pytest

from joinengine import StreamAggregate, StreamJoin, asof, equi, last, windows, within
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.keys import Side
from joinengine.operators.base import ahead_us, time_column
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream, Table
from tests.harness import LEFT, RIGHT, LocalQuery, rows


def source(name, schema):
    return Stream(None, {"kind": "recorded", "path": name}, Reading(schema))


def test_a_query_ends_though_its_rows_were_judged_before_the_sources_ended(tmp_path):
    join = StreamJoin(
        *(source("l", LEFT), source("r", RIGHT)),
        on=equi("lk", "rk"),
        instances=2,
        within=within("lt", "rt", lower="0 us", upper="10 us", delay="0 us"),
    )
    counts = StreamAggregate(
        join, by="lk", aggregates={"n": "count(*)"}, window=last("lt", rows=3), instances=2
    )
    choices = [node._choice for node in counts._flat()[0]]
    query = LocalQuery(tmp_path, counts.query(), "hash", choices=choices)
    query.run_tuples(0, [(1, 1, 0)], [(1, 1, 5)])
    query.run_tuples(1, [(2, 2, 1000)], [(3, 2, 1000)])  # they match nothing, and time goes on
    query.finish(2, most=20)
    assert len(query.output()) == 1


@pytest.mark.parametrize("how", ["inner", "left", "left_semi", "left_anti"])
def test_tuples_that_no_table_matches_move_the_watermark(how, tmp_path, monkeypatch):
    """They are of the stream that the windows are over, though they do not come to the windows."""
    monkeypatch.setattr("joinengine.api.checks.check_ahead", lambda *_: None)  # it is recorded
    schema = pa.schema([("k", pa.int64())])
    joined = StreamJoin(
        *(source("l", LEFT), Table(None, "t", schema)),
        on=equi("lk", "k"),
        how=how,
        instances=2,
    )
    window = windows("lt", "10 us", delay="0 us", max_ahead="1 day")
    counts = StreamAggregate(
        joined, by="lk", aggregates={"n": "count(*)"}, window=window, instances=2
    )
    jobs = InlineJobs(tables=[[(1, pa.RecordBatch.from_pydict({"k": [1]}, schema=schema))]])
    planned = counts._planned()
    query = LocalQuery(tmp_path, planned.query, "hash", choices=planned.choices, jobs=jobs)
    assert (time_column(planned.query, 0), ahead_us(planned.query, 0)) == ("lt", 86_400_000_000)
    own, other = (1, 2) if how != "left_anti" else (2, 1)
    query.run(0, [[(0, rows(Side.LEFT, [(own, 1, 3)]))]])
    for batch in range(1, 6):
        query.run(batch, [[(0, rows(Side.LEFT, [(other, 1, 100 * batch)]))]])
        query.restart()
    assert [row[:2] for row in query.output() if row[0] == own] == [(own, 1)]
    query.run(6, [[(0, rows(Side.LEFT, [(other, 1, 1 << 55)]))]])
    query.run(7, [[(0, rows(Side.LEFT, [(own, 1, 1000)]))]])
    assert query.runner.manifest.operators[1].late_rows == 0


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("n_tables", [1, 2, 3])
def test_rows_that_no_table_matches_come_as_many_batches_late_as_there_are_tables(
    n_tables, waits, tmp_path
):
    """The watermark of the windows waits for them, also after restarts."""
    joined, jobs = source("l", LEFT), InlineJobs(tables=[[]])
    if waits:
        nearest = asof("lt", "rt", by=equi("lk", "rk"), delay="0 us")
        joined = StreamJoin(joined, source("r", RIGHT), on=nearest, how="left", instances=2)
    for number in range(n_tables):
        schema = pa.schema([(f"k{number}", pa.int64())])
        table = Table(None, f"t{number}", schema)
        on = equi("lk", f"k{number}")
        joined = StreamJoin(joined, table, on=on, how="left", instances=2)
        only = pa.RecordBatch.from_pydict({f"k{number}": [1]}, schema=schema)
        jobs.tables[0].append((number + 1 + waits, only))
    window = windows("lt", "10 us", delay="0 us")
    counts = StreamAggregate(
        joined, by="lk", aggregates={"n": "count(*)"}, window=window, instances=2
    )
    planned = counts._planned()
    query = LocalQuery(tmp_path, planned.query, "hash", choices=planned.choices, jobs=jobs)
    for batch in range(6):
        time = 100 * batch
        frame = [(0, rows(Side.LEFT, [(2, batch, time + 3), (1, batch, time + 5)]))]
        frame += [(1, rows(Side.RIGHT, [(1, batch, time + 5)]))] if waits else []
        query.run(batch, [frame])
        query.restart()
    query.finish(6, most=20)
    assert query.runner.manifest.operators[-2].late_rows == 0
    assert sum(row[1] * n for row, n in query.output().items()) == 12
