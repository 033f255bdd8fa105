"""Folders: who may do what with files, and disks that take no more."""

from __future__ import annotations

import errno
import os
import resource
import stat
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from joinengine.api import options
from joinengine.driver.account import Claim
from joinengine.driver.settings import Settings
from joinengine.exchange.exchange import Address, FileExchange
from joinengine.model.errors import CannotWrite, DamagedState, InvalidRequest
from joinengine.model.keys import Side
from joinengine.results.staging import ParquetFile
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.run_file import Page, RunWriter
from joinengine.world.local import make_folder, remove_left_drafts, writing
from joinengine.world.world import MACHINE
from tests.harness import LocalQuery, two_way

ROWS = pa.record_batch({"v": [os.urandom(50).hex() for _ in range(2_000)]})


@pytest.fixture
def storage(tmp_path):
    return MACHINE.storage(str(tmp_path / "files"))


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@contextmanager
def files_of_at_most(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_run(storage):
    writer = RunWriter(storage, "g1-file")
    page = Page(np.arange(ROWS.num_rows, dtype=np.uint64), ROWS)
    writer.add(page, np.array([0, ROWS.num_rows]), ROWS.schema)
    writer.close()


def write_block(storage):
    outbox = FileExchange(storage, MACHINE).outbox(Address(0, Side.LEFT, 0, 1))
    outbox.put(ROWS, np.array([0, ROWS.num_rows]))
    outbox.close()


def write_results(storage):
    file = ParquetFile(storage, "g1-file")
    file.add(ROWS)
    file.close()


@pytest.mark.parametrize("room", [10_000, 0])
@pytest.mark.parametrize("write", [write_run, write_block, write_results])
def test_a_file_that_does_not_fit_is_refused_by_name(storage, write, room):
    with (
        files_of_at_most(room),
        pytest.raises(CannotWrite, match=r"/files/\S+\.?\S* cannot be written: .*ulimit") as caught,
    ):
        write(storage)
    assert "nothing is lost: " in str(caught.value)
    storage.delete(*storage.names())
    write(storage)
    assert len(storage.names()) == 1


@pytest.mark.parametrize("verb", ["create", "put"])
def test_what_could_not_be_written_leaves_no_draft(storage, verb):
    storage.make()
    with files_of_at_most(10), pytest.raises(CannotWrite, match="/files/a cannot be written"):
        getattr(storage, verb)("a", bytes(1_000))
    assert os.listdir(storage.folder) == []


@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE],
)
def test_each_refusal_of_a_disk_says_what_helps(number):
    with pytest.raises(CannotWrite) as caught, writing("/x/y"):
        raise OSError(number, "..")
    assert str(caught.value).startswith("/x/y cannot be written: ")
    assert os.strerror(number) in str(caught.value)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_refused_as_such(storage, monkeypatch, number):
    def refuse(*paths):
        raise OSError(number, os.strerror(number))

    storage.make()
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(CannotWrite, match="/files/a cannot be created: its file system has no ha"):
        storage.create("a", b"1")
    assert os.listdir(storage.folder) == []


def test_drafts_of_a_writer_that_died_go_after_a_day(storage, monkeypatch):
    for name in ("a", "below/a", ".mine", ".mine.json", ".a.0123456789abc"):
        storage.output(name).close()
    kept = modes(Path(storage.folder)).keys()
    for folder in (storage, storage.at("below")):
        old, new = folder._draft(folder.path("b"), b"1"), folder._draft(folder.path("b"), b"1")
        os.utime(old, (0, 0))
    for name in kept:
        os.utime(storage.path(name), (0, 0))
    remove_left_drafts(storage.folder)
    left = modes(Path(storage.folder)).keys() - kept
    assert sorted(map(os.path.dirname, left)) == ["", "below"] and not os.path.exists(old)
    assert os.path.exists(new)


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError), writing(str(tmp_path / "y")):  # its folder is there
        raise FileNotFoundError(errno.ENOENT, "..")


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    storage = MACHINE.storage(str(tmp_path))
    (tmp_path / "f").touch()
    storage.put("g", b"1")
    asked = {
        "make": lambda: storage.at("f").make(),
        "make below": lambda: storage.at("f/a/b").make(),
        "get": lambda: storage.get("f/a"),
        "map": lambda: storage.map("f/a/b"),
        "create": lambda: storage.create("f/a", b"1"),
        "put": lambda: storage.put("f/a/b", b"1"),
        "move": lambda: storage.move("g", "f/a"),
        "copy": lambda: storage.copy("g", "f/a"),
        "output": lambda: storage.output("f/a"),
        "delete": lambda: storage.delete("f/a"),
    }
    for verb, ask in asked.items():
        with pytest.raises(DamagedState) as told:
            ask()
        assert str(told.value) == (
            f"{tmp_path}/f should be a folder and is a file; restore it from a copy"
        ), verb


