"""In which order the files of a folder are read: by modification, by name, by the times in them."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.model.errors import InvalidRequest
from joinengine.sources.feeds import FolderFeed, open_feed
from joinengine.sources.footer_times import least_time
from joinengine.sources.listing import Expected, FileOrder, Listing, OnBadFile
from joinengine.sources.positions import Logged, table_of
from joinengine.sources.schemas import as_text
from joinengine.sources.sourcelog import SourceLog
from joinengine.world.world import MACHINE

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
#: File -> seconds of its rows after the epoch, in two row groups; written in another order.
FILES = {
    "b": [40, 50, 41, 20],
    "d": [0, 9, None, 1],
    "a": [11, 30, 12, 10],
    "c": [None, None, None, None],
}


def put(folder, name, seconds, modified, unit="us", **options):
    times = [None if s is None else EPOCH.timestamp() + s for s in seconds]
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    values = [None if t is None else int(t) * scale for t in times]
    table = pa.table({"at": pa.array(values, pa.timestamp(unit, "UTC")), "n": range(len(values))})
    path = folder / f"{name}.parquet"
    pq.write_table(table, path, row_group_size=2, **options)
    os.utime(path, (modified, modified))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "in"
    made.mkdir()
    for modified, (name, seconds) in enumerate(FILES.items()):
        unit = ("ns", "us", "ms", "us")[modified]
        put(made, name, seconds, modified + 1, unit)
    return made


def names(entries):
    return "".join(os.path.basename(one["file"])[0] for one in entries)


def listing(folder, order, most=None, logged=None, **expected):
    time = "at" if order is FileOrder.TIME else None
    wanted = Expected(order=order, time=time, **expected)
    return Listing(str(folder), wanted, logged or Logged(), most=most)


@pytest.mark.parametrize(
    ("order", "found"),
    [(FileOrder.MODIFIED, "bdac"), (FileOrder.NAME, "abcd"), (FileOrder.TIME, "cdab")],
)
def test_files_are_put_in_order(folder, order, found):
    assert names(listing(folder, order).look(0.0)) == found


@pytest.mark.parametrize("order", FileOrder)
def test_the_order_does_not_depend_on_how_many_a_look_takes(folder, order):
    whole = names(listing(folder, order).look(0.0))
    logged, found = Logged(), ""
    some = listing(folder, order, most=1, logged=logged)
    for _ in FILES:
        entries = some.look(0.0)
        assert len(entries) == 1
        assert some.has_more == (len(found) < len(FILES) - 1)
        logged.add(table_of(entries))
        found += names(entries)
    assert found == whole


def test_what_comes_later_is_read_later_and_a_restart_reads_the_log(folder, tmp_path):
    def feed():
        log = SourceLog(MACHINE.storage(f"{tmp_path}/log"), 1)
        return FolderFeed(str(folder), 100, log, Expected(order=FileOrder.TIME, time="at"))

    def order(of):
        groups = of.row_groups(0, of.end())
        return "".join(os.path.basename(group.file)[0] for group in groups[::2])

    first = feed()
    first.discover()
    assert order(first) == "cdab"
    put(folder, "e", [-5, -4], 1)
    first.discover()
    assert order(first) == order(feed()) == "cdabe"


def test_a_file_without_statistics_is_a_bad_one(folder):
    put(folder, "e", [5, 6], 9, write_statistics=False)
    with pytest.raises(InvalidRequest, match=r"e\.parquet has no statistics of column 'at'"):
        listing(folder, FileOrder.TIME).look(0.0)
    skipping = listing(folder, FileOrder.TIME, on_bad_file=OnBadFile.SKIP)
    entries = skipping.look(0.0)
    assert [one["rows"] for one in entries if "skipped" in one] == [[]]
    assert names(entries) == "cedab"


@pytest.mark.parametrize(
    "others",
    [
        pa.struct([("at", pa.timestamp("us"))]),
        pa.struct([("at", pa.string()), ("b", pa.list_(pa.struct([("c", pa.int64())])))]),
        pa.map_(pa.string(), pa.timestamp("us")),
        pa.list_(pa.timestamp("us")),
    ],
)
def test_the_column_is_found_among_nested_ones(others, tmp_path):
    """`a.at` is a field of the struct `a`, and a column of that name beside it."""
    nested = pa.array([None, None], others)
    times = pa.array([7_000_000, 3_000_000], pa.timestamp("us"))
    table = pa.table({"a": nested, "b": nested, "a.at": times, "c": nested})
    pq.write_table(table, tmp_path / "0.parquet")
    metadata = pq.read_metadata(tmp_path / "0.parquet")
    assert least_time(metadata, "a.at") == 3_000_000
    assert least_time(metadata, "nothing") == -math.inf


def test_files_without_rows_and_doubled_columns_say_nothing(tmp_path):
    times = pa.array([], pa.timestamp("us"))
    pq.write_table(pa.table({"at": times}), tmp_path / "empty.parquet")
    assert least_time(pq.read_metadata(tmp_path / "empty.parquet"), "at") == -math.inf
    twice = pa.Table.from_arrays([times, times], names=["at", "at"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    assert least_time(pq.read_metadata(tmp_path / "twice.parquet"), "at") == -math.inf
    numbers = pa.table({"at": pa.array([1])})
    pq.write_table(numbers, tmp_path / "numbers.parquet")
    assert least_time(pq.read_metadata(tmp_path / "numbers.parquet"), "at") == -math.inf


def test_a_feed_is_opened_with_its_order(folder):
    options = {"kind": "folder", "path": str(folder), "rows_per_interval": 1, "order": "time"}
    columns = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    found = open_feed(options | {"time": "at", "columns": as_text(columns)})
    found.discover()
    assert os.path.basename(found.row_groups(0, 1)[0].file) == "c.parquet"
