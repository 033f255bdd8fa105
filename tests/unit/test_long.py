"""The benchmark of long runs: what it samples, and when it calls a figure level."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click import UsageError

from benchmarks.long.__main__ import EVERY, FROM, main, verdict
from benchmarks.long.sampling import descendants, files_below, held_by, worked_s

BATCHES = range(0, 2000, EVERY)


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (lambda batch: 7.0, True),
        (lambda batch: 100 + 10 * (batch // EVERY % 3 - 1), True),
        (lambda batch: 100 + 10 * (batch // EVERY % 3 - 1) + batch / 200, True),
        (lambda batch: 100 + 10 * (batch // EVERY % 3 - 1) + batch / 20, False),
        (lambda batch: 100 + batch / 200, False),
        (lambda batch: 100 - batch / 20, True),
        (lambda batch: 1000 if batch < FROM else 10, True),
        (lambda batch: 10 if batch < FROM else 1000, True),
        (lambda batch: 0 if batch < 1900 else 500, True),
    ],
    ids=["same", "noise", "drift in noise", "drift", "slow", "falls", "start", "warm", "spikes"],
)
def test_a_figure_is_level_within_its_noise(value, level):
    assert verdict([(batch, value(batch)) for batch in BATCHES])["level"] is level


def test_descriptors_and_maps_are_counted(tmp_path):
    before = held_by([os.getpid()])
    with (tmp_path / "a").open("wb") as file:
        file.write(b"x")
        assert held_by([os.getpid()])["descriptors"] == before["descriptors"] + 1
    assert before["maps"] > 10
    assert before["rss_mb"] > 10
    assert files_below(tmp_path) == (1, pytest.approx(1 / (1 << 20)))


def test_the_processors_time_is_that_of_the_process():
    before = os.times()
    found = worked_s([os.getpid()])
    after = os.times()
    assert sum(before[:4]) - 0.1 <= found <= sum(after[:4]) + 0.1


def test_processes_below_others_are_found():
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        while len(below := descendants(os.getpid())) < 2:
            assert child.poll() is None
        assert child.pid in below
    finally:
        child.communicate(b"\n")
    assert child.pid not in descendants(os.getpid())


def test_batches_that_warm_up_do_not_count():
    points = [(batch, 10 if batch < FROM else 1000) for batch in range(0, 3 * FROM, EVERY)]
    assert verdict(points)["level"] is True


def test_too_few_batches_for_a_figure_are_refused():
    with pytest.raises(UsageError, match="100 is not in the range x>=300"):
        main(["--batches", "100"], standalone_mode=False)
