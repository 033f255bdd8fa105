"""The examples do what they say."""

from __future__ import annotations

import random
import runpy
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import joinengine

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"


def folder(path, key, time, seed):
    rng = random.Random(seed)
    moments = pa.array([rng.randrange(3 * 3600 * 10**6) for _ in range(400)])
    users = pa.array([min(int(rng.paretovariate(0.7)), 60) for _ in range(400)])
    path.mkdir(parents=True)
    table = pa.table({key: users, time: moments.cast(pa.timestamp("us", "UTC"))})
    pq.write_table(table, path / "0.parquet")


@pytest.fixture
def ran(spark, monkeypatch, capsys):
    """Runs a script as `__main__`, in the session of all tests; what it prints."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        monkeypatch.setattr(joinengine, "session", lambda: spark)
        monkeypatch.setattr(type(spark), "stop", lambda _: None)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", ["join_two_folders.py", "distinct_keys.py"])
def test_an_example_without_arguments_says_which_it_takes(ran, name):
    with pytest.raises(SystemExit, match=f"python examples/{name} "):
        ran(name)


def check_two_folders(tmp_path, run, starts):
    """`run` starts the example, and gives what it has printed."""
    folder(tmp_path / "clicks", "user_id", "clicked_at", 1)
    folder(tmp_path / "purchases", "buyer_id", "bought_at", 2)
    places = [str(tmp_path / name) for name in ("clicks", "purchases", "out")]
    for batches in (1, 0)[:starts]:
        printed = run("join_two_folders.py", *places)
        assert printed.strip().splitlines()[-1].count("'batch'") == batches
    clicks, purchases, out = (f"'{place}/*.parquet'" for place in places)
    expected = duckdb.sql(
        f"select * from {clicks} join {purchases} on user_id = buyer_id "
        "and bought_at - clicked_at between interval 0 second and interval 1 hour"
    ).fetchall()
    assert expected
    assert sorted(duckdb.sql(f"select * from {out}").fetchall()) == sorted(expected)


def test_two_folders_are_joined(ran, tmp_path):
    assert len((EXAMPLES / "join_two_folders.py").read_text().splitlines()) <= 26
    check_two_folders(tmp_path, ran, starts=1)


def check_distinct_keys(tmp_path, run):
    """`run` starts the example, and gives what it has printed."""
    folder(tmp_path / "clicks", "user_id", "clicked_at", 1)
    printed = run("distinct_keys.py", str(tmp_path / "clicks"), "user_id", str(tmp_path / "out"))
    clicks, out = (f"'{tmp_path / name}/*.parquet'" for name in ("clicks", "out"))
    expected = duckdb.sql(f"select distinct user_id from {clicks}").fetchall()
    assert len(expected) > 10
    assert printed.split()[-2:] == [str(len(expected)), "keys"]
    assert sorted(duckdb.sql(f"select * from {out}").fetchall()) == sorted(expected)


def test_an_operator_of_ones_own_runs_from_a_script(ran, tmp_path):
    """The example's classes are in `__main__`, which no worker can import."""
    check_distinct_keys(tmp_path, ran)


@pytest.mark.slow
def test_examples_run_as_a_user_runs_them(tmp_path):
    """In processes of their own; a second start of a join adds nothing."""

    def run(name, *arguments):
        command = [sys.executable, str(EXAMPLES / name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout

    check_two_folders(tmp_path / "two", run, starts=2)
    check_distinct_keys(tmp_path / "distinct", run)


@pytest.mark.slow
def test_the_first_hour_of_a_new_user_goes_as_expected():
    command = [sys.executable, EXAMPLES / "first_hour.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].endswith("steps came as expected")
    assert len(done.stdout.splitlines()) > 30
