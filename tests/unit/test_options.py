"""Options of a writer: their names in any case, their values, and which sink takes which."""

from __future__ import annotations

import pytest

from joinengine.api import options as given
from joinengine.model.errors import InvalidRequest


def test_case_does_not_matter_in_names():
    options = given.merged({}, given.named("FSYNC", True))
    options = given.merged(options, given.named("Header", True))
    options = given.merged(options, given.named("fsync", "false"))
    assert given.merged(options, given.named("HEADER", 1)) == {"fsync": "false", "HEADER": "1"}


@pytest.mark.parametrize("value", [None, ["a"], ("a",), {"a": 1}])
def test_a_value_is_one_value(value):
    with pytest.raises(InvalidRequest, match=r"option fsync: .* is no value"):
        given.named("fsync", value)
    with pytest.raises(InvalidRequest, match="5 is no name"):
        given.named(5, "x")


@pytest.mark.parametrize(
    ("sink", "name", "message"),
    [
        ("parquet", "sideOuput", "did you mean 'sideOutput'"),
        ("parquet", "partitonBy", "did you mean 'partitionBy'"),
        ("noop", "capcity", "did you mean 'capacity'"),
        ("console", "numrow", "did you mean 'numRows'"),
        ("memory", "xyz", "memory: option 'xyz' is unknown; The options are checkpointLocation"),
        ("foreachBatch", "path", "'path' is unknown"),
        ("noop", "overwrite", "noop: option 'overwrite' goes with format 'parquet' only"),
        ("csv", "compactEvery", "csv: option 'compactEvery' goes with format 'parquet' only"),
    ],
)
def test_unknown_options_are_refused_by_name(sink, name, message):
    with pytest.raises(InvalidRequest, match=message):
        given.check_names(sink, [name])


def test_formats_of_spark_judge_their_own_options():
    given.check_names("csv", ["header", "path", "capacity"])
    given.check_names("parquet", ["compression", "shared", "path", "sideOutput"])
    passed = given.for_spark({"header": "1", "path": "p", "capacity": "3", "compression": "gzip"})
    assert passed == {"header": "1", "path": "p", "compression": "gzip"}


@pytest.mark.parametrize("word", ["yes", "1", ""])
def test_a_boolean_is_true_or_false(word):
    with pytest.raises(InvalidRequest, match="is neither true nor false"):
        given.boolean({"fsync": word}, "fsync")


def test_booleans():
    assert given.boolean({"fsync": "TRUE"}, "fsync")
    assert not given.boolean({"fsync": "false"}, "fsync", True)
    assert given.boolean({}, "truncate", True)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "¹"])
def test_a_number_is_whole_and_positive(text):
    with pytest.raises(InvalidRequest, match=r"capacity: .* must be a positive whole number \(row"):
        given.whole({"capacity": text}, "capacity", "rows")
    for much in ("11", "9" * 20, "9" * 5000):
        with pytest.raises(InvalidRequest, match="is too much; give 10 batches or fewer"):
            given.whole({"compactEvery": much}, "compactEvery", "batches", 10)
    assert given.whole({"capacity": "12"}, "capacity", "rows") == 12
    assert given.whole({}, "capacity", "rows") is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("1 kB", 1024), ("1.5MB", 3 << 19), ("2 GiB", 2 << 30), ("64m", 64 << 20)],
)
def test_sizes(text, size):
    assert given.size_bytes({"targetFileSize": text}, "targetFileSize") == size


@pytest.mark.parametrize("text", ["", "MB", "1 XB", "-1", "1,000"])
def test_what_is_no_size(text):
    with pytest.raises(InvalidRequest, match="is no size"):
        given.size_bytes({"targetFileSize": text}, "targetFileSize")
    with pytest.raises(InvalidRequest, match="is too little; give 8 bytes or more"):
        given.size_bytes({"targetFileSize": "7"}, "targetFileSize", 8)


def test_how_often_new_files_are_looked_for():
    assert given.look_every_s({"lookEvery": "1 minute"}) == 60.0
    assert given.look_every_s({}) is None
    for text in ("0 s", "-1 s"):
        with pytest.raises(InvalidRequest, match=f"lookEvery: '{text}' is no time to rest"):
            given.look_every_s({"lookEvery": text})
    with pytest.raises(InvalidRequest, match="lookEvery 'often' is not a duration"):
        given.look_every_s({"lookEvery": "often"})


def test_codecs_have_sparks_names():
    assert given.codec({}) == "snappy"
    assert given.codec({"compression": "LZ4_RAW"}) == "lz4"
    with pytest.raises(InvalidRequest, match="compression: 'lzo' is unknown; use one of none"):
        given.codec({"compression": "lzo"})


def test_triggers():
    assert given.trigger_of({"availableNow": True}) == {"availableNow": True}
    assert given.trigger_of({"processingTime": "5 s", "once": None}) == {
        "processingTime": "5000 milliseconds"
    }
    for wrong in ({}, {"availableNow": False}, {"once": True, "processingTime": "1 s"}):
        with pytest.raises(InvalidRequest, match="trigger: "):
            given.trigger_of(wrong)
    with pytest.raises(InvalidRequest, match="processingTime '-1 s' is negative"):
        given.trigger_of({"processingTime": "-1 s"})
    with pytest.raises(InvalidRequest, match="trigger: continuous is not served"):
        given.trigger_of({"continuous": "1 second"})


def test_columns_of_folders():
    assert given.columns("partitionBy", ("a", "b, c")) == ("a", "b, c")
    assert given.columns("partitionBy", ("a, b",)) == ("a", "b")
    for wrong in ((5,), ([None],), ("a,,b",)):
        with pytest.raises(InvalidRequest, match=r"partitionBy: .* is no name of a column"):
            given.columns("partitionBy", wrong)
    for sink in ("parquet", "toTable", "csv"):
        given.check_folders(sink, ["a"])
    for sink in ("noop", "console", "memory", "foreachBatch"):
        given.check_folders(sink, [])
        with pytest.raises(InvalidRequest, match=f"partitionBy: {sink} makes no folders"):
            given.check_folders(sink, ["a"])
