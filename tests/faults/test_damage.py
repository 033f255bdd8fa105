"""Damaged state is refused by name: every kind of file, truncated, altered or gone."""

from __future__ import annotations

import json
import os
import random
import shutil
import zlib
from pathlib import Path

import pytest

from joinengine.driver.account import account_of, claim
from joinengine.layouts import Mnrt
from joinengine.model.errors import CheckpointMismatch, DamagedState
from joinengine.results.delivery import Delivery
from joinengine.results.sinks import DiscardSink
from joinengine.state import manifests
from joinengine.state.checkpoint import ACCOUNT, Checkpoint, write_account
from joinengine.state.manifests import FORMAT
from joinengine.state.run import RunStores
from joinengine.world.world import MACHINE
from tests.harness import Killed, LocalQuery, two_way


def started(folder):
    return LocalQuery(folder, two_way(None, 3), "mnrt", choice=Mnrt(imbalance=0.05, intervals=2))


@pytest.fixture
def at_work(tmp_path):
    """A query whose batches this process has run."""
    return at_work_in(tmp_path)


def at_work_in(folder):
    query = started(folder)
    rng = random.Random(0)
    for batch in range(3):
        left = [(rng.randrange(9), 1000 * batch + i, i) for i in range(80)]
        right = [(rng.randrange(9), 1000 * batch + i, i) for i in range(20)]
        query.run_tuples(batch, left, right)
    assert len(query.state.layouts.history) > 1
    return query


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("query")
    at_work_in(folder)
    return folder


