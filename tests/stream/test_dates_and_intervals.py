"""A date and an interval make what they make in Spark: the same type, and the same value."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from joinengine.model.errors import InvalidRequest
from joinengine.predicates.computed_columns import compile_column, computed

pytestmark = pytest.mark.spark

#: Clocks change in New York in the night after this date.
ROWS = pa.record_batch({"d": pa.array([dt.date(2024, 3, 9), None])})
TEXTS = (
    *("d + interval 1 day", "interval '2' day + d", "d - interval 1 week", "d - interval 13 month"),
    *("d + interval 2 hours", "d - interval '90' minutes", "- interval 1 hour + d"),
    *("d + interval 1 month + interval 1 day", "d + interval 1 day + interval 1 hour"),
    *("d + interval '2 days 1 hour'", "interval 1 day + interval 1 hour + d", "d + 1"),
)


@pytest.fixture
def zone(spark):
    before, zone = spark.conf.get("spark.sql.session.timeZone"), "America/New_York"
    spark.conf.set("spark.sql.session.timeZone", zone)
    yield zone
    spark.conf.set("spark.sql.session.timeZone", before)


def test_spark_makes_the_same(spark, zone):
    frame = spark.createDataFrame(pa.Table.from_batches([ROWS]))
    wanted = frame.selectExpr(*(f"{text} as c{n}" for n, text in enumerate(TEXTS))).toArrow()
    for text, column in zip(TEXTS, wanted.columns, strict=True):
        made = compile_column("c", text, ROWS.schema, zone)
        is_instant = pa.types.is_timestamp(column.type)
        assert made.kind == (pa.timestamp("us", "UTC") if is_instant else column.type), text
        assert computed(made, ROWS).to_pylist() == column.to_pylist(), text


@pytest.mark.parametrize("text", ["concat('a')", "replace('ab', 'a')", "trim(both 'a' from 'b')"])
def test_another_number_of_arguments_is_refused_by_name(text):
    with pytest.raises(InvalidRequest, match=r"(concat|replace|trim) with these arguments in"):
        compile_column("c", text, ROWS.schema)


def test_concat_takes_ten_texts():
    texts = "abcdefghij"
    for n in range(2, 11):
        made = compile_column("c", f"concat({', '.join(map(repr, texts[:n]))})", ROWS.schema)
        assert computed(made, ROWS).to_pylist() == [texts[:n]] * 2
