"""A cap on the pairs of a key: what is made is part of the join, and the rest is counted."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.windows import within
from tests.harness import LocalQuery, two_way
from tests.laws.cases import (
    CHOICES,
    DISORDERED,
    EACH_ROUTER,
    HOT,
    enough,
    feed,
    relaxed,
    streams,
    ways,
    windows,
)


def ran(plan, layout, batches, **jobs):
    """The results of a query, the pairs that it left out, and the worst keys by batch."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = InlineJobs(**jobs)
        query = LocalQuery(folder, plan, layout, choice=CHOICES[layout], jobs=jobs)
        feed(query, batches)
        entries = [record.joins[0] for record in query.records]
        return query.output(), sum(one.capped_pairs for one in entries), [e.capped for e in entries]


def capped(plan, most):
    return replace(plan, operators=(replace(plan.operators[0], max_pairs=most),))


@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@example(batches=HOT, window=None, most=3, twice=True, way=DISORDERED)
@example(
    batches=HOT,
    window=within("lt", "rt", lower="-9 us", upper="9 us", delay="0 us"),
    most=3,
    twice=False,
    way={},
)
@given(
    batches=streams(),
    window=windows,
    most=st.sampled_from([1, 3, 20, 10**6]),
    twice=st.booleans(),
    way=ways,
)
def test_what_is_not_left_out_is_made(layout, batches, window, most, twice, way):
    plan = two_way(window, enough(layout, 3))
    whole, none, _ = ran(plan, layout, batches)
    assert none == 0
    found, left_out, worst = ran(capped(plan, most), layout, batches, twice=twice, **way)
    assert found <= whole
    assert found.total() + left_out == whole.total()
    told = [key for batch in worst for key in batch]
    assert bool(told) == bool(left_out)
    assert all(key.left_out > 0 and key.made >= most for key in told)


@pytest.mark.parametrize("where", [None, "lv % 3 > rv % 3"])
def test_a_key_makes_as_many_pairs_as_it_may_and_others_all(where):
    left = [(key % 2 * key, key, 0) for key in range(400)]
    right = [(key % 2 * key, 1000 + key, 0) for key in range(300)]
    plan = two_way(None, 2, where=where)
    whole, _, _ = ran(plan, "hash", [(left, right)])
    found, left_out, ((worst,),) = ran(capped(plan, 5_000), "hash", [(left, right)])
    assert (worst.made, worst.left_out, worst.text) == (5_000, 200 * 150 - 5_000, "0")
    assert left_out == worst.left_out
    of_key = Counter({row: n for row, n in found.items() if row[0] == 0})
    assert found - of_key == Counter({row: n for row, n in whole.items() if row[0] != 0})
    assert of_key <= whole
    assert of_key.total() == 5_000 if where is None else 0 < of_key.total() < 5_000


def test_a_single_row_makes_no_more_pairs_of_its_key_than_it_may():
    """Such a key has fewer pairs than rows, and would be compared without a look at each key."""
    batches = [([(0, 1, 0), (5, 2, 0)], []), ([], [(0, 100 + n, 0) for n in range(30)])]
    found, left_out, _ = ran(capped(two_way(None, 2), 4), "hash", batches)
    assert (found.total(), left_out) == (4, 26)
