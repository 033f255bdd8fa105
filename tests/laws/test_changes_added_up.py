"""Aggregates over a join of changes are those of the rows that are there."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine import (
    InvalidRequest,
    JoinEngineError,
    StreamAggregate,
    last,
    session_windows,
    top,
    windows,
    within,
)
from joinengine.lab.inline.inline_jobs import InlineJobs
from tests.laws.cases import feed, kills, relaxed, ways
from tests.laws.changing import FED, Changing, joined, net_of_pairs, streams


class AddedUp(Changing):
    """An aggregate over a join of changes."""

    def check_state(self):
        """The state of the join is that of `Changing`; here results count."""


#: A third of the values is NULL.
VALUE = "nullif(lv % 3, 0)"
AGGREGATES = {
    "n": "count(*)",
    "known": f"count({VALUE})",
    "total": f"sum({VALUE})",
    "mean": f"avg({VALUE})",
    "exact": f"sum(cast({VALUE} as decimal(9, 2)))",
    "rough": f"sum(cast({VALUE} as double))",
}


def grouped(pairs, size):
    """(key, aggregates, start) of the groups and windows of a net of pairs that hold any."""
    found = defaultdict(list)
    for (key, value, time, *_), n in pairs.items():
        found[key, time // size * size].append((value % 3 or None, n))
    rows = {}
    for (key, start), values in found.items():
        count = sum(n for _, n in values)
        known = sum(n for value, n in values if value is not None)
        total = sum(value * n for value, n in values if value is not None) if known else None
        if count:
            mean = total / known if known else None
            rows[key, start] = (count, known, total, mean, total, total)
    return rows


def aggregated(layout, size="90 us", aggregates=AGGREGATES, **told):
    join = joined(within=within("lt", "rt", lower="0 us", upper="50 us", delay="1 s"), **told)
    window = windows("lt", size, delay="1 s")
    given = {"by": "lk", "aggregates": aggregates, "layout": layout, "instances": 3}
    return StreamAggregate(join, window=window, **given)


def test_a_group_of_which_nothing_is_left_is_none():
    """Key 1 has gone; of key 2 the values have, and a NULL is left; of key 3 two rows are left."""
    rows = [(1, 4, 1, 1), (1, 4, 1, -1), (2, 4, 1, 1), (2, 3, 1, 1), (3, 4, 1, 3), (3, 4, 1, -1)]
    batches = [(rows, [(key, 9, 2, 1) for key in (1, 2, 3)]), ([(2, 4, 1, -1)], [])]
    with tempfile.TemporaryDirectory() as folder:
        query = AddedUp(folder, aggregated("pkg"), "pkg")
        feed(query, batches, ())
        query.finish(len(batches))
        found = {row[:-2] for row in query.output()}
        assert found == {(2, 1, 0, None, None, None, None), (3, 2, 2, 2, 1.0, 2, 2.0)}


#: The value 1 is infinite, 2 is -inf, 3 is no number, and others are 2.0.
ENDLESS = (
    "case lv when 1 then exp(1000.0) when 2 then -exp(1000.0) "
    "when 3 then exp(1000.0) - exp(1000.0) else cast(2 as double) end"
)


@pytest.mark.parametrize("layout", ["pkg", "hash"])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(9, 1), (1, 1), (1, -1)], 2.0),
        ([(9, 1), (2, 1), (3, 1), (3, -1), (2, -1)], 2.0),
        ([(9, 1), (1, 2), (1, -1), (2, 1), (2, -1)], math.inf),
        ([(9, 1), (2, 1)], -math.inf),
        ([(1, 1), (2, 1)], math.nan),
        ([(9, 1), (3, 1), (1, 1), (1, -1)], math.nan),
    ],
)
def test_what_is_endless_goes_again(layout, values, expected):
    """Infinities and NaN are counted, since no sum lets them go."""
    batches = [([(1, value, 1, change)], []) for value, change in values]
    batches[0] = (batches[0][0], [(1, 9, 2, 1)])
    aggregates = {"s": f"sum({ENDLESS})", "m": f"avg({ENDLESS})"}
    with tempfile.TemporaryDirectory() as folder:
        query = AddedUp(folder, aggregated(layout, aggregates=aggregates), layout)
        feed(query, batches, ())
        query.finish(len(batches))
        ((_, total, mean, *_),) = query.output()
    count = sum(change for _, change in values)
    assert repr((total, mean)) == repr((expected, expected / count))


def test_a_sum_beyond_64_bits_says_which_it_is():
    batches = [([(1, 2**62, 1, 1), (1, 2**62 + 1, 1, 1)], [(1, 9, 2, 1)])]
    aggregates = {"n": "count(*)", "big": "sum(lv)"}
    with tempfile.TemporaryDirectory() as folder:
        query = AddedUp(folder, aggregated("hash", aggregates=aggregates), "hash")
        feed(query, batches, ())
        with pytest.raises(JoinEngineError, match=r"n or big is more than 64 bits hold; sum it as"):
            query.finish(len(batches))


def test_a_sum_beyond_38_digits_says_which_it_is():
    batches = [([(1, 2**62 + n, 1, 1) for n in range(3)], [(1, 9, 2, 1)])]
    aggregates = {"n": "count(*)", "big": "sum(cast(lv as decimal(38, 19)))"}
    with tempfile.TemporaryDirectory() as folder:
        query = AddedUp(folder, aggregated("hash", aggregates=aggregates), "hash")
        with pytest.raises(JoinEngineError, match=r"the sum of big has more than 38 digits; cast"):
            feed(query, batches, ())
            query.finish(len(batches))


@pytest.mark.parametrize("layout", ["pkg", "hash", "shuffle"])
@relaxed
@given(changes=streams(), kills=kills, twice=st.booleans(), way=ways, size=st.sampled_from([7, 90]))
def test_aggregates_of_changes_are_those_of_the_rows_that_are_there(
    layout, changes, kills, twice, way, size
):
    fed, batches = changes
    with tempfile.TemporaryDirectory() as folder:
        told = {"schemas": FED, "changes": ("_change_type", "_change")} if fed else {}
        plan = aggregated(layout, f"{size} us", **told)
        query = AddedUp(folder, plan, layout, jobs=InlineJobs(twice=twice, **way))
        feed(query, batches, kills)
        query.finish(len(batches))
        found = query.output()
        assert all(times == 1 for times in found.values())
        start = {(row[0], row[-2]): row[1:-2] for row in found}
        assert start == grouped(net_of_pairs(batches, 50), size)


UNKNOWN = {
    "aggregates: low: the min of rows that may go": {"aggregates": {"low": "min(lv)"}},
    "aggregates: n: column '_change' does not exist": {"aggregates": {"n": "sum(_change)"}},
    "window: sessions with gaps of 5 s of changes": {"window": session_windows("lt", "5 s")},
    "window: the last 3 rows up to each of changes": {
        "window": last("lt", rows=3),
        "layout": "hash",
    },
    "top: error= counts rows that stay": {"top": top(3, by="n", error=0.1)},
}


@pytest.mark.parametrize("message", UNKNOWN)
def test_what_sums_of_changes_do_not_tell(message):
    source = joined(within=within("lt", "rt", lower="0 us", upper="50 us", delay="1 s"))
    given = {"by": "lk", "aggregates": {"n": "count(*)"}, "window": windows("lt", "9 us")}
    with pytest.raises(InvalidRequest, match=message):
        StreamAggregate(source, **{**given, "instances": 3, **UNKNOWN[message]})
