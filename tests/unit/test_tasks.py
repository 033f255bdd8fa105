"""What the functions in Spark's workers do, whatever they are told to carry out."""

from __future__ import annotations

import pytest

from joinengine.spark.jobs import tasks


@pytest.mark.parametrize("function", [tasks.OperatorTasks(None), tasks.RouteGroups({})])
def test_all_input_is_read_since_else_a_worker_is_not_used_again(function, monkeypatch):
    monkeypatch.setattr(tasks, "settle_in", lambda: None)  # it is for workers alone
    given = iter([b"", b"more"])
    with pytest.raises(AssertionError):  # there is no task of Spark here
        list(function(0, given))
    assert next(given, None) is None
