"""Odd files in the folder of a stream: read as Spark reads them, refused by name, or skipped."""

from __future__ import annotations

import logging
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.errors import DamagedState, InvalidRequest
from joinengine.model.skipped import Skipped
from joinengine.sources.feeds import FolderFeed
from joinengine.sources.listing import Expected, OnBadFile, SchemaChanges
from joinengine.sources.places import by_file, fold
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import parquet_stream
from joinengine.spark.sources.locations import local_path
from joinengine.spark.sources.types import spark_schema
from tests.harness import LocalQuery, two_way
from tests.unit.files import COLUMNS, feed, put, rows_of


@pytest.fixture
def folder(tmp_path):
    put(tmp_path / "in", "0.parquet", when=1000, id=[1, 2], name=["a", "b"])
    return tmp_path / "in"


@pytest.fixture
def footers_read(monkeypatch):
    """The files whose footers have been read."""
    read, files = pq.read_metadata, []
    monkeypatch.setattr(pq, "read_metadata", lambda path: files.append(path) or read(path))
    return files


# Files that differ


def test_a_narrower_type_and_a_missing_column_are_read_into_the_stream(folder):
    put(folder, "1.parquet", id=pa.array([3], pa.int16()))
    put(folder, "2.parquet", name=["c"], id=pa.array([4], pa.uint32()))
    put(folder, "3.parquet", name=pa.array(["d"]).dictionary_encode())
    found = feed(folder)
    found.discover()
    rows, skipped = rows_of(found)
    assert sorted(rows, key=str) == [(1, "a"), (2, "b"), (3, None), (4, "c"), (None, "d")]
    assert skipped == []


def test_a_file_without_any_of_the_columns_has_its_rows(folder):
    put(folder, "1.parquet", other=[1, 2, 3])
    found = feed(folder, schema_changes=SchemaChanges.ADD)
    found.discover()
    assert sorted(rows_of(found)[0], key=str)[2:] == [(None, None)] * 3


ODD = {
    "another type": (
        {"id": ["x"]},
        "does not fit: column 'id' is string, but the stream reads it as",
    ),
    "a wider type": (
        {"id": [1.5]},
        "does not fit: column 'id' is double, but the stream reads it as",
    ),
    "another column": ({"id": [3], "nam": ["c"]}, "the stream has no column 'nam' .schema_changes"),
}


@pytest.mark.parametrize(("columns", "reason"), ODD.values(), ids=ODD)
def test_a_file_that_does_not_fit_is_refused_by_name_or_skipped(folder, columns, reason):
    bad = put(folder, "bad.parquet", **columns)
    with pytest.raises(InvalidRequest, match=f"source file {bad} .*{reason}.*on_bad_file='skip'"):
        feed(folder).discover()
    found = feed(folder, on_bad_file=OnBadFile.SKIP)
    found.discover()
    rows, ((file, why),) = rows_of(found)
    assert rows == [(1, "a"), (2, "b")]
    assert file == str(bad)
    assert pa.compute.match_substring_regex(pa.scalar(why), reason).as_py()


def test_a_bad_file_that_is_removed_blocks_nothing(folder):
    bad = put(folder, "bad.parquet", id=["x"])
    found = feed(folder)
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            found.discover()
    bad.unlink()
    put(folder, "1.parquet", id=[3], name=["c"])
    found.discover()
    assert rows_of(found) == ([(1, "a"), (2, "b"), (3, "c")], [])


def test_a_skipped_file_that_becomes_whole_is_listed_as_new(folder):
    (folder / "bad.parquet").write_bytes(b"PAR1")
    found = feed(folder, on_bad_file=OnBadFile.SKIP)
    found.discover()
    found.discover()
    assert found.end() == 2
    put(folder, "bad.parquet", id=[3], name=["c"])
    found.discover()
    found.discover()
    assert found.end() == 3
    rows, skipped = rows_of(found)
    assert rows == [(1, "a"), (2, "b"), (3, "c")]
    (one,) = skipped
    assert one.reason.startswith("is not a whole Parquet file")
    again = feed(folder, on_bad_file=OnBadFile.SKIP)
    again.discover()
    assert again.row_groups(0, 3) == found.row_groups(0, 3)
    assert again.end() == 3


