"""Feeds: the same positions mean the same row groups, for ever."""

from __future__ import annotations

import datetime as dt
import os
import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.model.errors import DamagedState, InvalidRequest
from joinengine.predicates.dialect import compile_predicate
from joinengine.sources import discovery as finding
from joinengine.sources import feeds, sourcefiles, sourcelog
from joinengine.sources.feeds import ENDED, FolderFeed, open_feed
from joinengine.sources.listing import Expected, Listing, OnBadFile
from joinengine.sources.places import by_file, fold
from joinengine.sources.positions import Logged, RowGroup, table_of
from joinengine.sources.readings import Reading, conform, reading_from_json, reading_to_json
from joinengine.sources.sourcefiles import find
from joinengine.sources.sourcelog import SourceLog
from joinengine.spark.sources.inputs import Stream
from joinengine.world.world import MACHINE


def put(folder, name, rows, groups=2, when=None):
    table = pa.table({"a": list(range(rows)), "b": [str(i) for i in range(rows)]})
    path = folder / name
    pq.write_table(table, path, row_group_size=max(1, rows // groups))
    if when is not None:
        os.utime(path, ns=(when, when))
    return path


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "in"
    made.mkdir()
    for number in range(3):
        put(made, f"{number}.parquet", 10, when=1_000_000 * (number + 1))
    return made


def feed(folder, tmp_path, rows=10):
    return FolderFeed(str(folder), rows, SourceLog(MACHINE.storage(f"{tmp_path}/log"), 1))


def test_intervals_are_whole_row_groups(folder, tmp_path):
    found = feed(folder, tmp_path, rows=12)
    found.discover()
    assert found.end() == 6
    cuts = [0]
    while cuts[-1] < found.end():
        cuts.append(found.advance(cuts[-1]))
    assert cuts == [0, 3, 6]
    assert found.advance(6) == 6
    assert [group.rows for group in found.row_groups(0, 3)] == [5, 5, 5]


def test_new_files_come_after_known_ones_whatever_their_time(folder, tmp_path):
    found = feed(folder, tmp_path)
    found.discover()
    before = found.row_groups(0, 6)
    put(folder, "early.parquet", 10, when=1)
    put(folder, "_hidden.parquet", 10)
    put(folder, ".hidden.parquet", 10)
    (folder / "notes.txt").write_text("no data")
    found.discover()
    assert found.row_groups(0, 6) == before
    assert {group.file for group in found.row_groups(6, found.end())} == {
        str(folder / "early.parquet")
    }


def test_after_a_restart_the_log_decides(folder, tmp_path):
    first = feed(folder, tmp_path)
    first.discover()
    os.utime(folder / "2.parquet", ns=(1, 1))
    again = feed(folder, tmp_path)
    assert again.row_groups(0, 6) == first.row_groups(0, 6)
    again.discover()
    assert again.end() == 6


@pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: c.replace(b"0.par", b"9.par", 1)])
def test_a_damaged_log_is_refused_by_name(folder, tmp_path, damage):
    feed(folder, tmp_path).discover()
    (segment,) = (tmp_path / "log").iterdir()
    segment.write_bytes(damage(segment.read_bytes()))
    with pytest.raises(DamagedState, match=f"{segment.name} does not match its header"):
        feed(folder, tmp_path)


def test_a_lost_segment_is_refused_by_name(folder, tmp_path):
    log = feed(folder, tmp_path)
    log.discover()
    put(folder, "later.parquet", 10)
    log.discover()
    first, second = sorted((tmp_path / "log").iterdir())
    assert (int(first.name), int(second.name)) == (0, 3)
    first.unlink()
    with pytest.raises(DamagedState, match=f"{first.name} is missing"):
        feed(folder, tmp_path)


