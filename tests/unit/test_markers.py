"""Markers are numbers: others may leave names beside them, and a number may have nine digits."""

from __future__ import annotations

import pytest

from joinengine.model.errors import DamagedState
from joinengine.results import showings
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.memory import MemoryWorld


@pytest.fixture
def checkpoint():
    return Checkpoint.below("/c", world=MemoryWorld())


@pytest.mark.parametrize("stray", ["00000003 (conflicted copy)", "\u0663", "x"])
def test_names_that_others_have_left_are_no_markers(checkpoint, stray):
    for folder in (checkpoint.showings, checkpoint.boundary):
        folder.put(stray, b"{}")
    fence.raise_boundary(checkpoint, 7)
    for start in (0, 3, 9):
        fence.mark(checkpoint.showings, start)
    showings.thin(checkpoint)
    assert sorted(checkpoint.showings.names()) == sorted(["00000003", "00000009", stray])
    assert sorted(checkpoint.boundary.names()) == sorted(["00000007", stray])


def test_manifests_are_counted_beyond_eight_digits(checkpoint):
    fence.mark(checkpoint.generations, 1)
    fence.mark(checkpoint.boundary, 99_999_999)
    checkpoint.manifests.put("99999999.json", b"")
    with pytest.raises(DamagedState, match="holds no manifest after batch 99999999"):
        fence.check_markers(checkpoint)
    checkpoint.manifests.put("100000000.json", b"")
    fence.check_markers(checkpoint)
