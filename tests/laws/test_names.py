"""Columns may have any names: none of the engine's own can be in their way."""

from __future__ import annotations

import tempfile
from functools import cache

import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from joinengine import InvalidRequest, StreamAggregate, StreamJoin, equi, top, tumbling, windows
from joinengine.model.keys import PAIR
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from tests.harness import LEFT, RIGHT, LocalQuery, rows
from tests.laws.cases import feed, relaxed

#: Names of the engine's own columns, before and after, and what SQL and files trip over.
ODD = [
    *("__word", "__flags", "__id", "___id", "__entry", "__closes", "__pane", "__sketch", "reason"),
    *("_reason", "p0", "P1", "n0", "g0", "a0", "r1", "c0", "left", "right", "u", "parts", "pairs"),
    *("", " ", ".", "geo.lat", 'a"b', '"', "a`b", "'", "\n", "select", "*", "a,b", "ünï", "\\"),
    *("%s", "{}", "window", "\U0001f600", "window_start", "Window_End"),
]
words = st.sampled_from(ODD) | st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=4
)
three = st.lists(words, min_size=3, max_size=3, unique_by=str.lower)
#: Late tuples, tuples without a key, matches and tuples without a match; a key of each side is hot.
BATCHES = [
    (
        [(i % 3, 10 * i, 40 * b + i) for i in range(6)] + [(None, b, 40 * b)],
        [(i, 10 * i + b, 40 * b + 2 * i) for i in range(1, 5)] + [(9, 5, -90)],
    )
    for b in range(3)
]


def stream(schema, names):
    renamed = pa.schema([f.with_name(n) for f, n in zip(schema, names, strict=True)])
    return Stream(None, {"kind": "recorded", "path": "x"}, Reading(renamed))


class Named(LocalQuery):
    """A query over tuples whose columns have other names."""

    def run_tuples(self, batch, left, right, map_tasks=2):
        named = [
            rows(side, tuples).rename_columns(names)
            for side, tuples, names in zip(PAIR, (left, right), self.names, strict=False)
        ]
        self.run(batch, [list(enumerate(named[: len(self.query.sources)]))])


def results(plan, names, layout="mnrt"):
    """The rows, without the names of their columns, and the names of refused tuples' columns."""
    with tempfile.TemporaryDirectory() as folder:
        choices = [node._choice for node in plan._flat()[0]]
        query = Named(folder, plan.query(), layout, choices=choices, aside=True)
        query.names = names
        feed(query, BATCHES)
        query.finish(len(BATCHES))
        for table in query._tables("out"):
            assert table.schema.names == plan.schema.names
        refused = query._tables("aside/join0-left") + query._tables("aside/join0-right")
        return query.output(), [table.schema.names for table in refused]


def joined(names, how):
    window = tumbling(names[0][2], names[1][2], "20 us", delay="50 us")
    sides = stream(LEFT, names[0]), stream(RIGHT, names[1])
    on = equi(names[0][0], names[1][0])
    return StreamJoin(*sides, on=on, within=window, how=how, suffixes=("_l", "_r"), instances=3)


PLAIN = LEFT.names, RIGHT.names


@cache
def plainly(make, *settings):
    """The rows of the same plan under plain names."""
    return results(make(PLAIN, *settings), PLAIN)[0]


@pytest.mark.parametrize("how", ["inner", "full", "left_semi", "left_anti"])
@relaxed
@example(left=["__word", "__flags", "__id"], right=["__entry", "__closes", "reason"])
@example(left=["__id", "__ID_", "reason"], right=["_reason", "___id", "__entry"])
@given(left=three, right=three)
def test_joins(how, left, right):
    try:
        plan = joined((left, right), how)
    except InvalidRequest as refused:
        assume("ambiguous" not in str(refused))
        raise
    found, refused = results(plan, (left, right))
    assert found == plainly(joined, how)
    assert found
    for names in refused:
        assert len({name.lower() for name in names}) == len(names) == 4
    assert refused or how != "inner"


def halves(names):
    return names[:3], names[3:]


def aggregated(names, best, error):
    """Of one stream: `names` are those of its columns and of two aggregates."""
    columns, (count, total) = (LEFT.names, ("n", "total")) if names is PLAIN else halves(names)
    aggregates = {count: "count(*)"} if error else {count: "count(*)", total: "sum(1)"}
    return StreamAggregate(
        stream(LEFT, columns),
        by=columns[0],
        aggregates=aggregates,
        window=windows(columns[2], "60 us", "30 us", delay="50 us"),
        top=top(2, by=count, error=error) if best else None,
        layout="mnrt",
        instances=3,
        merge_every=2,
    )


@relaxed
@example(names=["p0", "n0", "__pane", "p1", "g0"], best=False, error=None)
@example(names=["r1", "x", "y", 'a"b', ""], best=True, error=None)
@example(names=["__pane", "x", "__sketch", "p0", ""], best=True, error=0.1)
@given(
    names=st.lists(words, min_size=5, max_size=5, unique_by=str.lower),
    best=st.booleans(),
    error=st.sampled_from([None, 0.1]),
)
def test_aggregates(names, best, error):
    error = error if best else None
    try:
        plan = aggregated(names, best, error)
    except InvalidRequest as refused:
        assume("ambiguous" not in str(refused))
        raise
    found, _ = results(plan, (names[:3],))
    assert found == plainly(aggregated, best, error)
    assert found


def counted(names):
    joins = joined(names, "full")
    return StreamAggregate(
        joins,
        by=[joins._output_schema().names[0]],
        aggregates={"p0!": "count(*)"},
        layout="pkg",
        instances=2,
    )


@relaxed
@example(left=["__word", "__pane", "__id"], right=["p0", "n0", "g0"])
@given(left=three, right=three)
def test_an_aggregate_of_a_join(left, right):
    try:
        plan = counted((left, right))
    except InvalidRequest as refused:
        assume("ambiguous" not in str(refused))
        raise
    found, _ = results(plan, (left, right))
    assert found == plainly(counted)
    assert found
