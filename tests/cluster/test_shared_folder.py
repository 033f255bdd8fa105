"""joinengine on Spark's standalone cluster, whose machines share one folder."""

from __future__ import annotations

import json
import re
import sysconfig
import tarfile
import venv
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster.cases import BEFORE, Background, check_report
from tests.cluster.machines import ROOT
from tests.cluster.spark import HAVE_IT

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def streams(shared):
    """A folder with two small streams, which all machines see."""
    folder = shared / "streams"
    for side in ("left", "right"):
        (folder / side).mkdir(parents=True)
        table = pa.table({"key": [1, 2, 3, None], f"{side}_value": [1, 2, 3, 4]})
        pq.write_table(table, folder / side / "0.parquet")
    return folder


def done_by(report):
    """What has carried out each batch: on this cluster, tasks that stay."""
    return [row["tasks"] for row in report["batches"]]


@pytest.mark.slow
def test_the_command_line_runs_a_query(cluster, shared):
    report = shared / "report.json"
    asks = ["run", "eq5", "--layout", "mnrt", "--scale", "0.01", "--zipf", "1.2"]
    places = ["--out", shared / "out", "--checkpoint", shared / "checkpoint", "--json", report]
    asks += ["--interval-rows", "15000", *places, "--master", cluster.url, "--validate"]
    done = cluster.run("-m", "joinengine", *asks, JOINENGINE_HOME=str(shared / "home"))
    assert done.returncode == 0, f"{done.stderr}\n{cluster.executor_logs()}"
    assert done_by(check_report(report))[-1] == "stay"


@pytest.mark.slow
def test_a_killed_machine_loses_nothing(cluster, shared):
    places = {"out": shared / "out-0", "checkpoint": shared / "checkpoint-0"}
    query = Background(cluster, "eq5", places, JOINENGINE_HOME=str(shared / "home"))
    query.wait_for_the_middle()
    cluster.kill_worker(next(iter(cluster.workers)))
    by = done_by(query.check_end())
    assert [by[BEFORE - 1], by[-1]] == ["stay", "stay"]


def outcome(cluster, streams, checkpoint, out, **more):
    """What becomes of a join of the streams; `more`: as `Cluster.run` takes it."""
    program = ("-m", "tests.cluster.programs", "join", cluster.url)
    done = cluster.run(*program, streams, checkpoint, out, **more)
    assert done.returncode == 0, f"{done.stderr}\n{cluster.executor_logs()}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_folder_of_the_driver_alone_is_refused_at_start(cluster, shared, streams):
    found = outcome(cluster, streams, "/tmp/driver/place/checkpoint", shared / "out-1")
    hosts = ", ".join(cluster.workers)
    assert (found["error"], found["started"]) == ("InvalidRequest", False)
    assert found["message"] == (
        f"checkpointLocation: executors on {hosts} do not see /tmp/driver/place/checkpoint; give "
        "a folder that the driver and all executors share under this path, or keep the state in "
        "an object store: .option('stateLocation', 's3://bucket/folder')"
    )
    assert found["left_behind"] == []
    assert not (shared / "out-1").exists()


@pytest.mark.slow
def test_an_executor_without_the_packages_is_refused_at_start(cluster, shared, streams):
    """A Python of the driver's version, and nothing in it."""
    bare = shared / "bare"
    venv.create(bare, with_pip=False)
    found = outcome(
        *(cluster, streams, shared / "checkpoint-2", shared / "out-2"),
        PYSPARK_PYTHON=str(bare / "bin" / "python"),
    )
    assert (found["error"], found["started"]) == ("InvalidRequest", False)
    assert re.match(
        r"the Python of the executors.* lacks \w+; install joinengine on them, or ship it",
        found["message"],
    )


#: What tasks import, as it lies beside other packages; `lib`s hold their shared libraries.
PACKAGES = (
    *("joinengine", "numpy", "numpy.libs", "pyarrow", "duckdb", "_duckdb*", "cattrs", "cattr"),
    *("attr", "attrs", "typing_extensions.py", "obstore", "duckdb-*.dist-info"),
    *("datasketches", "_datasketches*"),
)


@pytest.mark.slow
def test_the_packages_travel_as_an_archive(cluster, shared, streams):
    """To a Python that has none; each executor unpacks half a gigabyte."""
    bare, archive = shared / "bare-too", shared / "packages.tar.gz"
    venv.create(bare, with_pip=False)
    site = Path(sysconfig.get_path("purelib"))
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(ROOT / "joinengine", "joinengine")
        for name in PACKAGES[1:]:
            for found in site.glob(name):
                packed.add(found, found.name)
    shipped = {"spark.archives": f"{archive}#packages", "spark.executorEnv.PYTHONPATH": "packages"}
    shipped = HAVE_IT | shipped
    found = outcome(
        *(cluster, streams, shared / "checkpoint-4", shared / "out-4"),
        settings=shipped,
        PYSPARK_PYTHON=str(bare / "bin" / "python"),
        # Spark plans by that Python, too, on the driver's machine.
        PYTHONPATH=f"{ROOT}:{site}",
    )
    assert found["error"] is None, found["message"]
    assert pq.read_table(shared / "out-4").num_rows == 3


@pytest.mark.slow
def test_what_all_machines_see_is_joined(cluster, shared, streams):
    found = outcome(cluster, streams, shared / "checkpoint-3", shared / "out-3")
    assert found["error"] is None, found["message"]
    rows = pq.read_table(shared / "out-3").sort_by("key").to_pylist()
    assert rows == [{"key": n, "left_value": n, "right_value": n} for n in (1, 2, 3)]
