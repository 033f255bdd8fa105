"""A session and a stream made with Spark alone, as by a user who does not know joinengine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def users_session() -> SparkSession:
    """A session of Spark's builder alone, on two cores; workers run this Python, as in a venv."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.master("local[2]").getOrCreate()


def file_stream(spark: Any, folder: Path) -> Any:
    """The files of a folder by Spark's Parquet source, one in each micro-batch."""
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
