"""`last(..)` over a join ends when its sources have: what it keeps for rows to come is dropped."""

from __future__ import annotations

from joinengine import StreamAggregate, StreamJoin, equi, last, within
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from tests.harness import LEFT, RIGHT, LocalQuery


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
