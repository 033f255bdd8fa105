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


def test_drafts_of_killed_processes_go_and_do_not_push_copies_out(here, monkeypatch):
    monkeypatch.setattr(cache, "_COUNT_EVERY", 2)
    left, live = here.draft(), here.draft()
    for draft in (left, live):
        write(draft)
    os.utime(left.path, (0, 0))
    for number in range(4):
        write(copied := here.draft())
        here.adopt(copied, f"{URL}-{number}", 4 * len(CONTENT))
        copied.drop()
    assert all(here.find(f"{URL}-{number}") for number in range(4))
    assert os.path.exists(live.path) and not os.path.exists(left.path)


@pytest.mark.parametrize("mode", [None, 0o777])
def test_a_folder_in_which_others_may_write_is_not_taken(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    usual = f"{tmp_path}/joinengine-cache-{os.getuid()}"
    if mode is not None:
        os.mkdir(usual)
        os.chmod(usual, mode)
    chosen = cache.folder_of({})
    assert (chosen == usual) is (mode is None)
    assert os.stat(chosen).st_mode & 0o777 == 0o700


def test_a_folder_of_somebody_else_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    mine = cache.folder_of({})
    assert cache.folder_of({}) == mine
    monkeypatch.setattr(cache.os, "lstat", lambda path: os.stat_result((0o40700, *[7] * 9)))
    assert cache.folder_of({}) != mine
