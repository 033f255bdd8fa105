"""Fixtures of all laws: planners that act on small counts, and proof that they did."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.harness import LocalQuery
from tests.laws.cases import STEADY


@pytest.fixture(autouse=True)
def no_noise_allowance(monkeypatch):
    """Planners act on small counts: no allowance for noise, and none is too small to be told."""
    monkeypatch.setattr("joinengine.balancing.statistics.NOISE_SIGMAS", 0.0)
    monkeypatch.setattr("joinengine.balancing.statistics.FEW_TUPLES", 0)
    monkeypatch.setattr("joinengine.balancing.statistics.FEW_PAIRS", 0)
    monkeypatch.setattr("joinengine.layouts.auto.TURN_PART", 0.0)
    monkeypatch.setattr("joinengine.layouts.auto.TASK_PART", 0.0)


@pytest.fixture
def acting(request):
    """Fail after a law's cases if a layout that re-plans by itself did so in none of them.

    The law that asks for this tries `HOT` or its like among its cases, so that this is no chance.
    """
    before = Counter(LocalQuery.changes)
    yield
    found = LocalQuery.changes - before
    layout = request.node.callspec.params["layout"]
    assert layout in STEADY or found[layout] > 0, f"{layout} has changed in no case: {found}"
