"""Joins of changes: the net of what comes out is the join of the net of what goes in.

Rows come and go in any order and number, so a row may also go before it comes. Changes of no row,
and words that mean none, count for nothing.
"""

from __future__ import annotations

import tempfile
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine import (
    InvalidRequest,
    StreamJoin,
    asof,
    equi,
    within,
)
from joinengine.driver.settings import Settings
from joinengine.kernels.cancelling import WORDS, added_up, alike
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.errors import JoinEngineError
from joinengine.state.wished import Relayout
from tests.harness import LEFT, RIGHT
from tests.laws.cases import CHOICES, EACH_ROUTER, enough, feed, kills, relaxed, ways
from tests.laws.changing import FED, SCHEMAS, Changing, joined, net_of_pairs, stream, streams


@pytest.mark.parametrize("layout", ["hash", "ftlb"])
def test_a_merge_in_which_all_rows_cancel_leaves_nothing(layout, tmp_path):
    """Also where each instance has files of its own."""
    rows = [(0, 1, 10, 1), (0, 1, 10, -1)]
    batches = [([], [rows[number % 2]] * 3) for number in range(12)]
    query = Changing(tmp_path, joined(layout), layout)
    feed(query, [*batches, ([(0, 5, 20, 1)], [(0, 2, 30, 1)])])
    assert query.net() == {(0, 5, 20, 0, 2, 30): 1}


@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@given(
    changes=streams(),
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
    layout, changes, span, schedule, kills, twice, way
):
    (fed, batches), window = changes, None
    if span is not None:
        window = within("lt", "rt", lower="0 us", upper=f"{span} us", delay="1 s")
    with tempfile.TemporaryDirectory() as folder:
        told = {"schemas": FED, "changes": ("_change_type", "_change")} if fed else {}
        plan = joined(CHOICES[layout], enough(layout, 4), within=window, **told)
        jobs = InlineJobs(twice=twice, **way)
        query = Changing(folder, plan, layout, jobs=jobs, settings=Settings(schedule=schedule))
        feed(query, batches, kills)
        query.finish(len(batches))
        assert query.net() == net_of_pairs(batches, span)


@pytest.mark.parametrize("open_end", [False, True])
def test_explain_says_that_a_row_is_kept_until_its_deletion(open_end):
    window = within("lt", "rt", lower="0 s", delay="1 s") if open_end else None
    kept = "left  recorded left: a row is kept until its deletion has come"
    assert kept in joined(within=window).explain()
    for odd in ({"layout": "pkg"}, {"schemas": (LEFT, SCHEMAS[1]), "changes": (None, "_change")}):
        assert "left  recorded left: kept for ever" in joined(within=window, **odd).explain()


def test_the_state_follows_the_rows_and_not_their_changes():
    with tempfile.TemporaryDirectory() as folder:
        query, held, batches, many = Changing(folder, joined(), "hash"), [], [], 24
        for batch in range(many):
            rows = [(key, key, key, sign) for key in range(50) for sign in (3, -1, 1, -3)]
            rows += [(99, batch, 0, 1)]
            batches.append((rows, [(99, 0, 0, 1)]))
            query.run_tuples(batch, *batches[-1])
            held.append(query.state.shelves.rows)
        assert max(held) < 10 * 201, "rows of some batches"
        assert query.net() == net_of_pairs(batches)
        assert sum(query.net().values()) == many * many


rows_of_columns = st.lists(
    st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from(["a", "b"])), max_size=20
)


@relaxed
@given(rows_of_columns, st.data())
def test_alike_rows_cancel_by_number(rows, data):
    n, kinds = len(rows), enumerate((pa.int64(), pa.string()))
    some = st.sampled_from([1, -1, 2, -3])
    changes = data.draw(st.lists(some, min_size=n, max_size=n))
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in kinds]
    batch = pa.RecordBatch.from_arrays(columns, names=["x", "y"])
    groups = alike(batch, np.zeros(n, np.int64))
    kept, sums = added_up(groups, np.array(changes, np.int64))
    before = Counter()
    for row, change in zip(rows, changes, strict=True):
        before[row] += change
    left = [(row, change) for row, change, stays in zip(rows, sums, kept, strict=True) if stays]
    assert sorted(left, key=str) == sorted(((r, n) for r, n in before.items() if n), key=str)


def test_sums_that_64_bits_do_not_hold_stay_apart():
    groups, changes = np.zeros(2, np.int64), np.full(2, 2**62, np.int64)
    kept, sums = added_up(groups, changes)
    assert kept.all()
    assert sums.tolist() == changes.tolist()


