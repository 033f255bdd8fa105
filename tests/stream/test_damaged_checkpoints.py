"""A checkpoint that is not what it was: a start goes on, or says in a sentence why it does not."""

from __future__ import annotations

import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import DamagedState, JoinEngineError, StreamJoin, parquet_stream
from tests.stream.conftest import same

pytestmark = pytest.mark.spark

STATE = "checkpoint/joinengine"
KEYS = 40


def add(root, number):
    """A file of each side, all of whose keys match."""
    for side in ("left", "right"):
        (root / side).mkdir(exist_ok=True)
        keys = range(KEYS * number, KEYS * (number + 1))
        pq.write_table(pa.table({"key": keys, side: keys}), root / side / f"{number}.parquet")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture(scope="module")
def start(spark, root):
    """Starts the query; what was computed before, but not shown, is shown."""

    def start(**options):
        sides = [parquet_stream(spark, root / s, rows_per_interval=KEYS) for s in ("left", "right")]
        writer = StreamJoin(*sides, on="key", instances=2).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", root / "checkpoint").options(**options)
        return writer.start(str(root / "out"))

    return start


@pytest.fixture(scope="module")
def kept(root, start):
    """The folders after three batches whose results are held back."""
    for number in range(3):
        add(root, number)
    query = start(compactEvery=50)
    query.processAllAvailable()
    for folder in ("checkpoint", "out"):
        shutil.copytree(root / folder, root / "kept" / folder)
    query.stop()
    add(root, 3)  # of which no start has known yet
    return root / "kept"


@pytest.fixture
def damaged(root, kept):
    for folder in ("checkpoint", "out"):
        shutil.rmtree(root / folder)
        shutil.copytree(kept / folder, root / folder)
    return root


def harm(path, how):
    """Do harm to a file or folder."""
    if how == "removed":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "a file":
        shutil.rmtree(path, ignore_errors=True)
        path.touch()
    elif how == "deep":
        path.write_bytes(b"[" * 200_000)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("what", "how", "said"),
    [
        ("output.json", "cut", "output.json, which names the output folder, is truncated or was"),
        ("output.json", "a folder", "output.json should be a file and is a folder"),
        ("query.json", "a folder", "query.json should be a file and is a folder"),
        (
            "generations",
            "removed",
            "generations, which lists the drivers of the checkpoint, is missing",
        ),
        ("manifest/*", "a folder", "should be a file and is a folder"),
        ("runs/*", "a folder", "should be a file and is a folder"),
        ("sources/0/*", "a folder", "should be a file and is a folder"),
        ("runs", "a file", "runs should be a folder and is a file"),
        ("exchange", "a file", "exchange should be a folder and is a file"),
        ("showings", "a file", "showings should be a folder and is a file"),
        ("sources/0", "a file", "source log .* lists 0 row groups of"),
        ("manifest", "removed", "manifest is missing or (empty, but .* holds results|holds no)"),
        (
            "sources",
            "removed",
            "source log .* lists 0 row groups of .*, but the checkpoint has read",
        ),
        ("query.json", "deep", "query.json does not match its CRC"),
        ("held", "cut", "result file that is held back .* it is truncated"),
        ("held", "altered", "result file that is held back .* its bytes were altered"),
        ("held", "removed", "result file that is held back .* is missing"),
        ("held", "a folder", "should be a file and is a folder"),
        ("marker", "a folder", "should be a file and is a folder"),
    ],
)
@pytest.mark.parametrize("tasks", ["auto", pytest.param("jobs", marks=pytest.mark.slow)])
def test_what_cannot_be_trusted_is_refused_by_name(what, how, said, tasks, damaged, start):
    places = {"held": "out/_joinengine/*/g*-*", "marker": "out/_joinengine/*.json"}
    *_, path = sorted(damaged.glob(places.get(what, f"{STATE}/{what}")))
    harm(path, how)
    with pytest.raises(JoinEngineError, match=said) as raised:
        start(compactEvery=50, tasks=tasks).processAllAvailable()
    assert not re.search(r"\n|\w(Error|Exception): |Errno", str(raised.value))


def test_results_without_manifests_do_not_come_again(damaged, start):
    """A batch was shown, nobody knows of it any more, and no batch is marked as closed."""
    start().stop()
    for folder in ("manifest", "boundary"):
        shutil.rmtree(damaged / STATE / folder)
    with pytest.raises(DamagedState, match=r"manifest is missing or empty, but .* holds results"):
        start()


def test_a_lost_manifest_does_not_let_results_come_again(damaged, start):
    query = start()
    query.processAllAvailable()
    query.stop()
    *_, newest = sorted((damaged / STATE / "manifest").glob("*.json"))
    newest.unlink()
    add(damaged, 9)
    with pytest.raises(DamagedState, match=r"out holds results of this query up to batch \d+, and"):
        start()
    (damaged / "left/9.parquet").unlink()
    (damaged / "right/9.parquet").unlink()


def test_folders_that_a_copy_has_left_out_are_made_again(damaged, start):
    """Tools that copy leave out empty folders."""
    for folder in ("showings", "boundary", "exchange", "results", "heartbeats"):
        shutil.rmtree(damaged / STATE / folder, ignore_errors=True)
    query = start(compactEvery=50)
    query.processAllAvailable()
    query.stop()
    left, right = (f"'{damaged}/{side}/*.parquet'" for side in ("left", "right"))
    same(damaged / "out", f"select * from {left} join {right} using (key)")
