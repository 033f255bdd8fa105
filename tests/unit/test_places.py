"""Folders of a query: apart from each other, and each output folder knows whose results it has."""

from __future__ import annotations

import errno
import os

import pytest

from joinengine.model.errors import CheckpointMismatch, DamagedState, InvalidRequest
from joinengine.results import outputs
from joinengine.spark.query.query_folders import check_apart, check_folder
from joinengine.spark.sources.locations import local_path, place
from joinengine.state import manifests
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest
from joinengine.world.memory import MemoryStorage, MemoryWorld
from joinengine.world.world import MACHINE


@pytest.mark.parametrize(
    ("checkpoint", "output", "aside", "message"),
    [
        ("c", "c", None, "checkpointLocation and path are both"),
        ("c", "o", "o", "path and sideOutput are both"),
        ("c", "o", "c", "checkpointLocation and sideOutput are both"),
        ("o/c", "o", None, "one folder lies in the other"),
        ("c", "c/_o", None, "one folder lies in the other"),
        ("in", "o", None, "lies in the folder .*/in, so the query would read"),
        ("in/c", "o", None, "lies in the folder .*/in, so the query would read"),
        ("c", "link", None, "path: .*/in lies in the folder"),
        ("c", "o", "in/deep/er", "sideOutput: .* lies in the folder"),
    ],
)
def test_folders_that_disturb_each_other(tmp_path, checkpoint, output, aside, message):
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    names = {"checkpointLocation": checkpoint, "path": output, "sideOutput": aside}
    below = {what: f"{tmp_path}/{name}" for what, name in names.items() if name is not None}
    with pytest.raises(InvalidRequest, match=message):
        check_apart(below, [f"{tmp_path}/in"])


@pytest.mark.parametrize(
    ("checkpoint", "output"), [("o/_c", "o"), ("c", "o"), ("in/_c", "o"), ("in2", "in/.o")]
)
def test_what_readers_skip_disturbs_nobody(tmp_path, checkpoint, output):
    written = {
        "checkpointLocation": f"{tmp_path}/{checkpoint}",
        "path": f"{tmp_path}/{output}",
        "stateLocation": "s3://bucket/x/joinengine",
        "sideOutput": "s3://bucket/x/late",
    }
    check_apart(written, [f"{tmp_path}/in", "s3://bucket/x/input"])


def test_places_of_an_object_store_that_disturb_each_other(tmp_path):
    written = {"checkpointLocation": str(tmp_path), "stateLocation": "s3://b/q/joinengine"}
    for path in ("s3://b/q/joinengine", "s3://b/q/joinengine/results", "s3://b/q"):
        with pytest.raises(InvalidRequest, match=r"stateLocation.* path"):
            check_apart(written | {"path": path}, [])
    check_apart(written | {"path": "s3://b/q/results"}, [])
    with pytest.raises(InvalidRequest, match=r"path: .*s3/b/in/x lies in the folder s3://b/in"):
        check_apart(written | {"path": "s3://b/in/x"}, ["s3://b/in"])


def test_places():
    assert place("s3://bucket/a/", "path") == "s3://bucket/a"
    for bad in ("s3://", "az:///x", "hdfs://host/x", "s3:/bucket"):
        with pytest.raises(InvalidRequest, match=r"stateLocation: .*"):
            place(bad, "stateLocation")


def test_whether_a_folder_can_be_made(tmp_path):
    """It is tried, and nothing of the trial is left."""
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "nowhere"):
        with pytest.raises(InvalidRequest, match=r"path: .*/(file|nowhere) is a file; give a fol"):
            check_folder(path, "path")
    with pytest.raises(InvalidRequest, match="path: /proc/x/y cannot be created"):
        check_folder(local_path("file:///proc/x/y", "path"), "path")
    check_folder(tmp_path / "a" / "b", "path")
    check_folder(tmp_path, "path")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "nowhere"}


@pytest.fixture
def world():
    return MemoryWorld()


def checkpoint_of(world, name, batches=0):
    made = Checkpoint.below(f"/{name}", world=world)
    for batch in range(batches):
        manifests.commit(made, Manifest(name, batch, ()))
    return made


def take(checkpoint, output, **wanted):
    """As a start does: check, which writes nothing, then take."""
    query, files = checkpoint.location.strip("/"), dict(checkpoint.world.files)
    try:
        outputs.check(checkpoint, output, query, outputs.Wanted(**wanted))
    finally:
        assert checkpoint.world.files == files
    outputs.take(checkpoint, output, query, outputs.Wanted(**wanted))


def files_of(output, query, world):
    """Two results of a query, one of them in a Hive folder."""
    names = [f"part-00000001-{query}-g1-x.parquet", f"day=1/part-00000002-{query}-g1-y.parquet"]
    for name in names:
        output.put(name, b"rows")
    return {f"{output.folder}/{name}" for name in names}


def test_a_query_goes_on_in_its_folder_wherever_it_lies(world):
    one = checkpoint_of(world, "one")
    take(one, world.storage("/out"))
    one = checkpoint_of(world, "one", batches=1)
    take(one, world.storage("/out"), overwrite=True)  # a restart overwrites nothing
    world.files["/moved/_joinengine/one.json"] = world.files.pop("/out/_joinengine/one.json")
    take(one, world.storage("/moved"))
    with pytest.raises(CheckpointMismatch, match=r"has written its results to /moved.* is /out"):
        take(one, world.storage("/out"))
    del world.files["/moved/_joinengine/one.json"]
    with pytest.raises(CheckpointMismatch, match=r"/moved no longer holds .* new checkpointLoc"):
        take(one, world.storage("/moved"))


