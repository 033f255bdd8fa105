"""Storage in an object store behaves as a folder does, and says what is wrong with a store."""

import pickle
import threading

import numpy as np
import obstore
import pyarrow as pa
import pytest

from joinengine.model.errors import DamagedState, InvalidRequest, StoreUnreachable
from joinengine.model.keys import Side
from joinengine.sources import sourcefiles
from joinengine.state import run
from joinengine.state import run_file as run_file_module
from joinengine.state.run import Run, RunStore
from joinengine.state.run_file import Page, RunWriter
from joinengine.world import buckets, remote
from joinengine.world import file_cache as cache
from joinengine.world import store_probe as probing
from joinengine.world.local import LocalStorage
from joinengine.world.storage import (
    Entry,
    Fetched,
    StoredFile,
    remove_unnamed,
    verify,
)
from joinengine.world.world import MACHINE
from tests.objects import ACCESS, environment, free_port, make_bucket, s3_server


@pytest.fixture(scope="module")
def server():
    with s3_server() as values, environment(values):
        yield values
    buckets.store_of.cache_clear()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JOINENGINE_CACHE", str(tmp_path / "cache"))
    cache.file_cache.cache_clear()
    yield tmp_path / "cache"
    cache.file_cache.cache_clear()


@pytest.fixture
def bucket(server):
    return make_bucket(server)


@pytest.fixture(params=["folder", "store", "cached store"])
def storage(request, tmp_path):
    if request.param == "folder":
        return MACHINE.storage(str(tmp_path / "files"))
    url = make_bucket(request.getfixturevalue("server"))
    return MACHINE.storage(f"{url}/files", cache_bytes=(1 << 20) * request.param.count("cached"))


def written(storage, name, content):
    with storage.output(name) as sink:
        sink.write(content)
    return storage.seal(name)


def test_a_name_is_created_once(storage):
    storage.make()
    assert storage.create("a", b"first")
    assert not storage.create("a", b"second")
    assert storage.get("a") == b"first"
    storage.put("a", b"third")
    assert storage.get("a") == b"third"


