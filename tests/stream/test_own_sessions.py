"""Queries in a session that the user has made, each in a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

START = """
import json, sys
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
from joinengine.model.errors import InvalidRequest
root = Path(sys.argv[1])
"""

REFUSED = """
stream = parquet_stream(spark, root / "right")
joined = StreamJoin(stream, parquet_stream(spark, root / "right"), on="key", instances=2)
writer = joined.writeStream.format("noop").option("checkpointLocation", str(root / "refused"))
try:
    writer.start()
except InvalidRequest as error:
    print(json.dumps([str(error), (root / "refused").exists()]))
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


def test_workers_without_packages_are_refused_before_anything_runs(folder):
    bare = folder / "bin" / "python3"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    path = os.pathsep.join([str(bare.parent), os.environ["PATH"]])
    message, claimed = run(REFUSED, folder, PATH=path, PYSPARK_UDS_MODE="true")
    assert message.startswith(f"Spark's workers would run {bare}, which lacks joinengine and pyarr")
    assert f"set PYSPARK_PYTHON={sys.executable} in the environment" in message
    assert not claimed
