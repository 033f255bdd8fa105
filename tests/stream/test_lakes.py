"""Queries write Delta and Iceberg tables through the writer, and go on after a restart."""

from __future__ import annotations

from collections import Counter

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from joinengine import InvalidRequest, JoinEngineError, StreamJoin, equi, parquet_stream
from joinengine.results.delta import DeltaTarget
from joinengine.spark.sources.streams import Streams
from joinengine.spark.sources.types import arrow_schema
from tests.stream.cases import pairs
from tests.stream.conftest import oracle

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


def expected(folders):
    found = oracle(pairs(folders, "id = order_id"))
    assert found
    return found


def test_a_delta_table_is_made_and_goes_on(writer, folders, tmp_path):
    place = str(tmp_path / "table")
    writer.format("delta").start(place).awaitTermination()
    table = DeltaTable(place)
    assert rows(table.to_pyarrow_table()) == expected(folders)
    assert table.version() == 4  # made, and four batches
    folders.add()
    writer.format("delta").start(place).awaitTermination()
    assert rows(DeltaTable(place).to_pyarrow_table()) == expected(folders)
    files = [one.removeprefix("file://") for one in DeltaTable(place).file_uris()]
    with duckdb.connect() as connection:
        read = connection.execute("select count(*) from read_parquet(?)", [files]).fetchall()
    assert read == [(expected(folders).total(),)]


def test_a_delta_table_in_partitions_with_batches_gathered(writer, folders, tmp_path):
    place = str(tmp_path / "table")
    made = writer.format("delta").partitionBy("day").option("commitEvery", "1 hour")
    made.option("targetFileSize", "1 MB").start(place).awaitTermination()
    table = DeltaTable(place)
    days = pa.table(table.get_add_actions(flatten=True)).column("partition.day").to_pylist()
    assert len(days) == len(set(days)) > 1  # a file each
    assert table.metadata().partition_columns == ["day"]
    assert table.version() == 1  # made, and all batches
    assert rows(table.to_pyarrow_table()) == expected(folders)


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
    assert rows(DeltaTable(place).to_pyarrow_table()) == expected(folders)


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
    assert rows(table.scan().to_arrow()) == expected(folders)
    assert len(table.snapshots()) == 5


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
