"""Files that lie on an executor's disk until the store has them."""

from __future__ import annotations

import os

import pytest

from joinengine.world import behind as module
from joinengine.world import file_cache as cache
from joinengine.world.behind import behind
from joinengine.world.local import LocalStorage
from joinengine.world.storage import verify
from joinengine.world.world import MACHINE
from tests.waiting import soon


@pytest.fixture(autouse=True)
def disk(tmp_path, monkeypatch):
    monkeypatch.setenv("JOINENGINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "_taken_up", set())
    cache.file_cache.cache_clear()
    yield tmp_path / "cache-pending"
    cache.file_cache.cache_clear()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "runs").mkdir()
    return str(tmp_path / "runs")


def written(storage, name, content=b"abcdef"):
    with storage.output(name) as sink:
        sink.write(content)
    return storage.seal(name)


def pending(disk):
    return [path for path in disk.rglob("*") if path.is_file()]


def test_a_file_is_read_here_at_once_and_elsewhere_when_it_is_uploaded(
    folder, disk, monkeypatch, caplog
):
    storage = MACHINE.storage(folder, is_behind=True)
    stalled, put = [True], LocalStorage.put

    def slow(self, name, content):
        if stalled[0]:
            raise OSError("the store does not answer")
        put(self, name, content)

    monkeypatch.setattr(LocalStorage, "put", slow)
    sealed = written(storage, "run")
    assert verify(storage, sealed, "run file").to_pybytes() == b"abcdef"
    assert storage.is_near("run")
    assert storage.exists("run")
    elsewhere = MACHINE.storage(folder)
    assert not elsewhere.exists("run")
    soon(lambda: caplog.messages)
    assert caplog.messages == [
        f"joinengine: {folder}/run is not uploaded yet: the store does not answer"
    ]
    assert [path.stat().st_mode & 0o777 for path in pending(disk)] == [0o600]
    stalled[0] = False
    soon(lambda: elsewhere.exists("run") and not pending(disk))
    assert verify(elsewhere, sealed, "run file").to_pybytes() == b"abcdef"
    assert verify(storage, sealed, "run file").to_pybytes() == b"abcdef"


def test_who_has_mapped_a_file_goes_on_with_it(folder, disk):
    storage = behind(MACHINE.storage(folder))
    written(storage, "run")
    content = storage.map("run")
    soon(lambda: not pending(disk))
    assert content.to_pybytes() == b"abcdef"
    assert storage.get_ranges("run", [(1, 3)])[0].to_pybytes() == b"bc"


def test_a_worker_that_starts_uploads_what_another_has_left(folder, disk, monkeypatch):
    found = behind(MACHINE.storage(folder))
    found.near.put("left", b"abcdef")
    monkeypatch.setattr(module, "_taken_up", set())
    behind(MACHINE.storage(folder))
    soon(lambda: MACHINE.storage(folder).exists("left") and not pending(disk))


def test_what_the_driver_makes_is_there_at_once(folder):
    storage = behind(MACHINE.storage(folder))
    storage.put("counts", b"1")
    assert storage.create("marker", b"2")
    elsewhere = MACHINE.storage(folder)
    assert (elsewhere.get("counts"), elsewhere.get("marker")) == (b"1", b"2")
    storage.move("counts", "moved")
    storage.copy("moved", "copied")
    assert sorted(os.listdir(folder)) == sorted(storage.names()) == ["copied", "marker", "moved"]
    storage.delete("copied")
    assert not storage.exists("copied")