MORE = {"id": [3], "name": ["c"], "more": [1]}
SKIP = {"on_bad_file": OnBadFile.SKIP}


def skipped_before(folder, **columns):
    """The bad file, and the positions of a run that has skipped it."""
    bad = put(folder, "bad.parquet", **columns)
    before = feed(folder, **SKIP)
    before.discover()
    assert rows_of(before)[0] == [(1, "a"), (2, "b")]
    return bad, before.row_groups(0, before.end())


def test_a_start_that_takes_new_columns_in_reads_a_file_that_was_skipped(folder):
    _, before = skipped_before(folder, **MORE)
    found = feed(folder, **SKIP, schema_changes=SchemaChanges.ADD)
    for _ in range(2):
        found.discover()
    assert found.row_groups(0, len(before)) == before
    rows, skipped = rows_of(found)
    assert (rows, len(skipped)) == ([(1, "a"), (2, "b"), (3, "c")], 1)
    again = feed(folder, **SKIP)  # by its rules the file would be skipped, but it has been read
    again.discover()
    assert again.row_groups(0, again.end()) == found.row_groups(0, found.end())


def test_a_start_that_fails_at_bad_files_names_one_that_was_skipped(folder):
    bad, before = skipped_before(folder, id=["x"])
    found = feed(folder)
    with pytest.raises(InvalidRequest, match=f"source file {bad} does not fit: column 'id'"):
        found.discover()
    assert found.row_groups(0, found.end()) == before


def test_a_start_that_skips_a_file_again_does_not_log_it_again(folder, footers_read):
    _, before = skipped_before(folder, id=["x"])
    found = feed(folder, **SKIP, schema_changes=SchemaChanges.ADD)
    del footers_read[:]
    for _ in range(3):
        found.discover()
    assert found.row_groups(0, found.end()) == before
    assert len(footers_read) == 1


def test_a_skipped_file_is_handed_out_once_and_alone(folder):
    put(folder, "bad.parquet", id=["x"])
    found = feed(folder, on_bad_file=OnBadFile.SKIP)
    found.discover()
    assert found.advance(0) == found.end() == 2
    (_, skipped) = found.row_groups(0, 2)
    assert (skipped.rows, skipped.skipped is None) == (0, False)
    assert fold([(0, skipped)], 4) == [[(0, skipped)]]
    assert len(list(by_file([skipped, skipped._replace(skipped=None)]))) == 2


def test_without_a_log_positions_do_not_depend_on_skipped_files(folder, caplog):
    put(folder, "bad.parquet", when=1, id=["x"])
    expected = Expected(COLUMNS, OnBadFile.SKIP)
    found = FolderFeed(str(folder), 100, None, expected)
    with caplog.at_level(logging.WARNING, "joinengine"):
        found.discover()
        found.discover()
    assert [record.args[0] for record in caplog.records] == [str(folder / "bad.parquet")]
    assert [group.file for group in found.row_groups(0, found.end())] == [str(folder / "0.parquet")]


def test_a_half_written_file_is_waited_for(folder):
    half = folder / "half.parquet"
    half.write_bytes(b"PAR1")
    found = feed(folder, settle_s=3600.0)
    found.discover()
    assert found.end() == 1
    put(folder, "half.parquet", id=[3], name=["c"])
    found.discover()
    assert found.end() == 2
    late = feed(folder, settle_s=0.0)
    half2 = folder / "half2.parquet"
    half2.write_bytes(b"PAR1")
    with pytest.raises(InvalidRequest, match=r"half2\.parquet is not a whole Parquet file"):
        late.discover()


class Sleeper:
    """A clock that goes on when somebody sleeps; `then(how often)` is called each time."""

    def __init__(self, monkeypatch, start_s, then=lambda times: None):
        self.slept, self.start_s, self.then = [], start_s, then
        monkeypatch.setattr("joinengine.sources.feeds.MACHINE", self)

    def now_s(self):
        return self.start_s + sum(self.slept)

    timer_s = now_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.then(len(self.slept))


