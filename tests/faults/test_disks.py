"""A disk that is full or read-only ends a query in a sentence, and it goes on afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

from tests.cluster.machines import namespaces, obstacle
from tests.faults.disks import LEFT_BYTES

#: The stories of `make test` and the others: a program tells those of a tuple.
STORIES = (
    ("full out", "full table", "merging", "read_only checkpoint"),
    ("full checkpoint", "read_only out"),
)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What a story has come to, by its name."""
    if (reason := obstacle()) is not None:
        pytest.skip(reason)

    @cache
    def all_told(names):
        folder = str(tmp_path_factory.mktemp("disks"))
        program = [*namespaces(), sys.executable, "-m", "tests.faults.disks", folder, *names]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return lambda name: next(all_told(names)[name] for names in STORIES if name in names)


@pytest.mark.parametrize("place", [pytest.param("checkpoint", marks=pytest.mark.slow), "out"])
def test_a_full_disk_ends_the_query_in_a_sentence_and_it_goes_on_when_there_is_room(told, place):
    story = told(f"full {place}")
    first, full, again, last = story["said"]
    assert (first, last) == (None, None)
    for said in (full, again):
        assert said.startswith("CannotWrite: ")
        assert "No space left on device" in said and "nothing is lost: make room" in said
        assert f"/full-{place}/{place}" in said
    assert story["whole"]
    # What failed leaves no more than a few small files behind.
    assert story["grown"] < LEFT_BYTES // 2


def test_a_table_on_a_full_disk_loses_nothing_and_has_nothing_twice(told):
    story = told("full table")
    first, full, again, last = story["said"]
    assert (first, last) == (None, None)
    for said in (full, again):
        assert said.startswith("CannotWrite: ") and "/full-table/out" in said
        assert "No space left on device" in said and "nothing is lost: make room" in said
        assert len(said.splitlines()) == 1
    assert story["whole"]
    assert story["grown"] < LEFT_BYTES // 2


def test_a_disk_that_is_full_while_results_are_merged(told):
    """Their batches are committed, and the results still held back."""
    story = told("merging")
    first, full, again, last = story["said"]
    assert (first, last) == (None, None)
    for said in (full, again):
        assert said.startswith("CannotWrite: ") and "/merging/out/_joinengine/" in said
        assert "No space left on device" in said and "not committed" not in said
    assert story["whole"]
    # Held back are the results of three batches, and nothing of the file that did not fit.
    assert 2.5 < story["grown"] < 3.5


@pytest.mark.parametrize("place", ["checkpoint", pytest.param("out", marks=pytest.mark.slow)])
def test_a_read_only_disk_is_refused_at_the_start_and_the_query_goes_on_later(told, place):
    story = told(f"read_only {place}")
    first, refused, last = story["said"]
    assert (first, last) == (None, None)
    assert refused.startswith("InvalidRequest: ") and "cannot be written" in refused
    assert story["whole"]
