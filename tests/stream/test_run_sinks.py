"""`joinengine run --sink`: the sinks of `joinengine sql`, read back for --validate."""

from __future__ import annotations

import json

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from joinengine.lab.queries import sink_places
from tests.stream.cases import called, no_session

pytestmark = pytest.mark.spark

JOIN = ("--on", "k=key", "--instances", 2)


@pytest.fixture
def own(tmp_path):
    """A join of two folders: keys that repeat, NULL and an empty text."""
    for side, columns in (
        ("left", {"k": [n % 7 for n in range(40)], "a": list(range(40))}),
        ("right", {"key": list(range(5)), "b": [None, "x", "y", "z", ""]}),
    ):
        (tmp_path / side).mkdir()
        pq.write_table(pa.table(columns), tmp_path / side / "0.parquet")
    return ("run", "--left", tmp_path / "left", "--right", tmp_path / "right", *JOIN)


@pytest.fixture
def catalog(tmp_path):
    """(catalogue with the table shop.pairs, how the command line names both)."""
    told = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    found = load_catalog("default", **told)
    found.create_namespace("shop")
    columns = [("k", pa.int64()), ("a", pa.int64()), ("key", pa.int64()), ("b", pa.string())]
    found.create_table("shop.pairs", pa.schema(columns))
    options = [one for key in told for one in ("--sink-option", f"catalog.{key}={told[key]}")]
    return found, ("--sink", "iceberg:shop.pairs", *options)


def rows(table):
    return sorted((row["k"], row["a"], row["b"]) for row in table.to_pylist())


def expected(tmp_path):
    left, right = (f"'{tmp_path}/{side}/*.parquet'" for side in ("left", "right"))
    text = f"select k, a, b from {left} join {right} on k = key"
    return sorted(duckdb.sql(text).fetchall())


def test_a_checkpoint_keeps_its_sink(joinengine, own, tmp_path):
    """A run that forgets it would read what is new, and drop the results."""
    kept = ("--checkpoint", tmp_path / "c")
    joinengine(*own, *kept, "--sink", f"parquet:{tmp_path / 'out'}")
    found = pq.read_table(tmp_path / "out").num_rows
    new = pa.table({"k": [1], "a": [99]})
    pq.write_table(new, tmp_path / "left" / "1.parquet")
    done = joinengine(*own, *kept, code=2)
    assert f"delivers its results to {tmp_path / 'out'}, and this run would not" in done.stderr
    statement = tmp_path / "join.sql"
    statement.write_text("select a, b from l join r on k = key")
    sides = [x for s in ("left", "right") for x in ("--source", f"{s[0]}=parquet:{tmp_path / s}")]
    done = joinengine("sql", statement, *sides, *kept, code=2)
    assert "give the same --sink or --out again, or --sink noop to drop" in done.stderr
    done = joinengine(*own, *kept, "--sink", "console", code=2)
    assert "staged for the sink that the checkpoint had before" in done.stderr
    done = joinengine(*own, "--checkpoint", tmp_path / "out", code=2)
    assert f"--checkpoint: {tmp_path / 'out'} holds the results of a query" in done.stderr
    joinengine(*own, *kept, "--out", tmp_path / "out")
    assert pq.read_table(tmp_path / "out").num_rows == found + 1


def test_what_has_a_flag_of_its_own_is_no_option_of_the_sink(joinengine, own, tmp_path):
    for option, flag in (
        ("checkpointLocation", "--checkpoint"),
        ("path", "what follows the colon of --sink"),
    ):
        sink = ("--sink", f"parquet:{tmp_path / 'out'}", "--sink-option", f"{option}=x")
        assert f"{option} is {flag}; give it there" in joinengine(*own, *sink, code=2).stderr
    done = joinengine(*own, "--source", "kafka", "--servers", "host:1", code=2)
    assert "--source applies to a QUERY" in done.stderr