def test_one_of_many_writers_creates_a_name(storage):
    storage.make()
    won = list[int]()

    def write(number):
        if storage.create("once", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(won) == 1
    assert storage.get("once") == b"%d" % won[0]


def test_names_folders_and_removal(storage):
    storage.make()
    for name in ("one", "two"):
        storage.put(name, name.encode())
    storage.at("below").make()
    storage.put("below/three", b"3")
    found = {Entry("one", False), Entry("two", False), Entry("below", True)}
    assert set(storage.entries()) == found
    assert storage.at("below").names() == ["three"]
    assert storage.exists("one") and storage.exists("below") and not storage.exists("be")
    storage.delete("one", "never there")
    storage.delete_folder("below")
    storage.delete_folder("never there")
    assert storage.names() == ["two"]
    assert storage.at("none").names() == []


def test_a_name_that_is_gone_keeps_no_other_from_being_deleted(bucket, monkeypatch):
    """Azure and Google tell of it, and leave those behind it; S3 does not."""
    plainly = obstore.delete

    def delete(store, keys):
        for key in [keys] if isinstance(keys, str) else keys:
            obstore.head(store, key)  # raises FileNotFoundError
            plainly(store, key)

    monkeypatch.setattr(obstore, "delete", delete)
    storage = MACHINE.storage(f"{bucket}/files")
    for name in ("one", "two", "below/three"):
        storage.put(name, b"x")
    storage.delete("one", "never there", "two")
    assert storage.names() == ["below"]
    storage.delete_folder("below")
    assert storage.names() == []


def test_what_is_missing_is_said_with_its_place(storage):
    storage.make()
    for ask in (storage.get, storage.map, lambda name: storage.copy(name, "other")):
        with pytest.raises(FileNotFoundError, match=r"files/none"):
            ask("none")
    with pytest.raises(FileNotFoundError):
        storage.move("none", "other")


def test_a_file_is_sealed_moved_and_copied(storage):
    storage.make()
    content = bytes(range(256)) * 40
    sealed = written(storage, "file", content)
    assert sealed.name == "file" and sealed.size_bytes == len(content)
    assert verify(storage, sealed, "file").to_pybytes() == content
    storage.copy("file", "copied")
    storage.move("file", "folder/moved")
    assert sorted(storage.names()) == ["copied", "folder"]
    assert storage.get("folder/moved") == storage.get("copied") == content


def test_a_file_that_is_altered_is_refused(storage):
    storage.make()
    sealed = written(storage, "file", b"abc")
    storage.delete("file")
    storage.put("file", b"abd")
    with pytest.raises(DamagedState, match=r"run file .*files/file does not match its CRC"):
        verify(storage, sealed, "run file")
    with pytest.raises(DamagedState, match="gone is missing"):
        verify(storage, StoredFile("gone", 1, 1), "run file")


def test_files_of_newer_drivers_and_named_ones_stay(storage):
    storage.make()
    for name in ("g1-a", "g1-b", "g2-c", "g3-d", "plain", "g1-folder/e", "g3-folder/f"):
        storage.at(name.rpartition("/")[0]).make() if "/" in name else None
        storage.put(name, b"x")
    assert remove_unnamed(storage, ["g1-b"], range(3)) == 3
    assert sorted(storage.names()) == ["g1-b", "g3-d", "g3-folder", "plain"]


def test_a_place_is_a_folder_of_parquet_files_or_one_file(storage):
    for name in ("in/a.parquet", "in/b/c.parquet", "in/_d.parquet", "in/e.csv", "inner.parquet"):
        written(storage, name, b"x")
    place = f"{storage.folder}/in"
    found = sorted(one.path for one in sourcefiles.find(place))
    assert found == [f"{place}/a.parquet", f"{place}/b/c.parquet"]
    (left,) = sourcefiles.found_below(place, lambda paths: sorted(set(paths) - {found[0]}))
    assert left.path == found[1]
    for alone in found:
        assert [one.path for one in sourcefiles.find(alone)] == [alone]
    assert list(sourcefiles.found_below(found[0], lambda paths: [])) == []


def test_large_files_are_read_in_parts(bucket, monkeypatch):
    monkeypatch.setattr(remote, "_PART_BYTES", 1000)
    storage = MACHINE.storage(f"{bucket}/x")
    for size in (0, 999, 1000, 1001, 4500):
        content = bytes(i % 251 for i in range(size))
        sealed = written(storage, f"file-{size}", content)
        if size:
            assert verify(storage, sealed, "file").to_pybytes() == content


def test_ranges_of_a_file_are_read(storage):
    storage.make()
    content = bytes(i % 251 for i in range(5000))
    written(storage, "file", content)
    wanted = [(4990, 5000), (0, 3), (1000, 2000)]
    found = [part.to_pybytes() for part in storage.get_ranges("file", wanted)]
    assert found == [content[start:end] for start, end in wanted]
    with pytest.raises(FileNotFoundError):
        storage.get_ranges("none", wanted)


#: Of each run.
N_ROWS = 3000


def run_file(storage):
    """A file with three pages, of two sides; and its runs."""
    kinds = [("v", pa.int64()), ("v", pa.int64()), ("t", pa.string())]
    runs, writer = list[Run](), RunWriter(storage, "run")
    for number, (name, kind) in enumerate(kinds):
        rows = [n + 10_000 * number for n in range(N_ROWS)]
        columns = pa.record_batch({name: pa.array(rows).cast(kind)})
        page = Page(np.arange(N_ROWS, dtype=np.uint64), columns)
        ((part, size),) = writer.add(page, np.array([0, N_ROWS]), columns.schema)
        runs.append(Run("run", part, Side(number // 2), 0, 0, N_ROWS, size, 0))
    return writer.close(), runs


def test_runs_are_read_without_the_rest_of_their_file(bucket, monkeypatch):
    monkeypatch.setattr(run, "SAVED_BYTES", 1000)
    monkeypatch.setattr(run_file_module, "_TAIL_BYTES", 1024)
    storage = MACHINE.storage(f"{bucket}/runs", cache_bytes=1 << 20)
    stored, runs = run_file(storage)
    for wanted in ([1], [0, 2], [0, 1, 2]):
        storage.forget("run")
        store = RunStore(MACHINE.storage(f"{bucket}/runs", cache_bytes=1 << 20))
        store.see(["run"], 1)
        store.fetch([runs[n] for n in wanted], {"run": stored})
        for n in wanted:
            found = store.open(runs[n], stored).columns.column(0)
            assert int(found[-1].as_py()) == N_ROWS - 1 + 10_000 * n
        reads = store.reads(["run"])
        whole = len(wanted) == 3  # nothing is saved
        pages = sum(runs[n].size_bytes for n in wanted)
        assert (reads.files, reads.fetched_files) == (1, 1)
        assert (reads.size_bytes == stored.size_bytes) == whole
        assert whole or pages < reads.fetched_bytes < pages + 4000
        assert storage.is_near("run") == whole  # of parts no copy is kept
        if not whole:  # the others are there all the same
            rest = store.open(runs[1 if 0 in wanted else 0], stored)
            assert rest.columns.num_rows == N_ROWS


def test_a_file_that_is_near_is_not_read_by_ranges(bucket, monkeypatch):
    monkeypatch.setattr(run, "SAVED_BYTES", 0)
    storage = MACHINE.storage(f"{bucket}/runs", cache_bytes=1 << 20)
    stored, runs = run_file(storage)
    store = RunStore(storage)
    store.fetch(runs[:1], {"run": stored})
    assert store.open(runs[0], stored).columns.num_rows == N_ROWS
    assert storage.fetched == Fetched(0, 0)


@pytest.mark.parametrize("at", [200, -60], ids=["page", "directory"])
def test_a_page_that_was_altered_is_refused(bucket, monkeypatch, at):
    monkeypatch.setattr(run, "SAVED_BYTES", 1000)
    storage = MACHINE.storage(f"{bucket}/runs")
    stored, runs = run_file(storage)
    content = bytearray(storage.get("run"))
    content[at] ^= 1
    storage.put("run", bytes(content))
    store = RunStore(storage)
    store.fetch(runs[:1], {"run": stored})
    with pytest.raises(DamagedState, match=r"run file .*/run does not match its CRC"):
        store.open(runs[0], stored)


def test_a_file_that_is_gone_is_refused_when_it_is_opened(bucket, monkeypatch):
    monkeypatch.setattr(run, "SAVED_BYTES", 0)
    storage = MACHINE.storage(f"{bucket}/runs")
    stored, runs = run_file(storage)
    storage.delete("run")
    store = RunStore(storage)
    store.fetch(runs[:1], {"run": stored})
    with pytest.raises(DamagedState, match=r"run file .*/run is missing"):
        store.open(runs[0], stored)


def test_what_was_written_or_read_is_not_asked_for_again(bucket, own_cache):
    storage = MACHINE.storage(f"{bucket}/runs", cache_bytes=1 << 20)
    sealed = written(storage, "own", b"abc")
    assert verify(storage, sealed, "file").to_pybytes() == b"abc"
    assert storage.fetched == Fetched(0, 0)
    other = MACHINE.storage(f"{bucket}/runs")
    other.put("theirs", b"12345")
    assert [storage.map("theirs").to_pybytes() for _ in range(2)] == [b"12345"] * 2
    assert storage.fetched == Fetched(1, 5)
    other.delete("theirs")
    assert storage.map("theirs").to_pybytes() == b"12345"
    storage.delete("theirs")
    with pytest.raises(FileNotFoundError):
        storage.map("theirs")


def test_a_cached_file_that_was_altered_is_read_again(bucket, own_cache):
    storage = MACHINE.storage(f"{bucket}/runs", cache_bytes=1 << 20)
    sealed = written(storage, "run", b"abcdef")
    (kept,) = (path for path in own_cache.rglob("run"))
    kept.write_bytes(b"abcdeX")
    assert verify(storage, sealed, "run file").to_pybytes() == b"abcdef"
    assert kept.read_bytes() == b"abcdef"


def test_the_cache_keeps_what_was_used_last_and_no_more_than_it_may(bucket, own_cache, monkeypatch):
    monkeypatch.setattr(cache, "_COUNT_EVERY", 1)
    monkeypatch.setattr(cache, "RESERVE_BYTES", 0)
    storage = MACHINE.storage(f"{bucket}/runs", cache_bytes=250)
    monkeypatch.setattr(cache, "_COUNT_EVERY", 2)
    for n in range(5):
        written(storage, f"run-{n}", b"x" * 100)
    left = {path.name for path in own_cache.rglob("run-*")}
    assert "run-4" in left and "run-0" not in left
    assert sum(path.stat().st_size for path in own_cache.rglob("run-*")) <= 250


@pytest.mark.parametrize("obstacle", ["no room", "no folder"])
def test_without_a_disk_files_stay_in_memory(bucket, own_cache, monkeypatch, caplog, obstacle):
    if obstacle == "no room":
        monkeypatch.setattr(cache, "RESERVE_BYTES", 1 << 60)
    else:
        own_cache.write_bytes(b"in the way")
    cache._warn_full.cache_clear()
    storage = MACHINE.storage(f"{bucket}/runs", cache_bytes=1 << 20)
    sealed = written(storage, "run", b"abcdef")
    assert verify(storage, sealed, "run file").to_pybytes() == b"abcdef"
    assert not list(own_cache.rglob("run"))
    assert caplog.text.count("takes no more files") == 1


def test_a_storage_that_travels_holds_no_secret(server, bucket):
    storage = MACHINE.storage(f"{bucket}/x")
    storage.put("a", b"1")
    for told in (repr(storage), str(pickle.dumps(storage))):
        assert not any(ACCESS[name] in told for name in ACCESS if "KEY" in name)
    assert pickle.loads(pickle.dumps(storage)).get("a") == b"1"


def test_a_bucket_that_is_not_there(server):
    storage = MACHINE.storage("s3://no-such-bucket/x")
    for ask in (storage.names, lambda: storage.get("a"), lambda: storage.create("a", b"")):
        with pytest.raises(InvalidRequest, match=r"bucket s3://no-such-bucket does not exist"):
            ask()


def test_a_store_that_does_not_answer(monkeypatch):
    for room in (buckets, remote):
        monkeypatch.setattr(room, "PATIENCE_S", 1)
    buckets.store_of.cache_clear()
    with environment(ACCESS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}):
        storage = MACHINE.storage("s3://bucket/x")
        for ask in (storage.names, lambda: storage.get("a"), lambda: storage.create("a", b"")):
            with pytest.raises(StoreUnreachable, match=r"did not .* s3://bucket/x.* within 1 s"):
                ask()
    buckets.store_of.cache_clear()


def test_missing_credentials_are_said(monkeypatch):
    """Without any, the library asks the metadata service of a cloud, which is not here."""

    class Told(Exception):
        pass

    told = Told("Error performing PUT http://169.254.169.254/latest/api/token in 1ms - 403")
    refusal = buckets.refusal("read", "s3://bucket/x/a", told)
    assert isinstance(refusal, InvalidRequest)
    assert "no credentials for s3://bucket" in str(refusal)


def test_a_store_without_exclusive_creates_is_refused(tmp_path, monkeypatch, bucket):
    probing.check_exclusive(MACHINE.storage(f"{bucket}/probe"), MACHINE)
    good = LocalStorage(str(tmp_path))
    probing.check_exclusive(good, MACHINE)
    assert good.names() == []

    def careless(self, name, content):
        self.put(name, content)
        return True

    monkeypatch.setattr(LocalStorage, "create", careless)
    with pytest.raises(InvalidRequest, match="8 of 8 writers created the same file"):
        probing.check_exclusive(good, MACHINE)


def test_a_lost_answer_does_not_create_twice(bucket, monkeypatch):
    """An outcome that is unknown is tried again, and then the name is there."""
    storage = MACHINE.storage(f"{bucket}/x")
    put, calls = obstore.put, list[str]()

    def lost(store, key, content, **rest):
        calls.append(key)
        found = put(store, key, content, **rest)
        if len(calls) == 1:
            raise obstore.exceptions.GenericError("the answer was lost")
        return found

    monkeypatch.setattr(obstore, "put", lost)
    assert not storage.create("a", b"1")
    assert len(calls) == 2 and storage.get("a") == b"1"
