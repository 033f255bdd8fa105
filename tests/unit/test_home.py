"""The home that `session()` lends to Spark."""

from __future__ import annotations

import os
import sys

import pytest

from joinengine.spark.session import home

#: What stands where Spark expects its zip.
LOADED = ["pyspark.zip", "pyspark_joinengine.py"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JOINENGINE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    return tmp_path


def test_it_has_all_but_the_zip(cache):
    made = home.spark_home()
    assert made.is_relative_to(cache)
    assert (made / "bin" / "spark-submit").exists()
    assert list((made / "jars").glob("spark-core*.jar"))
    assert [path.name for path in (made / "python").rglob("*.*")] == LOADED
    assert home.spark_home() == made


def test_what_another_version_has_left_is_replaced():
    loaded = home.spark_home().joinpath("python", "lib", *LOADED)
    written = loaded.read_text()
    loaded.write_text("import joinengine.gone\n")
    home.spark_home()
    assert loaded.read_text() == written


def test_it_is_lent_while_a_jvm_starts():
    with home.lent_spark_home("local[2]"):
        assert os.environ["SPARK_HOME"] == str(home.spark_home())
    assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize(
    ("master", "variable", "value"),
    [
        ("yarn", "PYSPARK_PYTHON", sys.executable),
        ("local[2]", "PYSPARK_PYTHON", "/usr/bin/another-python"),
        ("local[2]", "SPARK_HOME", "/opt/spark"),
        ("local[2]", "JOINENGINE_HOME", "/dev/null/no-folder"),
    ],
)
def test_it_is_not_lent_where_it_does_not_serve(master, variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    before = os.environ.get("SPARK_HOME")
    with home.lent_spark_home(master):
        assert os.environ.get("SPARK_HOME") == before
    assert os.environ.get("SPARK_HOME") == before
