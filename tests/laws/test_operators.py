"""Any operator: killed, repeated, re-laid out, in small and large batches, with the same results.

The cases are those of the table OPERATORS and what queries and examples bring. What each operator
means is the matter of its own laws; here is what holds for all.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine import StreamAggregate, StreamJoin, asof, equi, last, windows, within
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.lab.queries.first_story.novelty import StreamNovelty, TextColumns
from joinengine.layouts import LAYOUTS
from joinengine.operators import OPERATORS
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from joinengine.state.wished import Relayout
from tests.harness import LEFT, RIGHT, TIME, LocalQuery
from tests.laws.cases import CHOICES, feed, kills, relaxed, ways

TEXTS = pa.schema(
    [("v", pa.int64()), ("k", pa.int32()), ("terms", pa.list_(pa.int64())), ("ts", TIME)]
)
#: Layouts under which every operator has the results of one process.
SERVING = [name for name, one in LAYOUTS.items() if one.serves_aggregates and one.keeps_keys_whole]


def stream(name, schema):
    return Stream(None, {"kind": "recorded", "path": name}, Reading(schema))


def example():
    path = Path(__file__).parents[2] / "examples" / "distinct_keys.py"
    spec = importlib.util.spec_from_file_location("distinct_keys", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its tasks are pickled from
    spec.loader.exec_module(module)
    return module.distinct


def key_value_time(rows, schema):
    arrays = [
        pa.array(list(c), f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def texts(rows):
    """The value decides the terms, so that some texts resemble others."""
    found = [(v, k, [v % 7, 7 + v % 3], t) for k, v, t in rows]
    return key_value_time(found, TEXTS)


class Case(NamedTuple):
    """The plan under a layout, and the batch that source 0 or 1 makes of (key, value, time)."""

    plan: object
    batches: tuple


def joined(layout):
    sides = stream("left", LEFT), stream("right", RIGHT)
    window = within("lt", "rt", lower="-60 us", upper="90 us", delay="1 s")
    plan = StreamJoin(
        *sides, on=equi("lk", "rk"), within=window, how="full", layout=layout, instances=3
    )
    return Case(plan, tuple(lambda r, s=s: key_value_time(r, s) for s in (LEFT, RIGHT)))


def nearest(layout):
    sides = stream("left", LEFT), stream("right", RIGHT)
    on = asof("lt", "rt", by=equi("lk", "rk"), direction="nearest", delay="1 s")
    plan = StreamJoin(*sides, on=on, how="left", layout=layout, instances=3)
    return Case(plan, tuple(lambda r, s=s: key_value_time(r, s) for s in (LEFT, RIGHT)))


def aggregated(layout):
    plan = StreamAggregate(
        stream("left", LEFT),
        by="lk",
        aggregates={"n": "count(*)", "s": "sum(lv)"},
        window=windows("lt", "50 us", delay="1 s"),
        layout=layout,
        instances=3,
    )
    return Case(plan, (lambda rows: key_value_time(rows, LEFT),))


def running(layout):
    plan = StreamAggregate(
        stream("left", LEFT),
        by="lk",
        aggregates={"n": "count(*)", "s": "sum(lv)"},
        window=last("lt", rows=3, delay="1 s"),
        layout=layout,
        instances=3,
    )
    return Case(plan, (lambda rows: key_value_time(rows, LEFT),))


def novel(layout):
    plan = StreamNovelty(
        stream("texts", TEXTS),
        TextColumns("k", "terms", "ts"),
        delay_us=1_000_000,
        history=3,
        threshold=0.6,
        layout=layout,
        instances=3,
    )
    return Case(plan, (texts,))


def distinct(layout):
    plan = example()(stream("left", LEFT), "lk", layout=layout, instances=3)
    return Case(plan, (lambda rows: key_value_time(rows, LEFT),))


def chained(layout):
    """A full join of a left join: the numbers of watched tuples follow from earlier results."""
    left, right = stream("left", LEFT), stream("right", RIGHT)
    near = {"lower": "-60 us", "upper": "90 us", "delay": "1 s"}
    on = {"layout": layout, "instances": 3}
    first = StreamJoin(
        left, right, on=equi("lk", "rk"), within=within("lt", "rt", **near), how="left", **on
    )
    plan = StreamJoin(
        first,
        right,
        on=equi("lv", "rv"),
        within=within("lt", "rt", **near),
        how="full",
        suffixes=("_l", "_r"),
        **on,
    )
    return Case(plan, tuple(lambda r, s=s: key_value_time(r, s) for s in (LEFT, RIGHT)))


def multiway(layout):
    """One stream three times, so that each tuple has three roles, and meets itself."""
    left, near = stream("left", LEFT), {"lower": "-60 us", "upper": "90 us", "delay": "1 s"}
    on = {"layout": layout, "instances": 3}
    window = within("lt", "lt", **near)
    first = StreamJoin(left, left, on="lk", within=window, suffixes=("", "_2"), **on)
    plan = StreamJoin(first, left, on="lk", within=window, suffixes=("", "_3"), **on)
    return Case(plan, (lambda rows: key_value_time(rows, LEFT),))


CASES = {
    "join": joined,
    "multiway join": multiway,
    "chain": chained,
    "as-of join": nearest,
    "aggregation": aggregated,
    "running": running,
    "novelty": novel,
    "distinct": distinct,
}


def test_every_operator_has_a_case():
    assert set(OPERATORS) <= set(CASES)


class AnyQuery(LocalQuery):
    """A query whose sources make their own batches."""

    def __init__(self, folder, case, layout, **settings):
        planned = case.plan._planned()
        self.sources = case.batches
        super().__init__(folder, planned.query, layout, choices=planned.choices, **settings)

    def run_tuples(self, batch, left, right, map_tasks=2):
        sides = (left, right)[: len(self.sources)]
        frame = [
            [
                (source, self.sources[source](rows[task::map_tasks]))
                for source, rows in enumerate(sides)
                if rows[task::map_tasks]
            ]
            for task in range(map_tasks)
        ]
        self.run(batch, frame)


rows = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 30), st.integers(0, 1000)), min_size=1, max_size=30
)
schedules = st.dictionaries(
    st.integers(1, 4),
    st.lists(
        st.builds(
            Relayout, st.none() | st.sampled_from(SERVING).map(CHOICES.get), st.integers(1, 6)
        ),
        min_size=1,
        max_size=1,
    ),
    max_size=3,
)


@pytest.mark.parametrize("name", CASES)
@relaxed
@given(
    layout=st.sampled_from(SERVING),
    batches=st.lists(st.tuples(rows, rows), min_size=1, max_size=5),
    schedule=schedules,
    lazy=st.booleans(),
    kills=kills,
    twice=st.booleans(),
    way=ways,
)
def test_the_same_results_whatever_happens(
    name, layout, batches, schedule, lazy, kills, twice, way
):
    # Texts of one time and key have no order but their draw of u, which other batches change.
    serial = iter(range(10**6))
    batches = [
        tuple([(k, v, 1000 * t + next(serial)) for k, v, t in side] for side in both)
        for both in batches
    ]
    outputs = []
    whole = [tuple(list(chain.from_iterable(side)) for side in zip(*batches, strict=True))]
    quiet = Settings(), set(), InlineJobs(), whole
    eventful = (
        Settings(schedule=schedule, lazy=lazy),
        kills,
        InlineJobs(twice=twice, **way),
        batches,
    )
    for settings, killed, jobs, fed in (quiet, eventful):
        with tempfile.TemporaryDirectory() as folder:
            case = CASES[name](CHOICES[layout])
            query = AnyQuery(folder, case, layout, jobs=jobs, settings=settings)
            feed(query, fed, killed)
            query.finish(len(fed))
            outputs.append(query.output())
    assert outputs[0]
    assert outputs[1] == outputs[0]