def test_two_feeds_that_look_at_once_log_a_file_once(folder, tmp_path):
    one, other = feed(folder, tmp_path), feed(folder, tmp_path)
    one.discover()
    other.discover()  # it listed the folder, and the log was empty then
    put(folder, "empty.parquet", 0)
    put(folder, "later.parquet", 10)
    other.discover()
    put(folder, "older.parquet", 10, when=1)  # by its time it comes before the files in the log
    one.discover()
    other.discover()
    assert one.row_groups(0, one.end()) == other.row_groups(0, other.end())
    logged = [group.file for group in feed(folder, tmp_path).row_groups(0, one.end())]
    assert sorted(logged) == sorted(
        str(folder / f"{name}.parquet") for name in (0, 1, 2, "later", "older") for _ in range(2)
    )


def five(folder):
    """Five files, of which the later ones are the older ones; their names in the order of time."""
    for number in range(3, 5):
        put(folder, f"{number}.parquet", 10, when=1_000_000 - number)
    return [f"{number}.parquet" for number in (4, 3, 0, 1, 2)]


def names_of(found):
    return [os.path.basename(part[0].file) for part in by_file(found.row_groups(0, found.end()))]


def test_a_look_logs_some_files_and_the_next_one_goes_on(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(feeds, "MOST_FILES", 2)
    ordered, found = five(folder), feed(folder, tmp_path)
    for count in (2, 4, 5, 5):
        found.discover()
        assert names_of(found) == ordered[:count]
    assert [int(one.name) for one in sorted((tmp_path / "log").iterdir())] == [0, 2, 4]


def test_a_look_that_waits_logs_all_files(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(feeds, "MOST_FILES", 2)
    ordered, found = five(folder), feed(folder, tmp_path)
    found.discover(wait=time.sleep)
    assert names_of(found) == ordered


def test_without_a_log_a_look_brings_all_files(folder, monkeypatch):
    monkeypatch.setattr(feeds, "MOST_FILES", 2)
    ordered, found = five(folder), FolderFeed(str(folder), 10, None)
    found.discover()
    assert names_of(found) == ordered


def test_a_stream_has_not_ended_while_files_wait_to_be_logged(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(feeds, "MOST_FILES", 2)
    log = SourceLog(MACHINE.storage(f"{tmp_path}/log"), 1)
    found = FolderFeed(str(folder), 10, log, ends=True)
    found.discover()
    assert found.progress(found.end()) is None
    found.discover()
    assert found.progress(found.end()) == ENDED


def test_a_file_that_is_half_written_is_looked_at_with_each_look(folder, tmp_path):
    half = folder / "half.parquet"
    half.write_bytes(b"PAR1")
    expected = Expected(settle_s=3600.0)
    found = FolderFeed(str(folder), 10, SourceLog(MACHINE.storage(f"{tmp_path}/log"), 1), expected)
    found.discover()
    assert found.end() == 6
    put(tmp_path, "whole.parquet", 10)
    with open(half, "r+b") as file:  # no notice comes before it is closed
        file.write((tmp_path / "whole.parquet").read_bytes())
        file.flush()
        found.discover()
    assert found.end() == 8


def half(path):
    path.write_bytes(b"PAR1")


@pytest.mark.parametrize("wait", [None, time.sleep])
def test_a_file_that_is_completed_during_a_look_is_logged_as_it_is_then(
    folder, tmp_path, monkeypatch, wait
):
    """Its size was asked for before, and no batch could read a file of that size."""
    late, real, seen = folder / "late.parquet", pq.read_metadata, []

    def read_metadata(path):
        if str(path) == str(late) and not seen:
            seen.append(late.stat().st_size)
            put(folder, "late.parquet", 5000)
        return real(path)

    late.write_bytes(b"PAR1")
    monkeypatch.setattr(pq, "read_metadata", read_metadata)
    found = feed(folder, tmp_path)
    found.discover(wait=wait)
    found.discover()
    assert seen == [4]
    (piece, *_) = found.pieces(6, found.end())
    assert piece.size == late.stat().st_size
    assert found.end() == 8


@pytest.mark.parametrize("others", [True, False])
def test_a_file_that_never_becomes_whole_is_left_to_the_next_run(folder, tmp_path, caplog, others):
    """And so are those that come meanwhile: a run that reads what is there must end."""
    looks = []

    def rest(seconds):
        looks.append(seconds)
        half(folder / (f"{len(looks)}.half.parquet" if others else "half.parquet"))
        time.sleep(min(seconds, 0.02))

    half(folder / "half.parquet")
    log = SourceLog(MACHINE.storage(f"{tmp_path}/log"), 1)
    found = FolderFeed(str(folder), 10, log, Expected(settle_s=0.2, on_bad_file=OnBadFile.SKIP))
    found.discover(wait=rest)
    assert found.end() >= 7 if others else found.end() == 6  # what is skipped counts
    assert 2 <= len(looks) < 60
    assert ("half.parquet is still being written" in caplog.text) == (not others)


def test_a_look_that_waits_ends_when_it_is_told_to(folder, tmp_path):
    half(folder / "half.parquet")
    found = FolderFeed(str(folder), 10, None, Expected(settle_s=60.0))
    found.discover(wait=lambda seconds: True)
    assert found.end() == 6


def test_a_place_is_the_same_with_a_slash_behind_it(folder, tmp_path):
    found = FolderFeed(f"{folder}/", 10, SourceLog(MACHINE.storage(f"{tmp_path}/log"), 1))
    found.discover()
    put(folder, "3.parquet", 10)
    found.discover()
    again = feed(folder, tmp_path)
    again.discover()
    assert again.end() == found.end() == 8


def test_a_feed_folds_its_log(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sourcelog, "FOLD_AT", 2)
    monkeypatch.setattr(feeds, "MOST_FILES", 1)
    found = feed(folder, tmp_path)
    found.discover(wait=time.sleep)
    found.tidy()
    before = found.row_groups(0, 6)
    assert (tmp_path / "log/000000000000-000000000002").exists()
    for number in range(2):
        os.unlink(tmp_path / f"log/{number:012d}")
    assert feed(folder, tmp_path).row_groups(0, 6) == before


def test_positions_beyond_the_log_are_refused(folder, tmp_path):
    found = feed(folder, tmp_path)
    with pytest.raises(DamagedState, match="lists 0 row groups"):
        found.row_groups(0, 2)


def test_a_changed_file_is_refused(folder, tmp_path):
    found = feed(folder, tmp_path)
    found.discover()
    (group, *_) = found.row_groups(0, 1)
    reading = Reading(pa.schema([("a", pa.int64())]))
    assert sum(batch.num_rows for batch in reading.batches([group])) == 5
    put(folder, "0.parquet", 12)
    with pytest.raises(DamagedState, match="has changed since it was logged"):
        list(reading.batches([group]))
    (folder / "0.parquet").unlink()
    with pytest.raises(DamagedState, match="is missing"):
        list(reading.batches([group]))


def test_a_half_written_file_is_refused_by_name(folder, tmp_path):
    (folder / "half.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidRequest, match=r"half\.parquet is not a whole Parquet file"):
        feed(folder, tmp_path).discover()


def test_reading_filters_and_casts(folder):
    schema = pa.schema([("b", pa.string()), ("a", pa.int32())])
    group = RowGroup(str(folder / "0.parquet"), 1, 5)
    none = pa.schema([])
    filters = [compile_predicate(t, (schema, none), "w") for t in ("a % 2 = 0 and b <> '6'", "1=1")]
    (batch,) = Reading(schema, tuple(filters)).batches([group])
    assert batch.schema == schema
    assert batch.to_pydict() == {"b": ["8"], "a": [8]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c > 1", "column 'c' does not exist; the columns are b, a"),
        ("a > (", "is not a valid predicate: it ends before it is complete"),
        ("a > ) 3", "is not a valid predicate"),
        ("at > 3", r"is not a valid predicate: .*needs backticks"),
        ("a + 1", "expected a predicate, found 'a . 1' of type (BIGINT|INTEGER)"),
        ("a in (select 1)", "subquery in .* is not supported"),
        ("random() < 0.5", "random in .* is not supported"),
    ],
)
def test_filters_of_streams_are_checked_when_they_are_said(text, message):
    schema = pa.schema([("b", pa.string()), ("a", pa.int32())])
    stream = Stream(None, {"kind": "folder", "path": "x"}, Reading(schema))
    with pytest.raises(InvalidRequest, match=f"Stream.where: .*({message})"):
        stream.where("a > 0").where(text)


def test_filters_of_streams_are_those_of_joins(folder, monkeypatch):
    """One dialect, in the time zone of the session; columns that are not selected may be named."""
    monkeypatch.setattr("joinengine.spark.session.session.zone", lambda _: "Asia/Tokyo")
    at = [dt.datetime(2024, 1, 1, hour, tzinfo=dt.UTC) for hour in range(24)]
    path = folder / "times.parquet"
    times = pa.array(at, pa.timestamp("ns", "UTC"))
    pq.write_table(pa.table({"n": range(24), "t": times, "s": ["10%", "10x"] * 12}), path)
    schema = pa.schema([("n", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("s", pa.string())])
    stream = Stream(None, {"kind": "folder", "path": "x"}, Reading(schema))
    one = stream.select(["n"]).where("hour(t) = 1").reading
    whole = stream.where("n / 0 is null").where(r"s like '10\%'").where("hour(t) >= 20").reading
    group = RowGroup(str(path), 0, 24)
    assert [batch.to_pydict() for batch in one.batches([group])] == [{"n": [16]}]
    assert [b.column(0).to_pylist() for b in whole.batches([group])] == [[12, 14]]
    assert whole.where == r"((n / 0 is null) and (s like '10\%')) and (hour(t) >= 20)"
    assert reading_from_json(schema, reading_to_json(whole)) == replace(whole, whole=schema)


def test_conform_does_not_copy_what_is_right():
    batch = pa.RecordBatch.from_pydict({"a": [1, 2]})
    same = conform(batch, batch.schema)
    assert same.column(0).buffers()[1].address == batch.column(0).buffers()[1].address


def test_fold_balances_and_keeps_order():
    groups = [(0, RowGroup("f", i, rows)) for i, rows in enumerate([10, 10, 50, 10, 20])]
    parts = fold(groups, 2)
    assert [pair for part in parts for pair in part] == groups
    assert [sum(g.rows for _, g in part) for part in parts] == [70, 30]
    assert fold([(0, RowGroup("f", 0, 3))], 4) == [[(0, RowGroup("f", 0, 3))]]


def test_by_file():
    groups = [RowGroup("f", 0, 1), RowGroup("f", 1, 1), RowGroup("g", 0, 1)]
    assert [[g.file for g in part] for part in by_file(groups)] == [["f", "f"], ["g"]]


def test_parquet_files_of_a_nested_folder(tmp_path):
    (tmp_path / "day=1").mkdir()
    (tmp_path / "_temporary").mkdir()
    put(tmp_path / "day=1", "a.parquet", 4)
    put(tmp_path / "_temporary", "b.parquet", 4)
    assert [file.path for file in find(str(tmp_path))] == [str(tmp_path / "day=1" / "a.parquet")]


def test_a_feed_of_an_unknown_kind_is_refused():
    with pytest.raises(InvalidRequest, match="feed: 'tail' is unknown; choose one of folder, rec"):
        open_feed({"kind": "tail", "path": "x"})


def test_files_that_are_logged_are_not_looked_at_again(tmp_path, monkeypatch):
    """A folder may hold a hundred thousand of them, and Spark asks a hundred times a second."""
    pq.write_table(pa.table({"a": [1]}), str(tmp_path / "a.parquet"))
    logged = Logged()
    listing = Listing(str(tmp_path), Expected(), logged)
    logged.add(table_of(listing.look(0.0)))
    looked = []
    for module in (sourcefiles, finding):
        monkeypatch.setattr(module, "look_at", looked.append)
    assert listing.look(0.0) == []
    listing._finding.left_some = True  # the next look is whole
    assert listing.look(0.0) == []
    assert looked == []