@pytest.fixture
def query(files, tmp_path):
    """That query, started again elsewhere from a copy of its files."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    return started(tmp_path)


def flip_bit(path, position=None):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 0x10
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


DAMAGE = {"flipped": flip_bit, "truncated": truncate, "gone": lambda path: path.unlink()}


def run_next(query):
    query.restart()  # in the same worker process, which has read the files
    query.run_tuples(3, [(k, 5000 + k, 0) for k in range(9)], [(k, 6000 + k, 0) for k in range(9)])


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_run_file_is_refused_by_name(at_work, how):
    run = next(iter(at_work.state.shelves.state.values()))
    DAMAGE[how](Path(at_work.checkpoint.runs.folder) / run.file)
    with pytest.raises(DamagedState, match=run.file):
        run_next(at_work)


@pytest.mark.parametrize("part", [15, 30, 45, 60, 85])
def test_a_flipped_bit_is_seen_by_a_worker_that_has_read_the_file(at_work, part):
    run = next(iter(at_work.state.shelves.state.values()))
    path = Path(at_work.checkpoint.runs.folder) / run.file
    flip_bit(path, path.stat().st_size * part // 100)
    with pytest.raises(DamagedState, match=run.file):
        run_next(at_work)


def test_stores_are_those_of_the_newest_driver_and_not_many():
    stores = RunStores(MACHINE, most=2)

    def store(folder, driver):
        return stores.store_of(folder, 0, driver, lambda world: world.storage(folder))

    first, other = store("a", "x"), store("b", "y")
    assert store("a", "x") is first
    assert store("b", "y") is other
    assert store("a", "z") is not first
    store("c", "w")
    assert store("b", "y") is not other


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_statistics_are_refused_by_name(query, how):
    name = query.state.layouts.history[0].name
    DAMAGE[how](Path(query.checkpoint.runs.folder) / name)
    with pytest.raises(DamagedState, match=name):
        query.restart()


@pytest.mark.parametrize("how", ["flipped", "truncated"])
@pytest.mark.parametrize("part", ["header", "body"])
def test_a_damaged_newest_manifest_is_refused_not_skipped(query, how, part):
    newest = max(Path(query.checkpoint.manifests.folder).iterdir())
    if how == "truncated":
        newest.write_bytes(newest.read_bytes()[: 5 if part == "header" else -9])
    else:
        flip_bit(newest, 3 if part == "header" else -40)
    with pytest.raises(DamagedState, match=newest.name):
        query.restart()


def test_every_single_bit_of_a_manifest_counts(query):
    newest = max(Path(query.checkpoint.manifests.folder).iterdir())
    whole = newest.read_bytes()
    rng = random.Random(1)
    for _ in range(200):
        position, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
        newest.write_bytes(
            whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :]
        )
        with pytest.raises((DamagedState, CheckpointMismatch)):
            manifests.newest(query.checkpoint.manifests)


def test_a_damaged_account_of_the_query_is_refused_by_name(query):
    wanted = account_of(query.query)
    checkpoint = query.checkpoint
    write_account(checkpoint, {"format": FORMAT, "id": "q", "query": wanted})
    path = Path(checkpoint.storage.folder) / ACCOUNT
    assert claim(checkpoint, wanted).take(checkpoint) == "q"
    whole = path.read_bytes()
    rng = random.Random(2)
    positions = rng.sample(range(len(whole)), 60)
    for position in [*positions, whole.index(b"crc32"), whole.index(b'"q"') + 1]:
        flip_bit(path, position)
        if _is_same_json(path.read_bytes(), whole):  # a blank became another one
            continue
        with pytest.raises(DamagedState, match=ACCOUNT):
            claim(checkpoint, wanted)
        path.write_bytes(whole)
    for damage in (truncate, DAMAGE["gone"]):
        damage(path)
        with pytest.raises(DamagedState, match=ACCOUNT):
            claim(checkpoint, wanted)


@pytest.mark.parametrize(
    "name",
    [
        *("manifest", "runs", "exchange", "results", "sources", "generations", "heartbeats"),
        *("boundary", "showings", "store"),
    ],
)
def test_a_file_in_place_of_a_folder_is_refused_by_name(query, name):
    wanted, checkpoint = account_of(query.query), query.checkpoint
    write_account(checkpoint, {"format": FORMAT, "id": "q", "query": wanted})
    path = Path(checkpoint.storage.folder) / name
    shutil.rmtree(path, ignore_errors=True)
    path.touch()
    with pytest.raises(DamagedState, match=f"/{name} should be a folder and is a file"):
        claim(checkpoint, wanted)


def test_a_file_in_place_of_all_folders_is_refused_by_name(query):
    checkpoint = Checkpoint.below(query.folder / "new")
    (query.folder / "new").mkdir()
    (query.folder / "new" / "joinengine").touch()
    with pytest.raises(DamagedState, match="new/joinengine should be a folder and is a file"):
        claim(checkpoint, account_of(query.query)).take(checkpoint)


def test_an_account_of_an_older_version_is_read(query):
    wanted = account_of(query.query)
    content = {"format": FORMAT, "id": "older", "query": wanted}
    (Path(query.checkpoint.storage.folder) / ACCOUNT).write_text(json.dumps(content))
    assert claim(query.checkpoint, wanted).query == "older"


def _is_same_json(content, other):
    try:
        return json.loads(content) == json.loads(other)
    except ValueError:
        return False


def test_an_unknown_format_is_refused_by_number(query):
    newest = max(Path(query.checkpoint.manifests.folder).iterdir())
    header, _, body = newest.read_bytes().partition(b"\n")
    newest.write_bytes(
        header.replace(b"manifest %d " % manifests.FORMAT, b"manifest 99 ") + b"\n" + body
    )
    assert zlib.crc32(body)
    with pytest.raises(CheckpointMismatch, match="format 99"):
        query.restart()


def test_a_lost_result_file_is_refused_by_name(query):
    (stored, *_) = query.runner.manifest.results
    (visible,) = (query.folder / "out").glob(f"*{stored.name}")
    visible.unlink()
    with pytest.raises(DamagedState, match=stored.name):
        query.restart()


def cut_short(query, place):
    """A driver that dies behind a commit, whose staged results are then cut off; their names."""

    def step(name):
        if name == "committed":
            raise Killed

    query.runner.delivery.sink.step = step
    with pytest.raises(Killed):
        query.run_tuples(3, [(1, 5, 0)], [(1, 6, 0)])
    files = [stored.name for stored in manifests.newest(query.checkpoint.manifests).results]
    staged = query.folder / "out" / "_joinengine" / "q"
    for name in files:
        place.mkdir(parents=True, exist_ok=True)
        shutil.move(staged / name, place / name)
        os.truncate(place / name, 0)
    return files


def test_staged_results_that_lost_their_bytes_with_the_power_are_refused_by_name(query):
    files = cut_short(query, query.folder / "out" / "_joinengine" / "q")
    assert files
    with pytest.raises(DamagedState, match=rf"result file .*/({'|'.join(files)}) has 0 bytes"):
        query.restart()


def test_results_that_wait_in_the_checkpoint_are_looked_at_too(query):
    """Those of sinks that hand them on, which would read an empty file as no rows."""
    files = cut_short(query, Path(query.checkpoint.results.folder))
    delivery = Delivery(query.checkpoint, DiscardSink())
    with pytest.raises(DamagedState, match=rf"result file .*/({'|'.join(files)}) has 0 bytes"):
        delivery.check(manifests.newest(query.checkpoint.manifests))


def test_a_batch_that_does_not_follow_is_refused(query):
    with pytest.raises(CheckpointMismatch, match="does not follow micro-batch 2"):
        query.run_tuples(7, [], [])


def test_the_last_batch_again_changes_nothing(query):
    before, manifest = query.output(), query.runner.manifest
    query.run_tuples(2, [(1, 1, 1)], [(1, 1, 1)])
    assert query.output() == before
    assert query.runner.manifest is manifest


def test_create_leaves_the_first_content(tmp_path):
    assert MACHINE.storage(str(tmp_path)).create("f", b"one")
    assert not MACHINE.storage(str(tmp_path), fsync=True).create("f", b"two")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"one"


def test_files_that_nobody_names_are_collected(query):
    stray = Path(query.checkpoint.runs.folder) / "g1-run-99999999-0-0-0-dead.arrow"
    stray.write_bytes(b"half a file")
    staged = query.folder / "out" / "_joinengine" / "q" / "g1-half.parquet"
    staged.write_bytes(b"half a file")
    query.restart()
    assert stray.exists()  # not before a manifest of this driver's own
    query.run_tuples(3, [(1, 1, 1)], [(1, 1, 1)])
    assert not stray.exists()
    assert not staged.exists()
    named = query.runner.manifest.named_files()
    assert {path.name for path in Path(query.checkpoint.runs.folder).iterdir()} == named
    assert not list(Path(query.checkpoint.exchange.folder).iterdir())
