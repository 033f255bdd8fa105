"""Queries write Delta and Iceberg tables through the writer, and go on after a restart."""

from __future__ import annotations

from collections import Counter

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from joinengine import InvalidRequest, JoinEngineError, StreamJoin, equi, parquet_stream
from joinengine.results.delta import DeltaTarget
from joinengine.spark.sources.streams import Streams
from joinengine.spark.sources.types import arrow_schema
from tests.stream.cases import pairs
from tests.stream.conftest import same_rows

pytestmark = pytest.mark.spark


@pytest.fixture
def joined(spark, folders):
    left = parquet_stream(spark, folders.orders, rows_per_interval=40)
    right = parquet_stream(spark, folders.items, rows_per_interval=120)
    return StreamJoin(left, right, on=equi("id", "order_id"), instances=3)


@pytest.fixture
def writer(joined, tmp_path):
    return joined.writeStream.option("checkpointLocation", tmp_path / "checkpoint").trigger(
        availableNow=True
    )


@pytest.fixture
def catalog(tmp_path):
    """The properties of a catalogue with a namespace `shop`."""
    told = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    load_catalog("test", **told).create_namespace("shop")
    return told


def rows(table):
    return Counter(tuple(row.values()) for row in table.to_pylist())


def check(table, folders):
    same_rows(table, pairs(folders, "id = order_id"))


def test_a_delta_table_is_made_and_goes_on(writer, folders, tmp_path):
    place = str(tmp_path / "table")
    writer.format("delta").start(place).awaitTermination()
    table = DeltaTable(place)
    check(table.to_pyarrow_table(), folders)
    assert table.version() == 4  # made, and four batches
    folders.add()
    writer.format("delta").start(place).awaitTermination()
    check(DeltaTable(place).to_pyarrow_table(), folders)
    files = [one.removeprefix("file://") for one in DeltaTable(place).file_uris()]
    with duckdb.connect() as connection:
        read = connection.sql("from read_parquet(?)", params=[files]).to_arrow_table()
    check(read, folders)


def test_a_delta_table_in_partitions_with_batches_gathered(writer, folders, tmp_path):
    place = str(tmp_path / "table")
    made = writer.format("delta").partitionBy("day").option("commitEvery", "1 hour")
    made.option("targetFileSize", "1 MB").start(place).awaitTermination()
    table = DeltaTable(place)
    days = pa.table(table.get_add_actions(flatten=True)).column("partition.day").to_pylist()
    assert len(days) == len(set(days)) > 1  # a file each
    assert table.metadata().partition_columns == ["day"]
    assert table.version() == 1  # made, and all batches
    check(table.to_pyarrow_table(), folders)


def test_a_start_that_fails_half_way_closes_the_table(writer, folders, tmp_path, monkeypatch):
    place, turns = str(tmp_path / "table"), []
    for verb in ("open", "close"):
        plain = getattr(DeltaTarget, verb)

        def counted(self, *told, verb=verb, plain=plain):
            turns.append(verb)
            return plain(self, *told)

        monkeypatch.setattr(DeltaTarget, verb, counted)
    writer.format("delta").start(place).awaitTermination()
    assert turns == ["open", "close"]

    def fail(*told):
        raise JoinEngineError("no disk")

    with monkeypatch.context() as patched, pytest.raises(JoinEngineError, match="no disk"):
        patched.setattr(Streams, "take_over", fail)
        writer.format("delta").start(place)
    assert turns == ["open", "close"] * 2
    check(DeltaTable(place).to_pyarrow_table(), folders)


def test_an_iceberg_table(writer, joined, folders, catalog):
    made = load_catalog("test", **catalog)
    made.create_table("shop.sales", arrow_schema(joined.schema))
    to = writer.format("iceberg").option("table", "shop.sales").option("catalog", "test")
    to = to.options(**{f"catalog.{name}": text for name, text in catalog.items()})
    assert "sqlite" not in repr(to)
    to.start().awaitTermination()
    folders.add()
    to.start().awaitTermination()
    table = made.load_table("shop.sales")
    check(table.scan().to_arrow(), folders)
    assert len(table.snapshots()) == 5


