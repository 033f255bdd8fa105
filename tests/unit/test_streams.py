"""What `Stream`s bring between two positions, as the driver finds it in the logs."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.model.errors import DamagedState, InvalidRequest
from joinengine.model.skipped import Skipped
from joinengine.sources.feeds import ENDED, open_feed
from joinengine.sources.positions import RowGroup
from joinengine.sources.readings import Reading
from joinengine.spark.query.spark_logs import offset_in
from joinengine.spark.sources.streams import Streams

READING = Reading(pa.schema([("a", pa.int64())]))


def streams(feeds, tasks=2):
    """Streams over feeds, and what they bring between two positions of the feeds, in order."""
    found = Streams(feeds, {feed["source"]: READING for feed in feeds}, tasks)

    def between(start, end):
        return found.between(*(dict(zip(found.sources, one, strict=True)) for one in (start, end)))

    return between


@pytest.fixture
def folder(tmp_path):
    """The options of a feed of three files of 10, 20 and 30 rows, two row groups each."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = (number + 1) * 10
        table = pa.table({"a": range(rows)})
        pq.write_table(table, tmp_path / f"in/{number}.parquet", row_group_size=rows // 2)
    options = {"kind": "folder", "path": f"{tmp_path}/in", "log": f"{tmp_path}/log", "source": 0}
    return options | {"rows_per_interval": 10, "on_bad_file": "skip"}


@pytest.fixture
def recorded(tmp_path):
    index = {
        "intervals": [[["x.parquet", 0, 4]], [], [["x.parquet", 1, 4], ["y.parquet", 0, 2]]],
        "progress": [100, 200, 300],
    }
    (tmp_path / "index.json").write_text(json.dumps(index))
    return {"kind": "recorded", "path": f"{tmp_path}/index.json", "source": 1}


def read(portions):
    """Per portion (source, file, row group)."""
    return [
        [(source, g.file.rpartition("/")[2], g.group) for source, groups in s.files for g in groups]
        for s in portions
    ]


def test_tasks_share_the_rows_between_two_positions(folder, recorded):
    between = streams([folder, recorded])
    open_feed(folder).discover()  # as the source does, in a process of its own
    first = between((0, 0), (2, 1))
    assert read(first.portions) == [
        [(0, "0.parquet", 0)],
        [(0, "0.parquet", 1), (1, "x.parquet", 0)],
    ]
    assert first.report.progress == {1: 100}
    second = between((2, 1), (6, 1))
    assert read(second.portions) == [
        [(0, "1.parquet", 0), (0, "1.parquet", 1)],
        [(0, "2.parquet", 0), (0, "2.parquet", 1)],
    ]
    assert second.report.progress == {}  # no promise of a feed that brings nothing
    third = between((6, 1), (6, 3))
    assert third.report.progress == {1: ENDED}
    again = streams([folder, recorded])
    assert again((6, 1), (6, 3)) == third


def test_a_batch_without_data_has_no_tasks(folder, recorded):
    open_feed(folder).discover()
    between = streams([folder, recorded])
    assert not between((0, 0), (0, 0)).portions
    assert between((0, 0), (0, 0)).report.progress == {}
    assert between((0, 0), (0, 2)).report.progress == {1: 200}
    assert not streams([])((), ()).portions


def test_a_source_without_a_position_is_at_its_begin(recorded):
    found = Streams([recorded], {1: READING}, 1)
    assert found.between({}, {1: 1}) == found.between({1: 0}, {1: 1})
    assert not found.between({}, {}).portions
    assert found.position({"tick": 4, "feed0": 2}) == {1: 2}


def test_files_that_the_source_finds_later_are_read(folder, tmp_path):
    source = open_feed(folder)
    source.discover()
    between = streams([folder], tasks=1)
    assert len(read(between((0,), (6,)).portions)[0]) == 6
    pq.write_table(pa.table({"a": [1]}), tmp_path / "in/later.parquet")
    source.discover()
    assert read(between((6,), (7,)).portions) == [[(0, "later.parquet", 0)]]


def test_skipped_files_are_told_and_not_read(folder, tmp_path):
    (tmp_path / "in/bad.parquet").write_bytes(b"PAR1 nothing PAR1")
    source = open_feed(folder)
    source.discover()
    brought = streams([folder], tasks=1)((0,), (source.end(),))
    (skipped,) = brought.report.skipped
    assert isinstance(skipped, Skipped)
    assert skipped.file.endswith("bad.parquet")
    assert all(name != "bad.parquet" for _, name, _ in read(brought.portions)[0])


def test_a_position_beyond_the_log_is_refused(folder):
    open_feed(folder).discover()
    with pytest.raises(DamagedState, match="lists 6 row groups"):
        streams([folder])((0,), (7,))


def test_row_groups_of_one_file_travel_together(recorded):
    (portion,) = streams([recorded], tasks=1)((0,), (3,)).portions
    folder = recorded["path"].rpartition("/")[0]
    assert portion.files == (
        (1, (RowGroup(f"{folder}/x.parquet", 0, 4), RowGroup(f"{folder}/x.parquet", 1, 4))),
        (1, (RowGroup(f"{folder}/y.parquet", 0, 2),)),
    )


@pytest.mark.parametrize("content", [None, "", "v1\n{}", 'v1\n{}\n{"tick": 0'])
def test_a_log_of_offsets_that_is_damaged_is_refused_by_name(content):
    with pytest.raises(DamagedState, match=r"^/c/offsets/3 is missing or damaged"):
        offset_in(content, "/c/offsets/3")


def test_the_first_source_of_a_log_of_offsets_is_ours():
    content = 'v1\n{"conf": {}}\n{"tick": 0, "feed0": 5}\n{"tick": 0, "feed0": 9}'
    assert offset_in(content, "/c/offsets/3") == {"tick": 0, "feed0": 5}


def test_a_start_that_checks_logs_nothing(folder, tmp_path):
    (tmp_path / "in/bad.parquet").write_bytes(b"PAR1")
    for on_bad_file in ("fail", "skip"):
        found = Streams([folder | {"on_bad_file": on_bad_file}], {0: READING}, 2)
        with pytest.raises(InvalidRequest) if on_bad_file == "fail" else nullcontext():
            found.check()
        assert not (tmp_path / "log").exists()
    found.take_over(7)
    (segment,) = (tmp_path / "log").iterdir()
    assert b'"generation":7' in segment.read_bytes()
    assert found.feeds[0].end() == 7


def test_a_source_that_has_ended_without_a_row_says_so(folder, tmp_path):
    """Else the watermark would wait for it, and with it every row without a partner."""
    (tmp_path / "none").mkdir()
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "none/0.parquet")
    none = folder | {"path": f"{tmp_path}/none", "log": f"{tmp_path}/log-none", "source": 1}
    found = Streams([feed | {"ends": True} for feed in (folder, none)], {0: READING, 1: READING}, 2)
    for feed in found.feeds.values():
        feed.discover()
    start, end = ({n: at(feed) for n, feed in found.feeds.items()} for at in (begin_of, end_of))
    assert found.between(start, end).report.progress == {0: ENDED, 1: ENDED}


def begin_of(feed):
    return feed.begin()


def end_of(feed):
    return feed.end()