def test_a_look_that_waits_ends_when_the_file_is_whole(folder, monkeypatch, caplog):
    half = folder / "half.parquet"
    half.write_bytes(b"PAR1")

    def then(times):
        if times == 3:
            put(folder, "half.parquet", id=[3], name=["c"])

    world = Sleeper(monkeypatch, half.stat().st_ctime, then)
    found = feed(folder, settle_s=30.0)
    with caplog.at_level(logging.WARNING, "joinengine"):
        found.discover(wait=world.sleep)
    assert (found.end(), len(world.slept)) == (2, 3)
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.endswith(f"file {half} is not complete yet; waiting up to 30 s for it")


def test_a_look_that_waits_ends_when_the_file_is_bad(folder, monkeypatch):
    half = folder / "half.parquet"
    half.write_bytes(b"PAR1")
    world = Sleeper(monkeypatch, half.stat().st_ctime)
    found = feed(folder, settle_s=2.0, on_bad_file=OnBadFile.SKIP)
    found.discover(wait=world.sleep)
    assert found.end() == 2
    assert sum(world.slept) == pytest.approx(2.0)


def test_an_unknown_column_is_left_out_with_one_warning(folder, caplog):
    put(folder, "1.parquet", id=[3], name=["c"], more=[1])
    found = feed(folder, schema_changes=SchemaChanges.ADD)
    with caplog.at_level(logging.WARNING, "joinengine"):
        found.discover()
        put(folder, "2.parquet", id=[4], name=["d"], more=[1])
        found.discover()
    assert len(caplog.records) == 1
    assert "no column 'more', which is new in" in caplog.text
    assert rows_of(found) == ([(1, "a"), (2, "b"), (3, "c"), (4, "d")], [])


# Files that were logged


def damage(path):
    """Spoil the pages of a file, and leave its footer, size and times as they are."""
    stat, content = path.stat(), bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little") + 8
    content[4 : len(content) - footer] = b"\xff" * (len(content) - footer - 4)
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


LATER = {
    "changed": (lambda p: put(p.parent, p.name, id=[9], name=["z"]), "has changed since"),
    "gone": (lambda p: p.unlink(), "was logged and is missing"),
    "corrupt": (damage, "cannot be read"),
}


@pytest.mark.parametrize(("happens", "reason"), LATER.values(), ids=LATER)
def test_a_logged_file_that_cannot_be_read_is_named(folder, happens, reason):
    put(folder, "1.parquet", id=[3], name=["c"])
    found = feed(folder)
    found.discover()
    happens(folder / "0.parquet")
    strict = Reading(COLUMNS)
    with pytest.raises(DamagedState, match=f"source file {folder}/0.parquet {reason}.*'skip'"):
        rows_of(found, strict)
    rows, ((file, why),) = rows_of(found)
    assert rows == [(3, "c")]
    assert file == str(folder / "0.parquet")
    assert why.startswith(reason)


class SkippingJobs(InlineJobs):
    """Route tasks of each batch that skip the same vanished file, and in batch 1 another."""

    def route(self, frame, plan, *ends):
        reports = super().route(frame, plan, *ends)
        for report in reports:
            report.skipped.append(Skipped("a", "is gone"))
        if plan.batch == 1:
            reports[0].skipped.append(Skipped("b", "is gone"))
        return reports


def test_a_vanished_file_is_named_once_in_a_run(tmp_path, caplog):
    query = LocalQuery(tmp_path, two_way(), "mnrt", jobs=SkippingJobs(), aside=True)
    for batch in range(3):
        query.run_tuples(batch, [(1, batch, 0)], [(1, batch, 0)])
    named = [[one.file for one in record.skipped] for record in query.records]
    assert named == [["a"], ["b"], []]
    assert caplog.text.count("it is gone") == 2
    (one, other) = query._tables("aside/skipped")
    assert [one["file"][0].as_py(), other["file"][0].as_py()] == ["a", "b"]
    query.restart()
    query.run_tuples(3, [(1, 3, 0)], [(1, 3, 0)])
    assert [one.file for one in query.records[-1].skipped] == ["a"]


# Paths and arguments


@pytest.mark.parametrize("path", ["s3a://bucket/c2", "s3://b/x", "hdfs:/b/c", "abfss://c@a/x"])
def test_other_schemes_are_refused_by_name(path):
    with pytest.raises(InvalidRequest, match=f"parquet_stream: {path} .*{path.split(':')[0]} is"):
        local_path(path, "parquet_stream")


