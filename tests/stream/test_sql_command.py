"""`joinengine sql FILE`: sources, sinks, checkpoints, and what is refused before Spark starts."""

from __future__ import annotations

import json
import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.stream.cases import called, no_session

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).parents[2] / "examples" / "clicks.sql"
DELAY = ("--delay", "1 day", "--instances", 3)


def write(file, key, time, seed, **columns):
    rng = random.Random(seed)
    times = pa.array([rng.randrange(3 * 3600 * 10**6) for _ in range(200)])
    table = {
        key: [rng.randrange(30) for _ in range(200)],
        time: times.cast(pa.timestamp("us", "UTC")),
        **{name: [float(rng.randrange(100)) for _ in range(200)] for name in columns},
    }
    file.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(table), file)


@pytest.fixture
def sources(tmp_path):
    write(tmp_path / "clicks" / "0.parquet", "user_id", "clicked_at", 1)
    write(tmp_path / "purchases" / "0.parquet", "buyer_id", "bought_at", 2, amount=float)
    names = ("clicks", "purchases")
    return [one for n in names for one in ("--source", f"{n}=parquet:{tmp_path / n}")]


def wanted(folder, text):
    here = duckdb.connect()
    here.execute("set timezone = 'UTC'")
    for name in ("clicks", "purchases"):
        here.execute(f"create view {name} as from '{folder}/{name}/*.parquet'")
    return sorted(here.execute(text).fetchall())


def test_the_example_runs_and_goes_on_with_its_checkpoint(joinengine, sources, tmp_path):
    to = (*DELAY, "--sink", f"parquet:{tmp_path / 'out'}", "--checkpoint", tmp_path / "state")
    for batch in (1, 2):
        done = joinengine("sql", EXAMPLE, *sources, *to, "--json", tmp_path / "report.json")
        found = duckdb.sql(f"from '{tmp_path}/out/*.parquet'").fetchall()
        assert sorted(found) == wanted(tmp_path, EXAMPLE.read_text())
        assert len(found) > 50
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["input_rows"] == (400 if batch == 1 else 200)
        assert f"{report['input_rows']} rows in, " in done.stdout
        write(tmp_path / "purchases" / "1.parquet", "buyer_id", "bought_at", 3, amount=float)


def test_windows_close_at_the_end_and_the_sink_may_be_a_table(joinengine, sources, tmp_path):
    text = (
        "select buyer_id, count(*) as n, window_start, window_end from purchases "
        "group by tumble(bought_at, interval 1 hour), buyer_id"
    )
    (tmp_path / "counts.sql").write_text(text)
    joinengine(
        *("sql", tmp_path / "counts.sql", *sources[2:], *DELAY),
        *("--layout", "pkg", "--sink", f"delta:{tmp_path / 'table'}"),
    )
    from deltalake import DeltaTable  # noqa: PLC0415

    found = DeltaTable(tmp_path / "table").to_pyarrow_table()
    assert sum(found["n"].to_pylist()) == 200
    assert found.num_rows > 30


def test_a_table_is_read_once_and_the_console_shows_rows(joinengine, sources, tmp_path, capfd):
    (tmp_path / "q.sql").write_text(
        "select user_id, amount from clicks join purchases on user_id = buyer_id where amount > 95"
    )
    table = ("--source", f"purchases=table:{tmp_path / 'purchases'}")
    joinengine("sql", tmp_path / "q.sql", *sources[:2], *table, "--instances", 2)
    assert "|user_id|amount|" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give at least one stream"),
        (("--servers", "h:1"), "--servers applies to NAME=kafka:TOPIC"),
        (("--source", "clicks=csv:x"), "--source: expected NAME=parquet:FOLDER"),
        (("--source", "clicks"), "--source: expected NAME=KIND:PLACE, found clicks"),
        (("--source", "a=parquet:x", "--source", "a=parquet:x"), "a is given twice"),
        (("--source", "clicks=parquet:nothing"), "source clicks:"),
        (("--source", "clicks=kafka:t"), "needs the brokers"),
        (("--source", "t=table:.", "--columns", "t=a int"), "--columns: t is no topic; give"),
        (("--source", "clicks=kafka:t", "--servers", "h:1"), 'give --columns "clicks=id bigint'),
    ],
)
def test_wrong_sources_are_refused_before_spark_starts(home, tmp_path, arguments, said):
    done = called(home, no_session, "sql", EXAMPLE, *arguments, code=2)
    assert said in done.stderr


@pytest.mark.parametrize("sink", ["parquet", "console:x", "excel:x"])
def test_wrong_sinks_are_refused_before_spark_starts(home, sources, sink):
    done = called(home, no_session, "sql", EXAMPLE, *sources, *DELAY, "--sink", sink, code=2)
    assert "--sink: expected parquet:FOLDER" in done.stderr


def test_a_statement_is_checked_and_explained_before_spark_starts(home, sources, tmp_path):
    done = called(home, no_session, "sql", EXAMPLE, *sources, *DELAY, "--explain")
    assert "where amount > 20" in done.stdout
    (tmp_path / "q.sql").write_text("select user_id\nfrom nowhere")
    done = called(home, no_session, "sql", tmp_path / "q.sql", *sources, code=2)
    assert "sql: line 2, column 6: stream 'nowhere' is unknown" in done.stderr
