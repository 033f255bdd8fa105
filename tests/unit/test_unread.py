"""Files that are whole and cannot be read: they are named, and neither damaged nor bad files."""

from __future__ import annotations

import errno
import os
import re
import resource
from contextlib import contextmanager

import pytest

from joinengine.model.errors import CannotWrite, DamagedState, JoinEngineError
from joinengine.sources.listing import OnBadFile, look_at, read_footers
from joinengine.sources.sourcefiles import find
from joinengine.world.local import reading
from joinengine.world.world import MACHINE
from tests.unit.files import feed, put, rows_of


@contextmanager
def no_more_files():
    """Inside, none can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def refused(path, what="this process has too many files open"):
    """An error in one sentence that names the path and is no error of damage."""
    with pytest.raises(JoinEngineError) as raised:
        yield
    said = f"{re.escape(str(path))} cannot be read: {what} .*; nothing is lost: "
    assert re.match(f"(source (file )?)?{said}", str(raised.value))
    assert not isinstance(raised.value, (DamagedState, CannotWrite))


@pytest.mark.parametrize("verb", ["get", "map", "seal"])
def test_a_file_of_a_checkpoint(tmp_path, verb):
    storage = MACHINE.storage(str(tmp_path))
    storage.put("a", b"1")
    with no_more_files(), refused(f"{tmp_path}/a"):
        getattr(storage, verb)("a")
    for names in (storage.names, storage.entries):
        with no_more_files(), refused(tmp_path):
            names()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_file_of_somebody_else(number):
    with refused("/x/y", "this user has no read permission"), reading("/x/y"):
        raise OSError(number, os.strerror(number))


def test_a_disk_that_has_failed_is_damage():
    with pytest.raises(DamagedState, match="/x/y cannot be read: the disk has failed"):
        with reading("/x/y"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_source_file_is_not_skipped(tmp_path):
    """Its rows would be missing, although nothing is wrong with it."""
    folder = tmp_path / "in"
    file = put(folder, "0.parquet", id=[1, 2], name=["a", "b"])
    found = feed(folder, on_bad_file=OnBadFile.SKIP)
    there = look_at(str(file))
    with no_more_files(), refused(file):
        read_footers([there], {})
    with no_more_files(), refused(folder):
        find(str(folder))
    found.discover()
    with no_more_files(), refused(file):
        rows_of(found)
    assert rows_of(found) == ([(1, "a"), (2, "b")], [])