def test_a_checkpoint_that_is_older_than_its_results_is_refused(world):
    """It would show some of them again."""
    out = world.storage("/out")
    one = checkpoint_of(world, "one")
    take(one, out)
    files_of(out, "one", world)
    files_of(out, "two", world)  # of another query, which says nothing
    with pytest.raises(DamagedState, match="manifest is missing or empty, but /out holds results"):
        take(one, out)
    for batch in range(3):
        manifests.commit(one, Manifest("one", batch, ()))
        if batch < 2:
            with pytest.raises(DamagedState, match=rf"up to batch 2, .* is of batch {batch}, so"):
                take(one, out)
    take(one, out)


def test_results_of_another_query(world):
    out = world.storage("/out")
    take(checkpoint_of(world, "one"), out)
    first = files_of(out, "one", world)
    two = checkpoint_of(world, "two")
    with pytest.raises(InvalidRequest, match=r"results of query one, with the checkpoint /one\."):
        take(two, out)
    take(two, out, shared=True)
    second = files_of(out, "two", world)
    assert first | second <= world.files.keys()
    late = checkpoint_of(world, "late", batches=1)
    with pytest.raises(InvalidRequest, match="results of query"):
        take(late, out, overwrite=True)  # only a new checkpoint may
    out.put("_joinengine/one/g1-staged.parquet", b"rows")
    take(checkpoint_of(world, "three"), out, overwrite=True)
    left = {path for path in world.files if path.startswith("/out/")}
    assert left == {"/out/_joinengine/three.json"}


def test_files_that_nobody_has_marked_are_never_removed(world):
    out = world.storage("/out")
    take(checkpoint_of(world, "one"), out)
    files_of(out, "one", world)
    out.put("day=1/mine.parquet", b"rows")
    two = checkpoint_of(world, "two")
    with pytest.raises(InvalidRequest, match=r"such as day=1/mine.parquet; use another folder"):
        take(two, out, overwrite=True)
    take(two, out, shared=True, overwrite=True)
    left = {path for path in world.files if path.startswith("/out/")}
    assert left == {"/out/day=1/mine.parquet", "/out/_joinengine/two.json"}


@pytest.mark.parametrize(
    "content", ['{"quer', "[]", "null", "1", '{"partitionBy": 5}', "[" * 10**5]
)
def test_a_damaged_marker_still_says_whose_it_is(world, content):
    out = world.storage("/out")
    out.put("_joinengine/one.json", content.encode())
    take(checkpoint_of(world, "own"), out, shared=True)
    world.files.pop("/out/_joinengine/own.json")
    with pytest.raises(InvalidRequest, match=r"query one, with the checkpoint unknown"):
        take(checkpoint_of(world, "two"), out)


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_starts_at_one_moment_at_most_one_takes_the_folder(world, monkeypatch, overwrite):
    """The other one begins and ends between the check of this one and its marker."""
    out, create, others = world.storage("/out"), MemoryStorage.create, ["two"]

    def late(storage, name, content):
        if others and name == outputs.marker_of("one"):
            take(checkpoint_of(world, others.pop()), out, overwrite=overwrite)
        return create(storage, name, content)

    monkeypatch.setattr(MemoryStorage, "create", late)
    with pytest.raises(InvalidRequest, match="the results of query two"):
        take(checkpoint_of(world, "one"), out, overwrite=overwrite)
    assert out.at(outputs.STAGING).names() == ["two.json"]
    take(checkpoint_of(world, "one"), out, shared=True)


def test_a_folder_that_cannot_be_listed_is_named(world, tmp_path, monkeypatch):
    out = MACHINE.storage(f"{tmp_path}/out")
    out.at("a=1").make()
    (tmp_path / "out/a=1/b=1").symlink_to("..")
    one = checkpoint_of(world, "one")
    with pytest.raises(
        InvalidRequest, match=r"path: /.*b=1 cannot be listed \(Too many levels of "
    ):
        outputs.check(one, out, "one", outputs.Wanted())

    def refuse(folder):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(InvalidRequest, match=r"/out cannot be read: .* \(Permission denied\); n"):
        list(outputs._results(out))


@pytest.mark.parametrize(
    ("was", "asked", "message"),
    [
        ((), ("day",), "/out without folders, and this query writes them in folders by day"),
        (("day",), (), "/out in folders by day, and this query writes them without folders"),
        (
            ("day", "id"),
            ("id", "day"),
            "in folders by day, id, and this query writes them in folders by id, day",
        ),
    ],
)
def test_results_stay_in_the_same_hive_folders(world, was, asked, message):
    out = world.storage("/out")
    take(checkpoint_of(world, "one"), out, partition_by=was)
    one = checkpoint_of(world, "one", batches=1)
    take(one, out, partition_by=tuple(name.upper() for name in was))
    ways = "give the same partitionBy as before, or start with a new checkpointLocation"
    with pytest.raises(CheckpointMismatch, match=rf"checkpoint /one .*{message}.*; {ways}"):
        take(one, out, partition_by=asked)
    two = checkpoint_of(world, "two")
    with pytest.raises(InvalidRequest, match=rf"query one writes .*{message}.* another folder"):
        take(two, out, shared=True, partition_by=asked)
    take(two, out, overwrite=True, partition_by=asked)
    take(checkpoint_of(world, "three"), out, shared=True, partition_by=asked)
