"""What all laws share: planners that act on small counts, and proof that they did."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.harness import LocalQuery
from tests.laws.cases import STEADY


@pytest.fixture(autouse=True)
def no_noise_allowance(monkeypatch):
    """Small counts are all noise: without the allowance planners act on them."""
    monkeypatch.setattr("joinengine.layouts.key_based.NOISE_SIGMAS", 0.0)


@pytest.fixture
def acting(request):
    """After a law's cases: its layout, if it ever changes of itself, has done so in some of them.

    The law that asks for this tries `HOT` or its like among its cases, so that this is no chance.
    """
    before = Counter(LocalQuery.changes)
    yield
    found = LocalQuery.changes - before
    layout = request.node.callspec.params["layout"]
    assert layout in STEADY or found[layout] > 0, f"{layout} has changed in no case: {found}"