def test_folders_and_tables_are_read_back(joinengine, own, catalog, tmp_path):
    table, iceberg = catalog
    for sink, kept in (
        (("--sink", f"parquet:{tmp_path / 'out'}"), lambda: pq.read_table(tmp_path / "out")),
        (
            ("--sink", f"delta:{tmp_path / 'd'}", "--sink-option", "compression=zstd"),
            lambda: DeltaTable(tmp_path / "d").to_pyarrow_table(),
        ),
        (iceberg, lambda: table.load_table("shop.pairs").scan().to_arrow()),
    ):
        report = tmp_path / "report.json"
        done = joinengine(*own, *sink, "--validate", "--json", report)
        assert f"results: {sink[1]}" in done.stdout
        assert json.loads(report.read_text())["valid"] is True
        assert rows(kept()) == expected(tmp_path)
        refused = called(tmp_path, no_session, *own, *sink, "--validate", code=2)
        assert "holds rows already, which DuckDB does not have" in refused.stderr


def test_a_place_that_lacks_a_row_is_not_valid(joinengine, own, tmp_path, monkeypatch):
    """What is compared is the place, and not what the engine says of its results."""
    real = sink_places.delivered

    def less(sink, schema):
        DeltaTable(sink.place).delete("a = 8")
        return real(sink, schema)

    monkeypatch.setattr("joinengine.lab.queries.runs.delivered", less)
    done = joinengine(*own, "--sink", f"delta:{tmp_path / 'd'}", "--validate", code=1)
    assert "the results differ from DuckDB's" in done.stderr
    assert "1 row missing, such as " in done.stderr


def test_a_run_that_goes_on_compares_the_whole_table(joinengine, own, tmp_path):
    to = ("--sink", f"delta:{tmp_path / 'd'}", "--checkpoint", tmp_path / "state", "--validate")
    joinengine(*own, *to)
    pq.write_table(pa.table({"k": [1, 2], "a": [100, 101]}), tmp_path / "left" / "1.parquet")
    joinengine(*own, *to, "--json", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["valid"], report["input_rows"]) == (True, 2)
    assert rows(DeltaTable(tmp_path / "d").to_pyarrow_table()) == expected(tmp_path)


@pytest.mark.slow
def test_changes_by_key_are_compared_as_what_is_left(joinengine, tmp_path):
    keys = ("--sink-option", "mergeKeys=o_orderkey", "--json", tmp_path / "report.json")
    for number, option in enumerate((keys[:2], ())):
        sink = ("--sink", f"delta:{tmp_path / str(number)}", *option, *keys[2:])
        joinengine("run", "changes", "--scale", 0.002, *sink, "--validate")
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["valid"] is True
        found = DeltaTable(tmp_path / str(number)).to_pyarrow_table()
        assert ("_change" in found.schema.names) is (not option)
        assert found.num_rows > 1000


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--sink", "excel:x"), "--sink: expected parquet:FOLDER"),
        (("--sink", "parquet:/proc/no"), "--sink: /proc/no cannot be created"),
        (("--sink", "delta:d", "--sink-option", "zip=x"), "delta: option 'zip' is unknown"),
        (
            ("--sink", "parquet:d", "--sink-option", "targetfilesize=x"),
            "targetFileSize: expected a number of bytes or a size",
        ),
        (("--sink", "iceberg:a.b"), "URI missing, please provide it in the config or environment"),
        (
            ("--sink", "iceberg:a.b", "--sink-option", "catalog.uri=sqlite:////proc/no/c.db"),
            "iceberg: the catalogue 'default' does not answer",
        ),
        (("--sink", "delta:x", "--out", "y"), "--out and --sink both take the results"),
        (("--sink-option", "compression=zstd"), "--sink-option applies to --sink"),
        (("--sink", "kafka:t"), "--sink: kafka:t needs the brokers; give --servers"),
        (
            ("--sink", "kafka:t", "--servers", "h:1", "--validate"),
            "validate: the messages of a topic are not read back",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(home, own, options, sentence):
    assert sentence in called(home, no_session, *own, *options, code=2).stderr


def test_a_query_that_concludes_needs_a_folder(home):
    done = called(home, no_session, "run", "naive-bayes", "--sink", "delta:x", code=2)
    assert "--sink: naive-bayes concludes from its results" in done.stderr
