"""Filters and computed columns of a stream, in the order in which they are written."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import InvalidRequest, StreamJoin, equi
from joinengine.sources.positions import RowGroup
from joinengine.sources.readings import Reading, reading_from_json, reading_to_json
from joinengine.sources.schemas import as_text
from joinengine.sources.transforms import needed
from joinengine.spark.sources.inputs import Stream

SCHEMA = pa.schema([("k", pa.string()), ("a", pa.int64()), ("geo", pa.struct([("x", pa.int64())]))])
ROWS = {
    "k": ["1", "2", None, "10"],
    "a": [5, -6, 7, 8],
    "geo": [{"x": 1}, None, {"x": 3}, {"x": 4}],
}


@pytest.fixture
def stream():
    return Stream(None, {"kind": "recorded", "path": "x"}, Reading(SCHEMA))


@pytest.fixture
def read(tmp_path):
    pq.write_table(pa.table(ROWS, schema=SCHEMA), tmp_path / "a.parquet")
    group = RowGroup(str(tmp_path / "a.parquet"), 0, 4)

    def rows(stream):
        """What a task reads, and what it reads after the way through an option of the source."""
        again = reading_from_json(stream.reading.schema, reading_to_json(stream.reading))
        (found,), (other,) = (list(one.batches([group])) for one in (stream.reading, again))
        assert found.equals(other)
        assert found.schema == stream.reading.schema
        return found.to_pydict()

    return rows


def test_a_column_is_computed_and_then_there(stream, read):
    wider = stream.withColumn("twice", "a * 2").where("TWICE > 0 and k is not null")
    assert wider.schema.names == ["k", "a", "geo", "twice"]
    assert read(wider.select("twice", "k")) == {"twice": [10, 16], "k": ["1", "10"]}


def test_a_column_in_place_of_another(stream, read):
    """A step sees the columns as the steps before have left them; the case of a name stays."""
    steps = stream.where("a > 0").withColumn("A", "cast(-a as string)").where("a <> '-7'")
    assert steps.schema.names == ["k", "a", "geo"]
    assert read(steps.select("a")) == {"a": ["-5", "-8"]}
    again = steps.withColumn("a", "a || k")
    assert read(again.select("a")) == {"a": ["-51", "-810"]}


def test_columns_that_are_not_read_and_constants(stream, read):
    assert read(stream.withColumn("x", "geo.x").where("x > 1").select("x")) == {"x": [3, 4]}
    assert read(stream.withColumn("one", "1").select("one")) == {"one": [1] * 4}
    assert read(stream.withColumn("z", "a").withColumn("a", "0").select("z"))["z"] == ROWS["a"]
    covered = stream.withColumn("a", "0").select("a").reading
    assert needed(covered.columns, covered.steps, covered.schema) == []


def test_a_key_that_is_cast(stream):
    other = Stream(None, {"kind": "recorded", "path": "y"}, Reading(SCHEMA))
    cast = stream.withColumn("key", "cast(a as string)").where("a > 0")
    joined = StreamJoin(*(cast, other), on=equi("key", "k"), suffixes=("_l", "_r"), instances=2)
    assert joined.query().sources[0] == "recorded x with key = cast(a as string) where a > 0"


REFUSED = {
    "withColumn: b: column 'c' does not exist": ("b", "c + 1"),
    "withColumn: b: random in .* is not supported": ("b", "random()"),
    "withColumn: b: .* has type INTERVAL, which cannot be a column": ("b", "interval '1 day'"),
    "withColumn: b: 5 .* is not text": ("b", 5),
    "withColumn: 5 .* is not text": (5, "a"),
    "withColumn: the name of the column is empty": ("", "a"),
    "withColumn: b: '': the expression is empty": ("b", ""),
    "withColumn: b: .* is not a valid predicate|no expression": ("b", "a +"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(stream, message):
    with pytest.raises(InvalidRequest, match=message):
        stream.withColumn(*REFUSED[message])


#: What a user may write, and what a restart shows after it: over fewer columns, and over more.
WRITTEN = {
    "computed": (
        lambda stream: stream.withColumn("twice", "a * 2"),
        ["k", "a", "twice"],
        ["k", "a", "more", "twice"],
    ),
    "in place": (
        lambda stream: stream.withColumn("k", "'x'").where("a > 0"),
        ["k", "a"],
        ["k", "a", "more"],
    ),
    "selected, then computed": (
        lambda stream: stream.select("a").withColumn("twice", "a * 2"),
        ["a", "twice"],
        ["a", "twice"],
    ),
    "computed, then selected": (
        lambda stream: stream.withColumn("twice", "a * 2").select("twice", "k").where("a > 0"),
        ["twice", "k"],
        ["twice", "k"],
    ),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_a_restart_shows_what_its_user_selected_and_no_less(written):
    """Over the columns of a checkpoint, or of files: columns of files come and go, steps stay."""
    made, fewer, more = WRITTEN[written]
    narrow = pa.schema([("k", pa.string()), ("a", pa.int64())])
    wide = narrow.append(pa.field("more", pa.int64()))

    def over(columns):
        feed = {"kind": "folder", "path": "x", "columns": as_text(columns), "schema_changes": "add"}
        return made(Stream(None, feed, Reading(columns)))

    few, many = as_text(narrow), as_text(wide)
    assert over(wide).over(few).schema.names == fewer
    assert over(narrow).at_restart(many).schema.names == more
    assert over(wide).at_restart(few).schema.names == more
    for found, columns in ((over(wide).over(few), narrow), (over(narrow).over(many), wide)):
        assert found.reading == over(columns).reading
        assert found.over(many).over(as_text(columns)).reading == found.reading
