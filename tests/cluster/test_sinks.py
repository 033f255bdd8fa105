"""Every sink gets every result where machines share an object store, and Spark has no jar for it.

Spark's own formats write where Spark can: into a folder that all machines see.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.world.buckets import files_below, reader_of
from joinengine.world.world import MACHINE
from tests.cluster.spark import reaching
from tests.objects import environment, make_bucket

pytestmark = [pytest.mark.spark, pytest.mark.slow]
KEYS = [1, 2, 3]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def ran(running, objects, shared):
    """What the program said, and the bucket."""
    bucket = make_bucket(objects)
    with environment(objects):
        for side in ("left", "right"):
            columns = {"key": [*KEYS, None], side: [1, 2, 3, 4]}
            if side == "right":
                columns["day"] = ["mon", "mon", "tue", None]
            with MACHINE.storage(bucket).output(f"in/{side}/0.parquet") as sink:
                pq.write_table(pa.table(columns), sink, row_group_size=2)
    program = ("-m", "tests.cluster.programs", "sinks", running.url, bucket, shared)
    done = running.run(*program, **reaching(objects))
    assert done.returncode == 0, f"{done.stderr}\n{running.executor_logs()}"
    return done.stdout, bucket


@pytest.mark.parametrize(
    ("sink", "keys", "folders"),
    [
        ("parquet", KEYS, {""}),
        ("by-day", KEYS, {"day=mon/", "day=tue/"}),
        ("held", KEYS, {""}),
        ("transformed", [2, 3], {""}),
    ],
)
def test_parquet_files_lie_in_the_store(cluster, objects, ran, sink, keys, folders):
    out = f"{ran[1]}/out/{sink}/"
    with environment(objects):
        paths = [path for path, *_ in files_below(out.rstrip("/")) if path.endswith(".parquet")]
        found = {path.removeprefix(out): pq.ParquetFile(reader_of(path)).read() for path in paths}
    visible = {path: table for path, table in found.items() if not path.startswith("_")}
    assert sorted(key for table in visible.values() for key in table["key"].to_pylist()) == keys
    assert {path.rpartition("part-")[0] for path in visible} == folders


@pytest.mark.parametrize("sink", ["memory", "table", "json"])
def test_formats_of_spark_get_every_result(cluster, ran, sink):
    assert json.loads(ran[0].splitlines()[-1])[sink] == KEYS


def test_functions_get_each_batch(cluster, ran):
    assert json.loads(ran[0].splitlines()[-1])["foreachBatch"] == [[1, 2], [3]]


def test_the_console_shows_each_batch(cluster, ran):
    said = ran[0]
    assert "Batch: 0" in said and "Batch: 1" in said
    shown = [line.split("|")[1].strip() for line in said.splitlines() if line.startswith("|")]
    assert sorted(int(one) for one in shown if one.isdigit()) == KEYS
