"""A short run with real processes that are harmed; `make chaos` has thirty long ones."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import in_words, obstacle_here, outcome
from tests.chaos.run import holds

pytestmark = [pytest.mark.spark, pytest.mark.slow]
#: State in a folder; in a store; in a store behind executors that have copies.
SEEDS = (0, 1, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_twice_whatever_is_harmed(seed):
    if (reason := obstacle_here()) is not None:
        pytest.skip(reason)
    found = outcome(seed, 20.0)
    assert "broken" not in found, in_words(found)
    assert holds(found), in_words(found)
    assert found["harms"]
