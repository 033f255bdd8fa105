"""Constants, negations and functions that only Spark has mean what they mean there."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from joinengine import InvalidRequest, sql
from joinengine.predicates.computed_columns import compile_column, computed

pytestmark = pytest.mark.spark

ROWS = pa.record_batch(
    {
        "d": pa.array([dt.date(2024, 2, 28), None]),
        "a": pa.array([2, None], pa.int32()),
        "b": [True, None],
        "s": ["aXb", None],
    }
)
TEXTS = (
    *("1L", "2S", "-3Y", "1l + a", "2.5D", "1e2d", ".5D", "1D", "a in (1L, 2S)", "X'41'"),
    *("!b", "! a = 1", "not ! b", "b and ! b", "a != 1", "case when ! b then 1L else 2L end"),
    *("date_add(d, 1)", "date_sub(d, a)", "date_add(date '2024-02-29', -1)"),
    *("ucase(s)", "lcase(s)", "character_length(s)", "locate('X', s)", "locate('z', s)"),
)


def test_spark_makes_the_same(spark):
    frame = spark.createDataFrame(pa.Table.from_batches([ROWS]))
    wanted = frame.selectExpr(*(f"{text} as c{n}" for n, text in enumerate(TEXTS))).toArrow()
    for text, column in zip(TEXTS, wanted.columns, strict=True):
        made = compile_column("c", text, ROWS.schema)
        assert made.kind == column.type or text.startswith(("char", "loc")), text
        assert computed(made, ROWS).to_pylist() == column.to_pylist(), text


def test_what_spark_refuses_of_a_dataframe_is_refused_by_its_name(spark):
    frame = spark.readStream.format("rate").load().selectExpr("value as k", "value > 1 as b")
    with pytest.raises(InvalidRequest, match=r"f: Spark computes .* refuses 'b = 1': .*BOOLEAN"):
        sql("select k from (select k, b = 1 as c from f) a join f on a.k = f.k", {"f": frame})
