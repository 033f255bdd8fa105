"""Seeds of the fault simulator: none fails, and each planted bug is found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulator.__main__ import REGRESSIONS, outcome
from tests.simulator.bugs import BUGS
from tests.simulator.trial import play

SEEDS, CHUNK = 200, 25
#: A planted bug is found within so many seeds.
WITHIN = 400


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_fails(first):
    told = [(seed, *outcome(seed)) for seed in range(first, first + CHUNK)]
    assert not [(seed, error) for seed, _, error in told if error is not None]
    assert sum(counts["batches"] for _, counts, _ in told) > CHUNK
    assert sum(counts["drivers started"] for _, counts, _ in told) > 2 * CHUNK


def test_seeds_that_have_failed_once():
    again = [int(line.split()[0]) for line in REGRESSIONS.read_text().splitlines()]
    assert not [(seed, error) for seed in again if (error := outcome(seed)[1]) is not None]


@pytest.mark.parametrize("bug", BUGS)
def test_each_planted_bug_is_found(bug):
    found = next((seed for seed in range(WITHIN) if outcome(seed, bug)[1] is not None), None)
    assert found is not None
    assert outcome(found)[1] is None, "it is the bug that was found"


def test_the_same_seed_twice_is_the_same_trace():
    """Also in another process, in which sets have another order."""
    ours = play(7).scheduler
    program = (
        "from tests.simulator.trial import play; s = play(7).scheduler; print(s.steps, s.digest)"
    )
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [str(ours.steps), str(ours.digest)]
