"""Seeds of the fault simulator: none fails, and each planted bug is found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulator.__main__ import REGRESSIONS, outcome
from tests.simulator.bugs import BUGS
from tests.simulator.targets import TOKENS_FROM
from tests.simulator.trial import play

#: Seeds, and how many of them `make test` plays.
SEEDS, FAST = 200, 5
#: A planted bug is found within so many seeds, and first by these. If what follows from a seed has
#: changed, `python -m tests.simulator --bug NAME --seeds 400` finds them anew.
WITHIN = 400
FOUND = {
    "no boundary": 57,
    "no nonce": 10,
    "removal first": 0,
    "removal by exclusion": 27,
    "exclusions forgotten": 3,
    "moves forgotten": 27,
    "results before the manifest": 4,
    "one name for all attempts": 0,
    "expired too early": 2,
    "one generation": 3,
    "changes of the newest alone": 2,
    "older layouts forgotten": 14,
    "backups beside their homes": 5,
    "a report of nothing": 0,
    "kept by the newest alone": 12,
    "uploads believed": 5,
    "manifests of the newest alone": 6,
    "copies believed": 2,
    "removed before it is folded": 7,
    "showings forgotten": 9,
    "a plan of the last interval": 3,
    "results in time": 9,
    "parts forgotten": 9,
    "position first": 19,
    "position of the loser": 54,
    "a callback without a manifest": 32,
    "micro-batches at or below": 70,
    "a micro-batch not noted": 0,
    "token outside the transaction": TOKENS_FROM + 39,
    "no look before a delivery": TOKENS_FROM + 2,
    "delivery before the manifest": TOKENS_FROM + 2,
    "producer ids per generation": TOKENS_FROM + 31,
}


@pytest.mark.parametrize(
    "seeds",
    [
        range(FAST),
        *(
            pytest.param(range(first or FAST, first + 10), marks=pytest.mark.slow)
            for first in range(0, SEEDS, 10)
        ),
    ],
)
def test_no_seed_fails(seeds):
    told = [(seed, *outcome(seed)) for seed in seeds]
    assert not [(seed, error) for seed, _, error in told if error is not None]
    assert sum(counts["batches"] for _, counts, _ in told) > len(seeds)
    assert sum(counts["drivers started"] for _, counts, _ in told) > 2 * len(seeds)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (6, 12, 18))]
)
def test_no_seed_with_a_target_fails(first):
    told = [outcome(TOKENS_FROM + seed) for seed in range(first, first + 6)]
    assert not [error for _, error in told if error is not None]
    assert sum(counts["drivers started"] for counts, _ in told) > 12


def test_seeds_that_have_failed_once():
    again = [int(line.split()[0]) for line in REGRESSIONS.read_text().splitlines()]
    assert not [(seed, error) for seed in again if (error := outcome(seed)[1]) is not None]


def test_there_is_a_seed_for_each_planted_bug():
    assert FOUND.keys() == BUGS.keys()
    assert max(seed % TOKENS_FROM for seed in FOUND.values()) < WITHIN


@pytest.mark.parametrize("bug", BUGS)
def test_each_planted_bug_is_found(bug):
    assert outcome(FOUND[bug], bug)[1] is not None


#: Those that are not tried for themselves above.
FURTHER = {*FOUND.values()} - {*range(FAST), *range(TOKENS_FROM, TOKENS_FROM + 6)}


@pytest.mark.parametrize("seed", sorted(FURTHER))
def test_what_was_found_is_the_bug(seed):
    assert outcome(seed)[1] is None


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_each_planted_bug_is_found_by_searching(bug):
    first = FOUND[bug] // TOKENS_FROM * TOKENS_FROM
    seeds = range(first, first + WITHIN)
    assert next((seed for seed in seeds if outcome(seed, bug)[1] is not None), None) == FOUND[bug]


def test_the_same_seed_twice_is_the_same_trace():
    """Also in another process, in which sets have another order.

    It ends hard: with Arrow's threads still there, one ordinary end in some thousands is an abort.
    """
    ours = play(13).scheduler
    program = (
        "import os; from tests.simulator.trial import play; s = play(13).scheduler; "
        "print(s.steps, s.digest, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(ours.steps), str(ours.digest)]
