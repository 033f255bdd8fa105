"""Joins of changes: the net of what comes out is the join of the net of what goes in.

Rows come and go in any order and number, so a row may also go before it comes.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine import InvalidRequest, StreamJoin, asof, equi, within
from joinengine.driver.settings import Settings
from joinengine.kernels.cancelling import alike, cancelling
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from joinengine.state.wished import Relayout
from tests.harness import LEFT, RIGHT, TIME, InlineJobs, LocalQuery
from tests.laws.cases import CHOICES, EACH_ROUTER, enough, feed, kills, relaxed, ways

CHANGE = pa.field("_change", pa.int8())
SCHEMAS = LEFT.append(CHANGE), RIGHT.append(CHANGE)


def stream(name, schema):
    return Stream(None, {"kind": "recorded", "path": name}, Reading(schema))


def joined(layout="hash", instances=3, schemas=SCHEMAS, **of):
    sides = stream("left", schemas[0]), stream("right", schemas[1])
    given = {"on": equi("lk", "rk"), "changes": "_change", "layout": layout} | of
    return StreamJoin(*sides, instances=instances, **given)


ANYWHERE = {"pkg", "d-choices", "w-choices", "shuffle", "bi", "bi-k"}


class Changing(LocalQuery):
    """Feeds (key, value, time, change) tuples."""

    def __init__(self, folder, plan, layout, **settings):
        super().__init__(folder, plan.query(), layout, choices=[plan._choice], **settings)

    def run_tuples(self, batch, left, right, map_tasks=2):
        sides = zip(SCHEMAS, (left, right), strict=True)
        tables = [
            pa.RecordBatch.from_arrays(
                [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)],
                schema=schema,
            )
            for schema, rows in sides
        ]
        self.run(
            batch,
            [
                [
                    (n, table.take(pa.array(range(task, table.num_rows, map_tasks), pa.int64())))
                    for n, table in enumerate(tables)
                ]
                for task in range(map_tasks)
            ],
        )

    def check_state(self):
        """Each home holds the same net of a word: which equal rows have cancelled may differ.

        Under some layouts each tuple stands once, at any of several instances.
        """
        if self.chosen.choice.name in ANYWHERE:
            return
        (state,) = self.runner.manifest.operators
        layouts = state.layouts
        newest = getattr(layouts.pending, "before", layouts.newest)
        live = {**layouts.older, layouts.version: newest}
        held = defaultdict(Counter)
        for run in state.shelves.state.values():
            opened = self._opened.open(run, state.shelves.files[run.file])
            changes = opened.columns.column("_change").to_pylist()
            for row in opened.live_rows().tolist():
                word = run.version, run.side, int(opened.words[row])
                held[word][run.instance] += changes[row]
        for (version, side, word), nets in held.items():
            one = np.array([word], np.uint64), np.array([next(iter(nets))], np.uint16)
            homes = {*live[version].router.homes(side, *one).instances.tolist()}
            net = {instance: n for instance, n in nets.items() if n}
            assert set(net) in (set(), homes), "all homes hold it, or none"
            assert len({*net.values()}) <= 1, "and as often"

    def net(self):
        """Result -> how often it is there in the end."""
        found = Counter()
        for row, times in self.output().items():
            found[row[:-1]] += row[-1] * times
        return {row: n for row, n in found.items() if n}


def net_of_pairs(batches, span=None):
    """The join of the nets by nested loop."""
    left, right = (Counter() for _ in range(2))
    for both in batches:
        for net, rows in zip((left, right), both, strict=True):
            for *row, change in rows:
                net[tuple(row)] += change
    found = Counter()
    for one, n in left.items():
        for other, m in right.items():
            if one[0] == other[0] and (span is None or 0 <= other[2] - one[2] <= span):
                found[(*one, *other)] += n * m
    return {row: n for row, n in found.items() if n}


@st.composite
def streams(draw):
    """Few distinct rows, which come and go again and again; one key is hot."""
    rng = np.random.default_rng(draw(st.integers(0, 10**9)))
    distinct = draw(st.sampled_from([2, 6, 30]))
    sizes = draw(st.lists(st.tuples(*[st.integers(0, 40)] * 2), min_size=1, max_size=6))

    def row(serial):
        key = 0 if serial % 3 else serial
        return key, serial, 10 * serial, int(rng.choice([1, -1]))

    return [
        tuple([row(int(rng.integers(distinct))) for _ in range(n)] for n in both) for both in sizes
    ]


@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@given(
    batches=streams(),
    span=st.none() | st.integers(0, 100),
    schedule=st.dictionaries(
        st.integers(1, 5),
        st.lists(st.builds(Relayout, st.none(), st.integers(4, 8)), min_size=1, max_size=1),
    ),
    kills=kills,
    twice=st.booleans(),
    way=ways,
)
def test_the_net_of_the_results_is_the_join_of_the_nets(
    layout, batches, span, schedule, kills, twice, way
):
    window = None
    if span is not None:
        window = within("lt", "rt", lower="0 us", upper=f"{span} us", delay="1 s")
    with tempfile.TemporaryDirectory() as folder:
        plan = joined(CHOICES[layout], enough(layout, 4), within=window)
        jobs = InlineJobs(twice=twice, **way)
        query = Changing(folder, plan, layout, jobs=jobs, settings=Settings(schedule=schedule))
        feed(query, batches, kills)
        query.finish(len(batches))
        assert query.net() == net_of_pairs(batches, span)


def test_the_state_follows_the_rows_and_not_their_changes():
    with tempfile.TemporaryDirectory() as folder:
        query, held, batches = Changing(folder, joined(), "hash"), [], []
        for batch in range(40):
            rows = [(key, key, key, sign) for key in range(50) for sign in (1, -1, 1, -1)]
            rows += [(99, batch, 0, 1)]
            batches.append((rows, [(99, 0, 0, 1)]))
            query.run_tuples(batch, *batches[-1])
            held.append(query.state.shelves.rows)
        assert max(held) < 10 * 201, "rows of some batches, of 40"
        assert query.net() == net_of_pairs(batches)
        assert sum(query.net().values()) == 40 * 40


rows_of_columns = st.lists(
    st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from(["a", "b"])), max_size=20
)


@relaxed
@given(rows_of_columns, st.data())
def test_alike_rows_cancel_by_number(rows, data):
    n, kinds = len(rows), enumerate((pa.int64(), pa.string()))
    changes = data.draw(st.lists(st.sampled_from([1, -1, 2]), min_size=n, max_size=n))
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in kinds]
    batch = pa.RecordBatch.from_arrays(columns, names=["x", "y"])
    groups = alike(batch, np.zeros(n, np.int64))
    left = ~cancelling(groups, np.array(changes, np.int64))
    before, after = Counter(), Counter()
    for row, change, stays in zip(rows, changes, left, strict=True):
        before[row] += change
        after[row] += change * bool(stays)
    assert {r: n for r, n in before.items() if n} == {r: n for r, n in after.items() if n}
    signs = {(row, change) for row, change, stays in zip(rows, changes, left, strict=True) if stays}
    assert not [row for row, change in signs if change == 1 and (row, -1) in signs]


REFUSED = {
    "how: 'left' of changes is not supported": {
        "how": "left",
        "within": within("lt", "rt", upper="1 s", lower="0 s", delay="0 s"),
    },
    "changes: column '_op' of the left side does not exist": {"changes": "_op"},
    "changes: lt of the left side is timestamp": {
        "changes": "lt",
        "schemas": (SCHEMAS[0], RIGHT.append(pa.field("lt", TIME))),
    },
    "changes: which row is nearest cannot be taken back": {
        "on": asof("lt", "rt", by=equi("lk", "rk"), delay="0 s")
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_changes_that_cannot_be_served(message):
    with pytest.raises(InvalidRequest, match=message):
        joined(**REFUSED[message])
