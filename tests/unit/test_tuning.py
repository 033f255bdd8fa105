"""What a query sets for itself, as values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from joinengine.spark.session.tuning import (
    ARROW_BYTES,
    ARROW_ROWS,
    CHECKPOINT_MANAGER,
    SAMPLE_ROWS,
    ArrowBatches,
    fixed_width,
    missing,
)

NUMBERS = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("b", pa.bool_())])
TEXTS = pa.schema([("k", pa.int64()), ("text", pa.string())])
FREE = {ARROW_BYTES: str(2**31 - 1), ARROW_ROWS: "32768"}


def columns(n):
    return pa.schema([(f"c{i}", pa.int64()) for i in range(n)])


@pytest.mark.parametrize(
    ("schema", "width"),
    [
        (NUMBERS, 8 + 8 + (1 + 3) / 8),
        (pa.schema([("d", pa.decimal128(9, 2))]), 16 + 1 / 8),
        (TEXTS, None),
        (pa.schema([("l", pa.list_(pa.int32()))]), None),
        (pa.schema([("s", pa.struct([("x", pa.int32())]))]), None),
    ],
)
def test_the_width_of_a_schema(schema, width):
    assert fixed_width(schema) == width


@pytest.mark.parametrize(
    ("schemas", "expected"),
    [
        ({}, {}),
        ({0: NUMBERS}, FREE),
        ({0: columns(252)}, FREE),  # 252 * 8.125 * 32768 bytes are just below 64 MB
        ({0: columns(253)}, {}),
        ({0: NUMBERS, 1: columns(253)}, {}),
        ({0: NUMBERS, 1: TEXTS}, {}),
    ],
)
def test_before_the_first_batch_the_schemas_decide(schemas, expected):
    assert ArrowBatches(schemas).settings() == expected


def test_what_has_no_fixed_width_is_measured_and_measured_again():
    batches = ArrowBatches({0: NUMBERS, 1: TEXTS, 2: TEXTS})
    batches.see(1, 100.0, SAMPLE_ROWS)
    batches.see(2, 100.0, SAMPLE_ROWS - 1)
    assert batches.settings() == {}
    batches.see(2, 20.0, 1)
    assert batches.settings() == FREE
    batches.see(1, 2047.9, 1)
    assert batches.settings() == FREE
    batches.see(1, 2048.0, 1)
    assert batches.settings() == {}
    batches.see(1, 10.0, SAMPLE_ROWS)
    assert batches.settings() == {}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({ARROW_BYTES: "1048576", ARROW_ROWS: None}, {}),
        ({ARROW_BYTES: None, ARROW_ROWS: "1000"}, {ARROW_BYTES: FREE[ARROW_BYTES]}),
        ({ARROW_BYTES: None, ARROW_ROWS: "10000000"}, {}),
        ({ARROW_BYTES: None, ARROW_ROWS: "-1"}, {}),  # to Spark: any number of rows
    ],
)
def test_what_the_user_has_set_stays(chosen, expected):
    assert ArrowBatches({0: NUMBERS}, chosen).settings() == expected


def test_what_a_query_cannot_have_for_itself_is_named_where_it_is_missing():
    has = {"unix_sockets": True, "jvm_arguments": ["-XX:TieredStopAtLevel=1"], "manager": True}
    assert missing(**has) == []
    lacks = [{"unix_sockets": False}, {"jvm_arguments": ["-Xmx1g"]}, {"manager": False}]
    named = ["PYSPARK_UDS_MODE=true", "spark.driver.extraJavaOptions", CHECKPOINT_MANAGER]
    for lack, name in zip(lacks, named, strict=True):
        (found,) = missing(**has | lack)
        assert name in found
