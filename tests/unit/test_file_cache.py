"""The file cache of an executor: a disk that fills up costs requests, and nothing else."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager

import pytest

from joinengine.world import file_cache as cache
from joinengine.world.file_cache import FileCache

URL = "s3://bucket/runs/run"
CONTENT = bytes(range(256)) * 300


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "RESERVE_BYTES", 0)
    cache._warn_full.cache_clear()
    return FileCache(str(tmp_path / "cache"))


@contextmanager
def files_of_at_most(size):
    """The system refuses to let a file grow further, as a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write(draft, content=CONTENT):
    for start in range(0, len(content), 5_000):
        piece = content[start : start + 5_000]
        assert draft.write(piece) == len(piece)
        assert draft.tell() == start + len(piece)


def files(here):
    return [name for _, _, names in os.walk(here.folder) for name in names]


def test_a_draft_becomes_a_copy_for_its_owner_alone(here):
    draft = here.draft()
    write(draft)
    content = draft.content()
    here.adopt(draft, URL, 1 << 20)
    draft.drop()
    path = here.find(URL)
    assert open(path, "rb").read() == content.to_pybytes() == CONTENT
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert here.forget(URL) and not here.forget(URL)
    assert content.to_pybytes() == CONTENT  # who has mapped it goes on with it


@pytest.mark.parametrize("room", [0, 1, 7_000, len(CONTENT) - 1])
def test_a_draft_goes_on_in_memory_when_the_disk_is_full(here, caplog, room):
    draft = here.draft()
    with files_of_at_most(room):
        write(draft)
    assert draft.content().to_pybytes() == CONTENT
    assert caplog.text.count("(File too large)") == 1
    here.adopt(draft, URL, 1 << 20)
    draft.drop()
    assert here.find(URL) is None and files(here) == []


def test_a_draft_that_is_dropped_leaves_nothing(here):
    draft = here.draft()
    write(draft)
    assert len(files(here)) == 1
    draft.drop()
    assert files(here) == []


def test_copies_on_a_disk_that_is_read_only_are_still_used(here, monkeypatch):
    draft = here.draft()
    write(draft)
    here.adopt(draft, URL, 1 << 20)

    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    for verb in ("utime", "unlink", "replace", "open", "makedirs"):
        monkeypatch.setattr(os, verb, refuse)
    assert here.find(URL) is not None
    assert here.find(f"{URL}-2") is None
    assert not here.forget(URL)
    write(other := here.draft())
    here.adopt(other, f"{URL}-2", 1 << 20)
    assert other.content().to_pybytes() == CONTENT
