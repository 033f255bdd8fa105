"""Queries in a session that the user has made."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import InvalidRequest, StreamJoin, parquet_stream
from joinengine.spark.session import interpreter

pytestmark = pytest.mark.spark

START = """
import json, sys, warnings
from pathlib import Path
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
import pyarrow as pa
from joinengine import StreamJoin, parquet_stream
from joinengine.spark.session.tuning import ARROW_BYTES, ARROW_ROWS, CHECKPOINT_MANAGER
root = Path(sys.argv[1])
"""

QUERIES = """
def sized(batches):
    for batch in batches:
        yield batch.append_column("arrow_rows", pa.array([batch.num_rows] * batch.num_rows))

def start(name, left, query_name=None):
    joined = StreamJoin(left, parquet_stream(spark, root / "right"), on="key", instances=2)
    writer = joined.writeStream.format("parquet").trigger(availableNow=True)
    if query_name is not None:
        writer = writer.queryName(query_name)
    query = writer.option("checkpointLocation", str(root / f"{name}.checkpoint"))
    return query.start(str(root / name))

def rows():
    reader = spark.readStream.schema(spark.read.parquet(str(root / "left")).schema)
    left = reader.option("maxFilesPerTrigger", 1).parquet(str(root / "left"))
    schema = "key long, text string, arrow_rows long"
    return left.mapInArrow(sized, schema)

def clone_of(query):
    conf = query.query._jsq.streamingQuery().sparkSessionForStream().conf()
    return [conf.get(name, None) for name in (CHECKPOINT_MANAGER, ARROW_BYTES, ARROW_ROWS)]

def own():
    return [spark.conf.get(name, None) for name in (CHECKPOINT_MANAGER, ARROW_BYTES, ARROW_ROWS)]

said = {}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    query = start("texts", rows())
    said["after start"] = own()
    query.awaitTermination()
    said["warnings"] = [str(w.message) for w in caught if "joinengine" in str(w.message)]
said["texts"] = clone_of(query)

# A start that Spark refuses.
idle = spark.readStream.format("rate").load().writeStream.format("noop").queryName("taken")
idle = idle.option("checkpointLocation", str(root / "idle")).start()
try:
    start("refused", parquet_stream(spark, root / "right"), "taken")
    said["refused"] = "nothing"
except Exception as error:
    said["refused"] = str(error)
idle.stop()
said["after refusal"] = own()

# What the user has set.
checkpointing = "org.apache.spark.sql.execution.streaming.checkpointing."
spark.conf.set(CHECKPOINT_MANAGER, checkpointing + "FileContextBasedCheckpointFileManager")
query = start("chosen", rows())
query.awaitTermination()
said["chosen"], said["after chosen"] = clone_of(query), own()
query = start("own", parquet_stream(spark, root / "left"))
query.awaitTermination()
said["own"] = [query.query is None, len(spark.streams.active), query.lastProgress.numInputRows]
print(json.dumps(said))
"""


def run(program, folder, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")}
    done = subprocess.run(
        [sys.executable, "-c", START + program, str(folder)],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def folder(tmp_path):
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
    for number in range(2):
        keys = range(number * 40_000, (number + 1) * 40_000)
        table = pa.table({"key": keys, "text": [str(key) for key in keys]})
        pq.write_table(table, tmp_path / "left" / f"{number}.parquet")
        os.utime(tmp_path / "left" / f"{number}.parquet", (number, number))
    pq.write_table(pa.table({"key": range(0, 80_000, 100)}), tmp_path / "right" / "0.parquet")
    return tmp_path


@pytest.mark.slow
def test_a_query_sets_for_itself_what_it_can_have_for_itself(folder):
    said = run(QUERIES, folder, PYSPARK_PYTHON=sys.executable)
    nothing = [None, None, None]
    manager, *arrow = said["texts"]
    assert manager.endswith(".FileSystemBasedCheckpointFileManager")
    assert arrow == [str(2**31 - 1), "32768"]
    # Spark's own limit of rows before the width is known, the other one from then on.
    found = pq.read_table(sorted((folder / "texts").glob("*.parquet"))).to_pylist()
    assert len(found) == 800
    assert {row["arrow_rows"] for row in found if row["key"] < 40_000} == {10_000}
    assert {row["arrow_rows"] for row in found if row["key"] >= 40_000} == {32_768, 7_232}
    assert "taken" in said["refused"]
    for when in ("after start", "after refusal"):
        assert said[when] == nothing, when
    chosen = manager.replace("FileSystemBased", "FileContextBased")
    assert said["chosen"] == [chosen, *arrow]
    assert said["after chosen"] == [chosen, None, None]
    assert said["own"] == [True, 0, 80_800]  # of own streams Spark runs no streaming query
    (warning,) = said["warnings"]
    assert "PYSPARK_UDS_MODE=true" in warning
    assert "checkpointFileManagerClass" in warning


def test_workers_without_packages_are_refused_before_anything_runs(spark, tmp_path, monkeypatch):
    """Spark runs the python3 of the PATH, if nobody has said otherwise."""
    bare = tmp_path / "bin" / "python3"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(bare.parent), os.environ["PATH"]]))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3")
    monkeypatch.setattr(interpreter, "fault_of", interpreter.fault_of.__wrapped__)
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"key": range(9)}), tmp_path / "in" / "0.parquet")
    stream = parquet_stream(spark, tmp_path / "in")
    writer = StreamJoin(stream, stream, on="key", instances=2).writeStream.format("noop")
    with pytest.raises(InvalidRequest) as refused:
        writer.option("checkpointLocation", tmp_path / "checkpoint").start()
    message = str(refused.value)
    assert message.startswith(f"Spark's workers would run {bare}, which lacks joinengine and pyarr")
    assert f"set PYSPARK_PYTHON={sys.executable} before the " in message
    assert not (tmp_path / "checkpoint").exists()