def modes(folder):
    """Name -> mode of all that is below a folder, and of itself."""
    found = {"": folder, **{str(path.relative_to(folder)): path for path in folder.rglob("*")}}
    return {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()}


def use(checkpoint):
    """Write a file in each way."""
    runs = checkpoint.runs
    with runs.output("folder/streamed") as sink:
        sink.write(b"1")
    runs.put("put", b"1")
    runs.copy("put", "copied")
    assert checkpoint.manifests.create("created", b"1")
    checkpoint.storage.move("runs/put", "results/moved")


@pytest.mark.parametrize(
    ("mode", "umask", "folders", "files"),
    [
        (None, 0o022, 0o700, 0o600),
        ("600", 0o000, 0o700, 0o600),
        ("640", 0o022, 0o750, 0o640),
        ("0660", 0o002, 0o770, 0o660),
        ("664", 0o022, 0o775, 0o644),
    ],
)
def test_a_checkpoint_is_for_whom_it_is_meant(tmp_path, mode, umask, folders, files):
    os.umask(umask)
    asked = options.value_of({} if mode is None else {"fileMode": mode}, "fileMode")
    checkpoint = Checkpoint.below(tmp_path / "c", mode=asked)
    checkpoint.create()
    use(checkpoint)
    found = modes(tmp_path / "c" / "joinengine")
    is_file = {name: (tmp_path / "c" / "joinengine" / name).is_file() for name in found}
    assert sum(is_file.values()) == 4
    wanted = {name: files if is_file[name] else folders for name in found}
    wanted |= {"runs/folder": folders & ~umask}
    assert found == wanted


def test_a_mode_that_is_said_later_counts_from_then_on(tmp_path):
    Checkpoint.below(tmp_path / "c").create()
    shared = Checkpoint.below(tmp_path / "c", mode=0o750)
    Claim("q", None).take(shared)
    use(shared)
    found = modes(tmp_path / "c" / "joinengine")
    assert found["runs"] == found[""] == 0o750
    assert found["results/moved"] == 0o640
    Claim("q", None).take(Checkpoint.below(tmp_path / "c"))  # says nothing, so they stay
    assert modes(tmp_path / "c" / "joinengine") == found


def test_elsewhere_the_umask_decides(tmp_path):
    make_folder(str(tmp_path / "out"))
    (tmp_path / "out").chmod(0o755)
    storage = MACHINE.storage(str(tmp_path / "out"))
    with storage.output("a/b") as sink:
        sink.write(b"1")
    assert modes(tmp_path / "out") == {"": 0o755, "a": 0o755, "a/b": 0o644}


@pytest.mark.parametrize("text", ["700", "060", "666x", "66", "640 ", "0o640", "620", "rw"])
def test_what_is_no_mode_is_refused(text):
    with pytest.raises(InvalidRequest, match=r"fileMode: expected three digits"):
        options.value_of({"fileMode": text}, "fileMode")


def test_what_a_manifest_names_survives_power_loss(tmp_path, monkeypatch):
    """Of results and of refused tuples the bytes and the names: here one row is without a key."""
    synced, sync = set(), os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.add(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))
    )
    query = LocalQuery(tmp_path, two_way(), "hash", settings=Settings(fsync=True), aside=True)
    query.run_tuples(0, [(1, 5, 0), (None, 6, 0)], [(1, 7, 0)])
    manifest = query.runner.manifest
    staged = {f"{tmp_path}/out/_joinengine/q/{stored.name}" for stored in manifest.results}
    aside = {f"{tmp_path}/aside/_joinengine/q/{stored.name}" for stored in manifest.refused}
    runs = {f"{query.checkpoint.runs.folder}/{name}" for name in manifest.named_files()}
    files = staged | aside | runs
    assert staged and aside and runs
    assert files <= synced
    assert {os.path.dirname(path) for path in files} <= synced