def test_products_that_64_bits_do_not_hold_are_an_error():
    wide = pa.field("_change", pa.int64())
    schemas = LEFT.append(wide), RIGHT.append(wide)
    with tempfile.TemporaryDirectory() as folder:
        query = Changing(folder, joined(schemas=schemas), "hash")
        with pytest.raises(JoinEngineError, match="_change times _change of a pair is more than"):
            query.run_tuples(0, [(1, 1, 1, 2**40)], [(1, 1, 1, 2**40)])


def test_rows_of_a_side_that_only_come_meet_changes():
    with tempfile.TemporaryDirectory() as folder:
        plan = joined(schemas=(SCHEMAS[0], RIGHT), changes=("_change", None))
        query = Changing(folder, plan, "hash")
        query.run_tuples(0, [(1, 1, 1, 2), (1, 1, 1, -1)], [(1, 5, 1), (1, 6, 1)])
        query.run_tuples(1, [(1, 1, 1, -1), (1, 2, 1, 1)], [(1, 7, 1)])
        values = {(row[1], row[4]): n for row, n in query.net().items()}
        assert values == {(2, 5): 1, (2, 6): 1, (2, 7): 1}


def test_changes_of_no_row_and_of_no_meaning_are_counted():
    with tempfile.TemporaryDirectory() as folder:
        plan = joined(schemas=FED, changes=("_change_type", "_change"))
        query = Changing(folder, plan, "hash")
        left = [(1, n, 1, word) for n, word in enumerate([*WORDS, "upsert", "Insert", None])]
        query.run_tuples(0, left, [(1, 1, 1, change) for change in (1, 0, None)])
        (one,) = query.records[-1].joins
        assert (one.refused.change, one.refused.null) == (5, 0)
        assert sum(query.net().values()) == 0
        assert sorted(row[-1] for row in query.output()) == [-1, -1, 1, 1]


REFUSED = {
    "how: 'left' of changes is not supported": {
        "how": "left",
        "within": within("lt", "rt", upper="1 s", lower="0 s", delay="0 s"),
    },
    "how: 'full' of changes is not supported": {"how": "full"},
    "changes: column '_op' of the left side does not exist": {"changes": "_op"},
    "changes: lt of the left side is timestamp": {"changes": ("lt", None)},
    "changes: w of the left side is double": {
        "changes": ("w", None),
        "schemas": (LEFT.append(pa.field("w", pa.float64())), RIGHT),
    },
    "changes: w of the right side is decimal128": {
        "changes": ("_change", "w"),
        "schemas": (SCHEMAS[0], RIGHT.append(pa.field("w", pa.decimal128(9, 0)))),
    },
    "changes: expected a column of both sides": {"changes": (None, None)},
    "changes: 'debezium' is of streams that kafka_stream": {
        "changes": "debezium",
        "schemas": (SCHEMAS[0], RIGHT),
    },
    "changes: _commit_version of the left side is of one change": {
        "changes": ("_change_type", "_change"),
        "schemas": (FED[0].append(pa.field("_commit_version", pa.int64())), FED[1]),
    },
    "max_pairs_per_key: a pair that is left out": {"max_pairs_per_key": 5},
    "where: column 'left._change' does not exist": {"where": "left._change > 0"},
    "changes: which row is nearest cannot be taken back": {
        "on": asof("lt", "rt", by=equi("lk", "rk"), delay="0 s")
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_changes_that_cannot_be_served(message):
    with pytest.raises(InvalidRequest, match=message):
        joined(**REFUSED[message])


def test_debezium_names_the_column_of_its_changes():
    assert joined(changes="debezium").query() == joined(changes="_change").query()


def test_the_results_of_changes_are_not_taken_for_rows():
    again = stream("again", LEFT)
    with pytest.raises(InvalidRequest, match="the left side is a join of changes"):
        StreamJoin(joined(), again, on=equi("rk", "lk"), suffixes=("", "_2"), instances=2)
    with pytest.raises(InvalidRequest, match="the left side is a join of changes"):
        StreamJoin(joined(), again, on=equi("rk", "lk"), instances=2, changes=("lv", None))
    nearest = asof("lt", "rt", by=equi("rk", "rk"), delay="1 s")
    for changes in (None, ("_change", None)):  # one refusal does not advise what another refuses
        with pytest.raises(InvalidRequest, match="cannot be taken back when one of them goes"):
            StreamJoin(joined(), stream("other", RIGHT), on=nearest, instances=2, changes=changes)
    both = StreamJoin(
        *(joined(), again),
        on=equi("rk", "lk"),
        suffixes=("", "_2"),
        instances=2,
        changes=("_change", None),
    )
    assert both.schema.names[-1] == "_change"
