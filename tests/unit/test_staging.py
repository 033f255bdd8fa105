"""Staged files: cut at a size, and dealt to Hive folders that have Spark's names."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.results import staging
from joinengine.results.folders import check_partitions, partitioned
from joinengine.results.merging import MergeTask, merge
from joinengine.results.staging import SPARK_ROW, Cutting, staged_files
from joinengine.results.targets import ToParquet
from joinengine.wire.codec import decode, encode
from joinengine.world.memory import MemoryWorld
from joinengine.world.world import MACHINE

UTC_US = pa.timestamp("us", "UTC")
NOON = dt.datetime(2024, 1, 1, 12, 0, 0, 500000, tzinfo=dt.UTC)
NOTHING = "__HIVE_DEFAULT_PARTITION__"


def folders(values, kind, zone="UTC"):
    batch = pa.record_batch({"k": pa.array(values, kind), "v": range(len(values))})
    found = partitioned(batch, ["k"], zone)
    assert all(rows.schema.names == ["v"] for _, rows in found)
    return {folder.removeprefix("k="): rows.column(0).to_pylist() for folder, rows in found}


@pytest.mark.parametrize(
    ("values", "kind", "names"),
    [
        ([7, None, -1], pa.int32(), ["-1", "7", NOTHING]),
        (["a/b", "", None, "é ="], pa.string(), ["a%2Fb", "é %3D", NOTHING]),
        (["'*:?\\{[]^\x7f\x01"], pa.string(), ["%27%2A%3A%3F%5C%7B%5B%5D%5E%7F%01"]),
        (['"#%'], pa.string(), ["%22%23%25"]),
        ([True, False], pa.bool_(), ["false", "true"]),
        ([Decimal("0.0000001"), Decimal("1.5")], pa.decimal128(9, 7), ["0.0000001", "1.5000000"]),
        ([dt.date(2024, 2, 3), dt.date(7, 1, 1)], pa.date32(), ["0007-01-01", "2024-02-03"]),
        (["a\0b"], pa.string(), ["a%00b"]),
        ([1.5, 1e7, float("nan"), -0.0], pa.float64(), ["-0.0", "1.0E7", "1.5", "NaN"]),
        ([0.1, float("-inf")], pa.float32(), ["-Infinity", "0.1"]),
        ([b"x", b"\xff"], pa.binary(), ["x", "\ufffd"]),
        ([NOON.replace(tzinfo=None)], pa.timestamp("us"), ["2024-01-01 12%3A00%3A00.5"]),
    ],
)  # fmt: skip
def test_folders_have_sparks_names(values, kind, names):
    assert sorted(folders(values, kind)) == sorted(names)


def test_dates_beyond_those_of_python_name_folders():
    days = pa.array([2_932_897, 0, None, -719_163], pa.int32())
    batch = pa.record_batch({"k": days.cast(pa.date32()), "v": range(4)})
    named = [folder for folder, _ in partitioned(batch, ["k"], "UTC")]
    assert sorted(named) == ["k=0000-12-31", "k=10000-01-01", "k=1970-01-01", f"k={NOTHING}"]


def test_instants_are_in_the_zone_of_the_session():
    assert list(folders([NOON], UTC_US, "Asia/Tokyo")) == ["2024-01-01 21%3A00%3A00.5"]


def test_rows_keep_their_order_and_each_folder_comes_once():
    found = folders(["b", "", "a", None, "b", "a"], pa.string())
    assert found == {"b": [0, 4], "a": [2, 5], NOTHING: [1, 3]}


def test_two_columns_make_two_levels():
    batch = pa.record_batch({"a": [1, 1, 2, 1], "v": [0, 1, 2, 3], "b=": ["x", "y", "x", "x"]})
    dealt = partitioned(batch, ["a", "b="], "UTC")
    found = {folder: rows.column(0).to_pylist() for folder, rows in dealt}
    assert found == {"a=1/b%3D=x": [0, 3], "a=1/b%3D=y": [1], "a=2/b%3D=x": [2]}


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("Day", pa.date32()),
        ("many", pa.list_(pa.int64())),
        ("d", pa.duration("us")),
    ]
)


def test_columns_of_folders_are_checked():
    assert check_partitions(SCHEMA, ["day", "id"], exact=False) == ("Day", "id")
    for names, message in (
        (["many"], "many is list.* cannot name a folder; cast it"),
        (["d"], "d is duration.* cannot name a folder"),
        (["id", "ID"], "id is given twice"),
        (["x"], "partitionBy: column 'x' does not exist"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            check_partitions(SCHEMA, names, exact=False)
    with pytest.raises(InvalidRequest, match="column 'day' does not exist"):
        check_partitions(SCHEMA, ["day"], exact=True)
    with pytest.raises(InvalidRequest, match="id, Day are all the columns"):
        check_partitions(pa.schema(list(SCHEMA)[:2]), ["id", "Day"], exact=True)


def write(cutting, batches):
    storage = MemoryWorld().storage("/out")
    files = staged_files(storage, "g1-x", cutting)
    for batch in batches:
        files.add(batch)
    sealed = files.close()
    assert {stored.name for stored in sealed} == {
        path.removeprefix("/out/") for path in storage.files
    }
    assert len({stored.name for stored in sealed}) == len(sealed)
    return sealed, {
        stored.name: pq.ParquetFile(pa.BufferReader(storage.map(stored.name))).read().to_pylist()
        for stored in sealed
    }


def rows_of(batches):
    return Counter(tuple(row.items()) for batch in batches for row in batch.to_pylist())


BATCHES = [
    pa.record_batch({"k": [i % 7 for i in range(n, n + 900)], "v": range(n, n + 900)})
    for n in (0, 900, 1800)
]


def test_plain_files_are_one_a_task():
    sealed, found = write(Cutting(), BATCHES)
    assert [stored.name for stored in sealed] == ["g1-x.parquet"]
    assert len(found["g1-x.parquet"]) == 2700
    assert write(Cutting(), [])[0] == []


def test_files_are_cut_at_the_target():
    sealed, found = write(Cutting(target_bytes=6000), BATCHES)
    assert len(sealed) > 2
    assert all(6000 <= stored.size_bytes < 20_000 for stored in sealed[:-1])
    kept = [row for rows in found.values() for row in rows]
    assert kept == [row for batch in BATCHES for row in batch.to_pylist()]


@pytest.mark.parametrize(("spread", "most"), [(1 << 30, 64), (1, 64), (1, 3), (20_000, 1)])
def test_each_row_lies_in_its_folder(monkeypatch, spread, most):
    monkeypatch.setattr(staging, "SPREAD_BYTES", spread)
    monkeypatch.setattr(staging, "MOST_OPEN", most)
    sealed, found = write(Cutting(partition_by=("k",)), BATCHES)
    back = [
        (("k", int(name.split("/")[1].removeprefix("k="))), *row.items())
        for name, rows in found.items()
        for row in rows
    ]
    assert Counter(back) == rows_of(BATCHES)
    if most == 64:  # none had to be closed: one file a folder
        assert len(sealed) == 7


def test_open_files_are_bounded(monkeypatch):
    monkeypatch.setattr(staging, "SPREAD_BYTES", 1)
    monkeypatch.setattr(staging, "MOST_OPEN", 3)
    files = staged_files(MemoryWorld().storage("/out"), "g1-x", Cutting(partition_by=("k",)))
    for batch in BATCHES:
        files.add(batch)
        assert len(files._open) <= 3


def test_a_name_too_long_for_a_folder_is_told_with_its_column(tmp_path):
    batch = pa.record_batch({"day": [1], "s": ["x" * 300], "v": [1]})
    files = staged_files(MACHINE.storage(str(tmp_path)), "g1-x", Cutting(partition_by=("day", "s")))
    files.add(batch)
    with pytest.raises(
        JoinEngineError, match=r"partitionBy: column 's' has the value 'xxx.* 302 b"
    ):
        files.close()


def test_tasks_are_told_how_to_cut():
    target = ToParquet("f", 3, Cutting("zstd", ("a", "b"), "Asia/Tokyo", 7))
    assert decode(encode(target), ToParquet) == target


def test_merged_files_keep_sparks_account_of_a_row():
    world, cutting = MemoryWorld(), Cutting(spark_row='{"type":"struct"}')
    storage = world.storage("/results")
    stored = []
    for name in ("g1-a", "g1-b"):
        files = staged_files(storage, name, cutting)
        files.add(BATCHES[0])
        stored += files.close()
    (one,) = merge(MergeTask("/results", tuple(stored), "", 1, cutting), world).files
    footer = pq.read_schema(pa.BufferReader(storage.get(one.name)))
    assert footer.metadata[SPARK_ROW.encode()] == b'{"type":"struct"}'


@pytest.mark.parametrize("texts", ["all others", "all the same"])
def test_rows_are_read_back_by_their_bytes(monkeypatch, texts):
    """A file of texts that are the same is small, and its rows are not."""
    monkeypatch.setattr(staging, "PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(staging, "_READ_ROWS", 64)
    n, long = 4000, "x" * 3000
    same = texts == "all the same"
    table = pa.record_batch(
        {"k": range(n), "t": [long if same else f"{i}{long}" for i in range(n)]}
    )
    storage = MemoryWorld().storage("/results")
    files = staged_files(storage, "g1-long", Cutting())
    files.add(table)
    (stored,) = files.close()
    pieces = list(staging.rows_of(storage, stored, 1 << 17))
    assert pa.Table.from_batches(pieces) == pa.Table.from_batches([table])
    assert max(piece.nbytes for piece in pieces) < 1.3 * (1 << 20)
    assert len(pieces) < 30
    whole = list(staging.gathered(pieces, 1 << 17))
    assert [piece.num_rows for piece in staging.gathered(pieces, 1)] == [p.num_rows for p in pieces]
    assert sum(piece.num_rows for piece in whole) == n
