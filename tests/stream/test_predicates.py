"""Predicates mean in the evaluator what they mean in Spark: docs/predicates.md, line by line."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from joinengine import InvalidRequest
from joinengine.kernels.theta import FUNCTIONS, compile_predicate, holds
from joinengine.spark.types import spark_schema

pytestmark = pytest.mark.spark

LEFT = pa.schema(
    [("a", pa.int64()), ("s", pa.string()), ("p", pa.decimal128(9, 2)), ("d", pa.date32())]
)
RIGHT = pa.schema([("b", pa.int32()), ("t", pa.string()), ("f", pa.float64()), ("q", pa.bool_())])
LEFT_ROWS = [
    (1, "ab", Decimal("1.50"), dt.date(2024, 2, 29)),
    (-7, "Ab c", Decimal("-3.25"), dt.date(1969, 12, 31)),
    (None, None, None, None),
    (2**40, "", Decimal("0.00"), dt.date(2000, 1, 1)),
]
RIGHT_ROWS = [
    (1, "b", 0.5, True),
    (-3, "AB C", float("nan"), False),
    (None, None, None, None),
    (7, "a", -2.0, None),
]
PREDICATES = [
    "a = b",
    "a <> b",
    "a != b",
    "a < b and s > t",
    "a <= b or p >= 1.5",
    "not (a > b)",
    "a + b - 2 * a > b / 2",
    "a % 3 = 1",
    "b % 3 = -0",
    "-a < b",
    "abs(a - b) <= 8",
    "a between b and 5",
    "a not between b and 5",
    "b in (1, 7)",
    "b not in (1, 7)",
    "s is null",
    "t is not null",
    "s like '%b%'",
    "s not like 'a_'",
    "lower(s) = lower(t)",
    "upper(t) = upper(s) || ''",
    "length(s) > length(t)",
    "contains(s, t)",
    "greatest(a, b) = a",
    "least(a, b, 0) = 0",
    "coalesce(a, b, 3) = 3",
    "case when a > 0 then q when b > 0 then true else false end",
    "year(d) = 2024 and month(d) = 2 and day(d) = 29",
    "d > date '1999-12-31'",
    "d between date'2000-01-01' and cast('2024-02-28' as date)",
    "f > 0.25",
    "f = f",
    "q",
    "not q or a is null",
    "a is distinct from b",
    "p * 2 > f",
    "p = 1.5",
    "true",
]


def both():
    """All pairs of rows, as record batches, row numbers, and plain tuples."""
    pairs = list(product(range(len(LEFT_ROWS)), range(len(RIGHT_ROWS))))
    batches = tuple(
        pa.RecordBatch.from_arrays(
            [
                pa.array(column, f.type)
                for column, f in zip(zip(*rows, strict=True), schema, strict=True)
            ],
            schema=schema,
        )
        for rows, schema in ((LEFT_ROWS, LEFT), (RIGHT_ROWS, RIGHT))
    )
    rows = tuple(np.array(column) for column in zip(*pairs, strict=True))
    return batches, rows, [LEFT_ROWS[i] + RIGHT_ROWS[j] for i, j in pairs]


@pytest.fixture(scope="module")
def pairs_in_spark(spark):
    rows = both()[2]
    frame = spark.createDataFrame(rows, spark_schema(pa.schema([*LEFT, *RIGHT])))
    return frame.coalesce(1).cache()


@pytest.mark.parametrize("text", PREDICATES)
def test_spark_agrees(pairs_in_spark, text):
    batches, rows, _ = both()
    found = holds(compile_predicate(text, (LEFT, RIGHT), "theta"), batches, rows)
    expected = [bool(row[0]) for row in pairs_in_spark.selectExpr(text).collect()]
    assert found.tolist() == expected
    if text != "true":
        assert any(expected)
        assert not all(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d > date '2024-02-30'", "'2024-02-30' is no date"),
        ("cast(s as date) > d", "cast in .* is not served"),
        ("a::int > 3", "cast in .* is not served"),
    ],
)
def test_casts_are_refused_but_for_dates(text, message):
    with pytest.raises(InvalidRequest, match=message):
        compile_predicate(text, (LEFT, RIGHT), "where")


def test_all_functions_are_tried_and_documented():
    text = " ".join(PREDICATES)
    page = (Path(__file__).parents[2] / "docs" / "predicates.md").read_text().replace("\\|", "|")
    for name in FUNCTIONS:
        word = {"~~": "like", "!~~": "not like"}.get(name, name)
        assert word in text
        assert f"`{word}" in page, word
