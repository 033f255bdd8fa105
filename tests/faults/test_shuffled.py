"""Spark's shuffle on executors of their own: one is killed with what it has shuffled."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def seen(reported):
    return reported("shuffled.py")


@pytest.mark.parametrize("name", ["one", "semi", "chain"])
def test_a_killed_executor_changes_no_result(seen, name):
    """Behind `repartition(7)`, between the route and the join, or between the joins of a chain."""
    found = seen[name]
    assert found["killed"]
    assert found["rows"] > 0
    assert found["differ"] == [0, 0]


@pytest.mark.parametrize("name", ["one", "semi", "chain"])
def test_what_was_shuffled_is_made_again_only_where_it_was_lost(seen, name):
    again, (batch,) = seen[name]["again"], seen[name]["killed"]
    operator = max(int(key.split("/")[0]) for key in again)
    assert again.pop(f"{operator}/{batch}") > 0
    assert again.keys() >= {f"{operator}/{batch - 1}", f"{operator}/{batch + 1}"}
    assert set(again.values()) == {0}
