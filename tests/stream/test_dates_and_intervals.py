"""A date and an interval make what they make in Spark: the same type, and the same value."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from joinengine.model.errors import InvalidRequest
from joinengine.predicates.computed_columns import compile_column, computed

pytestmark = pytest.mark.spark

#: Clocks change in New York in the night after this date.
ROWS = pa.record_batch(
    {
        "d": pa.array([dt.date(2024, 3, 9), None]),
        "n": pa.array([dt.datetime(2024, 3, 10, 7), None], pa.timestamp("us")),
        "m": pa.array([dt.datetime(2024, 3, 8, 4, 30), None], pa.timestamp("us")),
    }
)
TEXTS = (
    *("d + interval 1 day", "interval '2' day + d", "d - interval 1 week", "d - interval 13 month"),
    *("d + interval 2 hours", "d - interval '90' minutes", "- interval 1 hour + d"),
    *("d + interval 1 month + interval 1 day", "d + interval 1 day + interval 1 hour"),
    *("d + interval '2 days 1 hour'", "interval 1 day + interval 1 hour + d", "d + 1"),
    *("d + (n - m)", "(n - m) + d", "d - (n - m)", "d + -(n - m)", "d + (n - m) + interval 1 day"),
    *("d + ((n - m) + interval 1 day)", "d - (n - (m - interval 1 hour))", "d + (m - m)"),
)


@pytest.fixture
def zone(spark):
    before, zone = spark.conf.get("spark.sql.session.timeZone"), "America/New_York"
    spark.conf.set("spark.sql.session.timeZone", zone)
    yield zone
    spark.conf.set("spark.sql.session.timeZone", before)


def test_spark_makes_the_same(spark, zone):
    schema = from_arrow_schema(ROWS.schema, prefer_timestamp_ntz=True)
    frame = spark.createDataFrame(pa.Table.from_batches([ROWS]), schema)
    wanted = frame.selectExpr(*(f"{text} as c{n}" for n, text in enumerate(TEXTS))).toArrow()
    for text, column in zip(TEXTS, wanted.columns, strict=True):
        made = compile_column("c", text, ROWS.schema, zone)
        is_instant = pa.types.is_timestamp(column.type)
        assert made.kind == (pa.timestamp("us", "UTC") if is_instant else column.type), text
        assert computed(made, ROWS).to_pylist() == column.to_pylist(), text


@pytest.mark.parametrize(
    "text",
    ["d + if(d = d, interval 1 day, interval 1 hour)", "d - interval 1 day * 2"],
)
def test_a_date_beside_an_interval_of_an_unknown_kind_is_refused(text):
    with pytest.raises(InvalidRequest, match="a date beside an interval that is chosen or"):
        compile_column("c", text, ROWS.schema)


@pytest.mark.parametrize("text", ["concat('a')", "replace('ab', 'a')", "trim(both 'a' from 'b')"])
def test_another_number_of_arguments_is_refused_by_name(text):
    with pytest.raises(InvalidRequest, match=r"(concat|replace|trim) with these arguments in"):
        compile_column("c", text, ROWS.schema)


def test_concat_takes_ten_texts():
    texts = "abcdefghij"
    for n in range(2, 11):
        made = compile_column("c", f"concat({', '.join(map(repr, texts[:n]))})", ROWS.schema)
        assert computed(made, ROWS).to_pylist() == [texts[:n]] * 2