def test_changes_become_a_table_by_key(spark, tmp_path, monkeypatch):
    """Orders and customers come and go; the table is the join of those that are there."""
    left = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("_change", pa.int8())])
    right = pa.schema([("cid", pa.int64()), ("name", pa.string()), ("_change", pa.int8())])

    def add(name, schema, rows):
        (tmp_path / name).mkdir(exist_ok=True)
        count = len([*(tmp_path / name).iterdir()])
        columns = dict(zip(schema.names, zip(*rows, strict=True), strict=True))
        pq.write_table(pa.table(columns, schema), tmp_path / name / f"{count}.parquet")

    def joined(**more):
        told = {"on": equi("customer", "cid"), "instances": 3, "changes": "_change"} | more
        sides = (parquet_stream(spark, str(tmp_path / name)) for name in "lr")
        writer = StreamJoin(*sides, **told).writeStream.format("delta").trigger(availableNow=True)
        return writer.option("checkpointLocation", tmp_path / "c").option("mergeKeys", "ID")

    add("l", left, [(n, n % 5, 1) for n in range(40)])
    add("r", right, [(n, f"name {n}", 1) for n in range(5)])
    place = str(tmp_path / "table")
    joined().start(place).awaitTermination()
    add("l", left, [(n, n % 5, -1) for n in range(0, 40, 3)])
    add("r", right, [(2, "name 2", -1), (2, "new", 1), (4, "name 4", -1)])
    joined().start(place).awaitTermination()
    names = {n: f"name {n}" for n in range(4)} | {2: "new"}
    kept = [n for n in range(40) if n % 3 and n % 5 in names]
    assert rows(DeltaTable(place).to_pyarrow_table()) == Counter(
        (n, n % 5, n % 5, names[n % 5]) for n in kept
    )
    for said, writer in {
        "mergeKeys: column 'what' does not exist": joined().option("mergeKeys", "what"),
        "mergeKeys: the results are rows that stay": joined(
            changes=None, select=["id", "left._change"]
        ),
        "option 'mergeKeys' is only valid with format": joined().format("parquet"),
    }.items():
        with pytest.raises(InvalidRequest, match=said):
            writer.start(str(tmp_path / "other"))


def test_changes_become_an_iceberg_table_by_key(spark, tmp_path, catalog):
    rows_of = {"l": {"id": [1, 2, 3], "k": [1, 1, 2]}, "r": {"key": [1, 2], "name": ["a", "b"]}}
    made = load_catalog("test", **catalog)
    columns = [("id", pa.int64()), ("k", pa.int64()), ("key", pa.int64()), ("name", pa.string())]
    made.create_table("shop.byid", pa.schema(columns))

    def run(keys="id"):
        sides = (parquet_stream(spark, str(tmp_path / name)) for name in "lr")
        told = {"on": equi("k", "key"), "instances": 2, "changes": "_change"}
        writer = StreamJoin(*sides, **told).writeStream.format("iceberg")
        writer = writer.option("checkpointLocation", tmp_path / "c").option("mergeKeys", keys)
        writer = writer.option("table", "shop.byid").option("catalog", "test")
        for name, text in catalog.items():
            writer = writer.option(f"catalog.{name}", text)
        writer.trigger(availableNow=True).start().awaitTermination()
        return sorted(made.load_table("shop.byid").scan().to_arrow()["id"].to_pylist())

    def add(side, **columns):
        (tmp_path / side).mkdir(exist_ok=True)
        count = len([*(tmp_path / side).iterdir()])
        pq.write_table(pa.table(columns), tmp_path / side / f"{count}.parquet")

    for name, told in rows_of.items():
        add(name, **told, _change=pa.array([1] * len(next(iter(told.values()))), pa.int8()))
    assert run() == [1, 2, 3]
    add("l", id=[2, 4], k=[1, 2], _change=pa.array([-1, 1], pa.int8()))
    assert run() == [1, 3, 4]
    with pytest.raises(InvalidRequest, match="mergeKeys: column 'what' does not exist"):
        run("what")


def test_what_cannot_be_is_refused_before_anything_is_there(writer, joined, catalog, tmp_path):
    with pytest.raises(InvalidRequest, match="delta: path is missing"):
        writer.format("delta").start()
    with pytest.raises(InvalidRequest, match="iceberg: table is missing"):
        writer.format("iceberg").start()
    with pytest.raises(InvalidRequest, match="partitionBy: iceberg writes no folders"):
        writer.format("iceberg").option("table", "a.b").partitionBy("id").start()
    with pytest.raises(InvalidRequest, match="delta: option 'shared' is only valid with format"):
        writer.format("delta").option("shared", True).start("x")
    with pytest.raises(InvalidRequest, match="is not valid with transform"):
        moved = joined.transform(lambda frame: frame).writeStream
        moved.option("checkpointLocation", tmp_path / "c").format("delta").start("x")
    assert not (tmp_path / "checkpoint").exists()
