"""Sessions of one program: each stream goes by its own, whichever is active, on any thread."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import StreamJoin, equi, parquet_stream, sql
from joinengine.model.errors import InvalidRequest
from tests.stream.cases import run

pytestmark = pytest.mark.spark

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"key": [1, 2], "seen": [NOON, NOON]}), tmp_path / "in" / "0.parquet")
    return tmp_path / "in"


@pytest.fixture
def tokyo(spark):
    """A session that is not the active one; hours in it are others, and so are names."""
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    other.conf.set("spark.sql.caseSensitive", "true")
    spark.sql("select 1")  # makes `spark` the active one
    return other


def test_hours_are_those_of_the_session_of_the_stream(tokyo, folder, tmp_path):
    left = parquet_stream(tokyo, folder).withColumn("hour", "hour(seen)").where("hour(seen) = 21")
    joined = StreamJoin(
        *(left, parquet_stream(tokyo, folder)),
        on=equi("key", "key"),
        where="hour(left.seen) = 21",
        suffixes=("", "_r"),
        instances=2,
    )
    run(joined.withColumn("later", "hour(seen_r)").where("hour(seen_r) = 21"), tmp_path)
    rows = pq.read_table(sorted((tmp_path / "out").glob("*.parquet"))).to_pylist()
    assert [(row["hour"], row["later"]) for row in rows] == [(21, 21)] * 2


def test_names_are_those_of_the_session_of_the_stream(tokyo, spark, folder):
    assert parquet_stream(spark, folder).select("KEY").reading.schema.names == ["key"]
    with pytest.raises(InvalidRequest, match="KEY"):
        parquet_stream(tokyo, folder).select("KEY")


#: Text of SQL over the session of its streams: `KEY` is a column of its own there.
SQL = {
    "a name of ON": "select l.key from l join r on l.KEY = r.key",
    "a name of WHERE": "select l.key from l join r on l.key = r.key where hour(l.SEEN) = 21",
    "a name of an aggregate": "select max(KEY) as m from l group by tumble(seen, interval 1 hour)",
}


@pytest.mark.parametrize("text", SQL.values(), ids=SQL)
def test_sql_goes_by_the_session_of_its_streams(tokyo, spark, folder, text):
    sql(text, {name: parquet_stream(spark, folder) for name in "lr"}, delay="1 hour")
    with pytest.raises(InvalidRequest, match=r"column '(KEY|SEEN)' (of l )?does not exist"):
        sql(text, {name: parquet_stream(tokyo, folder) for name in "lr"}, delay="1 hour")


def test_columns_of_sql_may_differ_in_case_where_the_session_of_the_stream_says_so(tokyo, folder):
    streams = {name: parquet_stream(tokyo, folder) for name in "lr"}
    inner = "(select key, key + 1 as KEY from l)"
    text = f"select l.KEY as more from {inner} l join r on l.key = r.key"
    assert sql(text, streams).schema.names == ["more"]


def test_a_join_is_built_on_a_thread_of_the_program(spark, folder):
    """It has no active session; one is there all the same."""

    def built():
        sides = (parquet_stream(spark, folder), parquet_stream(spark, folder))
        return StreamJoin(*sides, on="key", suffixes=("", "_r")).query().operators[0].instances

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(built).result() == spark.sparkContext.defaultParallelism
