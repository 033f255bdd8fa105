"""`joinengine new` writes a folder whose test passes and whose join runs."""

from __future__ import annotations

import subprocess
import sys
import unittest

import duckdb
import pytest
from pyspark.sql import SparkSession

from tests.stream.cases import called, no_session

pytestmark = pytest.mark.spark


def make(folder, *goals):
    command = ["make", "--no-print-directory", f"PYTHON={sys.executable}", *goals]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )


def test_the_starter_passes_its_test(home, spark, tmp_path, monkeypatch):
    """In the session of the other tests, which goes on when the starter stops it."""
    folder = tmp_path / "my first"
    done = called(home, no_session, "new", folder)
    assert f"next: cd '{folder}' && make test" in done.stdout
    assert make(folder, "-n", "test").stdout == f"{sys.executable} -m unittest -q\n"
    stopped = []

    def stop(session):
        stopped.append(session)

    monkeypatch.setattr(SparkSession, "stop", stop)
    monkeypatch.syspath_prepend(folder)
    tested = unittest.main("test_join", argv=["test_join", "-q"], exit=False).result
    for name in ("data", "join", "test_join"):
        del sys.modules[name]
    assert tested.testsRun == 1 and tested.wasSuccessful(), tested.failures + tested.errors
    assert stopped == [spark]


@pytest.mark.slow
def test_the_goals_of_the_starter_run_and_its_test_can_fail(home, tmp_path):
    folder = tmp_path / "my first"
    called(home, no_session, "new", folder)
    tested = make(folder, "test")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "Ran 1 test" in tested.stderr and "ResourceWarning" not in tested.stderr
    done = make(folder, "run")
    assert done.returncode == 0, done.stdout + done.stderr
    join = folder / "join.py"
    join.write_text(join.read_text().replace('upper="1 hour"', 'upper="59 minutes"'))
    assert "rows, and DuckDB has" in make(folder, "test").stderr
    assert duckdb.sql(f"from '{folder}/out/results/*.parquet'").fetchall()


def test_a_folder_with_files_is_left_alone(home, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    done = called(home, no_session, "new", tmp_path, code=2)
    assert "exists and is not an empty folder" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["mine.txt"]
