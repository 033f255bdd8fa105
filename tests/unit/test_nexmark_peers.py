"""Nexmark beside other systems: the same rows for all, results compared, refusals in words."""

from __future__ import annotations

import csv
import os
import subprocess
import sys

import duckdb
import pytest
from click.testing import CliRunner

from benchmarks.keeping import ROOT, lines
from benchmarks.nexmark import __main__ as nexmark
from benchmarks.nexmark.jobs import (
    QUERIES,
    Checksum,
    expected,
    found_in,
    job,
    options,
    recorded,
    write_csv,
)
from joinengine.lab.queries import find

#: Events of a stream: 1,000,000 and 200,000, times this.
SIZE = 0.01
TALKS = "import sys; print('BEGIN', flush=True); {}; print('END', flush=True); sys.stdin.readline()"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Where streams are kept once they are made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOINENGINE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture
def streams(home, tmp_path):
    return tmp_path


def table(folder, query, sql):
    """The rows of a query over its CSV files, as texts."""
    with duckdb.connect(":memory:") as db:
        for name in QUERIES[query].tables:
            db.execute(f"create view {name} as from read_csv('{folder}/{name}.csv', header=true)")
        return [list(map(str, row)) for row in db.sql(sql).fetchall()]


@pytest.mark.parametrize("query", QUERIES)
def test_the_files_of_others_have_the_results_of_the_query(query, streams):
    stream, home = recorded(query, SIZE), streams / "csv"
    write_csv(query, stream, home, header=False)
    right = expected(query, home)
    oracle = find(query).oracle(stream, options(query, SIZE))
    assert right.rows == duckdb.sql(f"select count(*) from ({oracle})").fetchall()[0][0] > 0
    asked = job(query, SIZE, home, home)
    for name, columns in asked.tables.items():
        with (home / f"{name}.csv").open() as file:
            rows = list(csv.reader(file))
        assert len(rows) == stream.rows[name]
        assert {len(row) for row in rows} == {len(columns)}
        numbers = [n for n, kind in enumerate(columns.values()) if kind == "int"]
        assert all(row[n].isdigit() for row in rows for n in numbers)
    assert len(asked.results) == len(QUERIES[query].results.split())


def test_results_are_compared_as_multisets(streams):
    query, plain, headed = "nexmark-q3", streams / "plain", streams / "headed"
    for folder in (plain, headed):
        write_csv(query, recorded(query, SIZE), folder, header=folder == headed)
    right, rows = expected(query, plain), table(headed, query, QUERIES[query].sql)

    def written(some, name="part"):
        out = streams / "results"
        out.mkdir(exist_ok=True)
        for path in out.iterdir():
            path.unlink()
        for n, part in enumerate((some[:5], some[5:])):
            with (out / f"{name}-{n}").open("w", newline="") as file:
                csv.writer(file).writerows(part)
        return out

    assert found_in(query, "flink", written(rows[::-1])) == right
    assert found_in(query, "flink", written(rows[1:])) != right
    assert found_in(query, "flink", written([*rows[1:], rows[1]])) != right
    changed = [[*rows[0][:-1], "7"], *rows[1:]]
    assert found_in(query, "flink", written(changed)).rows == right.rows
    assert found_in(query, "flink", written(changed)) != right
    for diff, is_right in ((1, True), (-1, False)):
        out = written([])
        with (out / "results.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*QUERIES[query].results.split(), "time", "diff"])
            writer.writerows([*row, 12, diff if n == 3 else 1] for n, row in enumerate(rows))
        if is_right:
            assert found_in(query, "pathway", out) == right
        else:
            with pytest.raises(ValueError, match="taken results back"):
                found_in(query, "pathway", out)


def ran(monkeypatch, code):
    monkeypatch.setattr(nexmark, "_command", lambda *_: (sys.executable, "-c", code))
    return nexmark._ran("flink", None)


def test_the_processor_time_of_a_run_is_that_of_the_process_and_all_below(monkeypatch):
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    below = f"import subprocess; subprocess.run([sys.executable, '-c', {burn!r}])"
    assert ran(monkeypatch, TALKS.format(below)).core_s >= 0.3
    asleep = ran(monkeypatch, TALKS.format("import time; time.sleep(0.4)"))
    assert asleep.core_s < 0.3 <= asleep.clock_s
    before = TALKS.format("0").replace("print('BEGIN'", f"exec({burn!r}); print('BEGIN'")
    assert ran(monkeypatch, before).core_s < 0.3, "what comes before BEGIN is not counted"


def test_a_system_that_fails_says_why(monkeypatch):
    code = "print('BEGIN', flush=True); raise RuntimeError('no such connector')"
    with pytest.raises(nexmark.CannotRun, match="RuntimeError: no such connector"):
        ran(monkeypatch, code)
    with pytest.raises(nexmark.CannotRun, match="without a word"):
        ran(monkeypatch, "print('BEGIN')")
    monkeypatch.setattr(nexmark, "MOST_S", 0.5)
    with pytest.raises(nexmark.CannotRun):
        ran(monkeypatch, TALKS.format("import time; time.sleep(600)"))


def test_an_environment_that_cannot_be_built_says_so_in_one_line(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho working\necho 'no matching distribution'\necho\nexit 1\n")
    python.chmod(0o755)
    done = subprocess.run(
        [ROOT / "tools" / "ensure-peer", "pathway"],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("peer: pathway ")
    assert last.endswith(" cannot be installed: no matching distribution")
    assert list((tmp_path / "joinengine").iterdir()) == [], "nothing half built stays"


def test_refusals_are_recorded_and_wrong_results_fail(streams, monkeypatch):
    results = Checksum(3, 7)

    def command(system, asked):
        if system == "flink":
            raise nexmark.CannotRun("no wheel")
        return sys.executable, "-c", TALKS.format("0")

    monkeypatch.setattr(nexmark, "_command", command)
    monkeypatch.setattr(nexmark, "expected", lambda *_: results)
    monkeypatch.setattr(nexmark, "found_in", lambda *_: results)
    ticks = iter(range(99))
    monkeypatch.setattr(nexmark, "worked_s", lambda _: float(next(ticks)))
    arguments = ["--out", str(streams / "out"), "--repeat", "1", "--only", "nexmark-q3", "--quick"]
    told = CliRunner().invoke(nexmark.main, arguments, catch_exceptions=False)
    assert told.exit_code == 0, told.output
    (path,) = (streams / "out").glob("*/nexmark.jsonl")
    found = {one["system"]: one for one in lines(path) if "system" in one}
    assert found["flink"]["refused"] == "no wheel"
    assert found["pathway"]["valid"] is True
    text = path.with_suffix(".txt").read_text()
    assert "no wheel" in text
    assert "80,000 rows" in text
    nexmark.append(path, {"query": "nexmark-q8", "rows": 9, "system": "flink", "refused": "late"})
    monkeypatch.setattr(nexmark, "found_in", lambda *_: Checksum(3, 8))
    told = CliRunner().invoke(nexmark.main, arguments)
    assert told.exit_code == 1
    assert "nexmark-q3, joinengine, auto; nexmark-q3, joinengine, hash" in told.output
    assert [one for one in lines(path) if one.get("refused") == "late"], "others' lines stay"
    assert len([one for one in lines(path) if one.get("query") == "nexmark-q3"]) == len(found)
    assert "nexmark-q8: 9 rows" in path.with_suffix(".txt").read_text()