def test_file_urls_are_paths():
    for url in ("file:///in/a", "file:/in/a", "/in/a"):
        assert str(local_path(url, "path")) == "/in/a"
    assert str(local_path("a:b/c", "path")).endswith("/a:b/c")


WRONG = [
    ({"folder": None}, "parquet_stream: None is not a path"),
    ({"folder": ["a"]}, r"parquet_stream: \['a'\] is not a path"),
    ({"folder": "x/*.parquet"}, "is a glob; give the folder"),
    ({"rows_per_interval": "100"}, "rows_per_interval: '100' must be a whole number"),
    ({"rows_per_interval": True}, "rows_per_interval: True must be"),
    ({"rows_per_interval": 1.5}, "rows_per_interval: 1.5 must be"),
    ({"rows_per_interval": None}, "rows_per_interval: None must be"),
    ({"on_bad_file": "ignore"}, "on_bad_file: 'ignore' is unknown; choose one of fail, skip"),
    ({"schema_changes": "any"}, "schema_changes: 'any' is unknown; choose one of refuse, add"),
    ({"settle": "-1 s"}, "settle: '-1 s' is negative"),
    ({"settle": "soon"}, "settle 'soon' is not a duration"),
    ({"schema": 5}, "schema: 5 is a int; give a StructType"),
    ({"schema": {"id": "bigint"}}, r"schema: \{'id': 'bigint'\} is a dict; give a StructType"),
    ({"schema": ["id"]}, r"schema: \['id'\] is a list; give a StructType"),
    (
        {"schema": pa.schema([(f"c{n}", "int8") for n in range(99)])},
        r"schema: .{200}\.\. is a Schema;",
    ),
    ({"schema": spark_schema(pa.schema([]))}, "schema: no column is named"),
    (
        {"schema": spark_schema(pa.schema([("id", "int64"), ("id", "int8")]))},
        "schema: column 'id' is given twice",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[str(one) for one, _ in WRONG])
def test_arguments_of_parquet_stream(folder, monkeypatch, arguments, message):
    monkeypatch.setattr("joinengine.spark.session.session.check_classic", lambda spark: None)
    given = {"folder": folder} | arguments
    with pytest.raises(InvalidRequest, match=message):
        parquet_stream("a session", **given)


def test_parquet_stream_without_a_session(folder):
    with pytest.raises(InvalidRequest, match="spark is None; pass a session"):
        parquet_stream(None, folder)


def test_row_groups_that_are_larger_than_an_interval_are_told(folder, monkeypatch, caplog):
    monkeypatch.setattr("joinengine.spark.session.session.check_classic", lambda spark: None)
    with caplog.at_level(logging.WARNING, "joinengine"):
        parquet_stream("a session", folder, rows_per_interval=2)
        assert caplog.text == ""
        parquet_stream("a session", folder, rows_per_interval=1)
    assert "have up to 2 rows" in caplog.text
    assert "batches have more than 1 rows of it" in caplog.text


def test_where_the_columns_are_said_few_footers_are_read(folder, footers_read, monkeypatch):
    monkeypatch.setattr("joinengine.spark.session.session.check_classic", lambda spark: None)
    monkeypatch.setattr("joinengine.spark.sources.types._SAMPLED", 2)
    for number in range(1, 5):
        put(folder, f"day=2026-03-0{number}/{number}.parquet", id=[1])
    schema = spark_schema(pa.schema([("id", pa.int64())]))
    said = parquet_stream("a session", folder, schema=schema)
    assert len(footers_read) == len(said.footers) == 2
    assert said.reading.schema.names == ["id", "day"]
    parquet_stream("a session", folder)
    assert len(footers_read) == 2 + 5


def test_a_schema_in_words_counts_and_folders_add_to_it(folder, monkeypatch):
    monkeypatch.setattr("joinengine.spark.session.session.check_classic", lambda spark: None)
    put(folder, "day=2026-03-01/1.parquet", id=[1])
    said = pa.schema([("id", pa.int64()), ("price", pa.float64())])
    stream = parquet_stream("a session", folder, schema=spark_schema(said))
    assert stream.reading.schema.names == ["id", "price", "day"]
