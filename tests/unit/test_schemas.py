"""The columns of files: types that Spark lacks, types that grow, folders named for values."""

from __future__ import annotations

import datetime as dt
import shutil
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from joinengine.model.errors import InvalidRequest
from joinengine.sources.feeds import FolderFeed
from joinengine.sources.listing import Expected, OnBadFile, survey
from joinengine.sources.readings import Reading
from joinengine.sources.schemas import (
    cast,
    misfit,
    partition_columns,
    partition_value,
    plain,
    wider,
)
from joinengine.spark.sources.types import (
    arrow_schema,
    folder_columns,
    said_columns,
    spark_schema,
)
from tests.unit.files import COLUMNS, feed, put, rows_of


@pytest.fixture
def folder(tmp_path):
    put(tmp_path / "in", "0.parquet", when=1000, id=[1, 2], name=["a", "b"])
    return tmp_path / "in"


# Types

AT = dt.datetime(2024, 1, 1)
KINDS = [
    (pa.array([200], pa.uint8()), pa.int16(), 200),
    (pa.array([60_000], pa.uint16()), pa.int32(), 60_000),
    (pa.array([2**32 - 1], pa.uint32()), pa.int64(), 2**32 - 1),
    (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), Decimal(2**64 - 1)),
    (pa.array([1.5], pa.float16()), pa.float32(), 1.5),
    (pa.array([1000], pa.time32("ms")), pa.time64("ns"), dt.time(0, 0, 1)),
    (pa.array([1_704_067_200_000_000_001], pa.timestamp("ns")), pa.timestamp("us"), AT),
    (
        pa.array([-1], pa.timestamp("ns", "UTC")),
        pa.timestamp("us", "UTC"),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),
    ),
    (pa.array(["a"]).dictionary_encode(), pa.string(), "a"),
    (pa.array(["a"], pa.string_view()), pa.string(), "a"),
    (pa.array([b"a"], pa.large_binary()), pa.binary(), b"a"),
    (pa.array([b"abc"], pa.binary(3)), pa.binary(), b"abc"),
    (pa.array([bytes(16)], pa.uuid()), pa.binary(), bytes(16)),
    (pa.array([Decimal(1)], pa.decimal256(30, 2)), pa.decimal128(30, 2), Decimal(1)),
    (pa.array([[1]], pa.list_(pa.uint32())), pa.list_(pa.int64()), [1]),
    (
        pa.array([{"a": 1}], pa.struct([("a", pa.uint8())])),
        pa.struct([("a", pa.int16())]),
        {"a": 1},
    ),
    (
        pa.array([[1_001]], pa.list_(pa.timestamp("ns"))),
        pa.list_(pa.timestamp("us")),
        [dt.datetime(1970, 1, 1, microsecond=1)],
    ),
]


@pytest.mark.parametrize(("column", "kind", "value"), KINDS, ids=lambda one: str(one)[:30])
def test_types_are_read_as_spark_reads_them(tmp_path, column, kind, value):
    put(tmp_path / "in", "0.parquet", x=column)
    found = folder_columns(tmp_path / "in", None, OnBadFile.FAIL)
    assert not found.others
    assert plain(found.readable.field("x").type) == kind
    files = feed(tmp_path / "in", columns=found.all)
    files.discover()
    assert rows_of(files, Reading(found.readable)) == ([(value,)], [])


NS, US = pa.timestamp("ns"), pa.timestamp("us")
#: A value in nanoseconds, by the type that holds it -> what stands in its place.
NESTED = {
    pa.list_(NS): lambda v: [v, v - 1],
    pa.large_list(NS): lambda v: [v],
    pa.list_(NS, 2): lambda v: [v, v - 1],
    pa.struct([("at", NS), ("b", pa.string())]): lambda v: {"at": v, "b": "b"},
    pa.map_(pa.string(), NS): lambda v: [("k", v)],
    pa.map_(NS, pa.list_(NS)): lambda v: [(v, [v + 1])],
    pa.list_(pa.struct([("at", NS)])): lambda v: [{"at": v}, None],
}


def in_ns(value):
    """A value with instants in place of numbers, and with what they are in microseconds."""
    if isinstance(value, int):
        return pa.scalar(value, NS), dt.datetime(1970, 1, 1) + dt.timedelta(
            microseconds=value // 1000
        )
    if isinstance(value, dict):
        pairs = {key: in_ns(inner) for key, inner in value.items()}
        return tuple({key: both[n] for key, both in pairs.items()} for n in (0, 1))
    if isinstance(value, list | tuple):
        pairs = [in_ns(inner) for inner in value]
        return tuple(type(value)(both[n] for both in pairs) for n in (0, 1))
    return value, value


@pytest.mark.parametrize("kind", NESTED, ids=str)
@pytest.mark.parametrize("part", [slice(0, None), slice(2, None), slice(1, 3), slice(3, 3)])
def test_nanoseconds_inside_are_cut_down_as_those_alone(kind, part):
    values = [None if v is None else NESTED[kind](v) for v in (-1, -1000, None, -1001, 0, 1999)]
    given, expected = zip(*(in_ns(value) for value in values), strict=True)
    column = pa.array(given, kind)[part]
    found = cast(column, plain(kind))
    found.validate(full=True)
    assert found.to_pylist() == list(expected[part])


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_nanoseconds_in_the_hour_that_clocks_repeat_are_cut_down(zone):
    hour = 1_792_888_200 * 10**9  # 02:30 in Berlin, when it is summer time still
    column = pa.array([hour + 1500, hour + 3600 * 10**9, -1, None], pa.timestamp("ns", zone))
    found = cast(column, pa.timestamp("us", zone and "UTC")).cast(pa.int64())
    assert found.to_pylist() == [hour // 1000 + 1, hour // 1000 + 3600 * 10**6, -1, None]


def test_int96_holds_instants_of_all_years(tmp_path):
    (tmp_path / "in").mkdir()
    at = [dt.datetime(1600, 1, 1, 0, 0, 0, 1), dt.datetime(2024, 1, 1), dt.datetime(9999, 1, 1)]
    table = pa.table({"x": pa.array(at, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "in/0.parquet", use_deprecated_int96_timestamps=True)
    found = folder_columns(tmp_path / "in", None, OnBadFile.FAIL)
    assert found.readable.field("x").type == pa.timestamp("us", "UTC")
    files = feed(tmp_path / "in", columns=found.all)
    files.discover()
    assert rows_of(files, Reading(found.readable))[0] == [(t.replace(tzinfo=dt.UTC),) for t in at]


def test_a_type_that_spark_has_not_is_set_apart(tmp_path):
    put(tmp_path / "in", "0.parquet", x=pa.array([Decimal(1)], pa.decimal256(50, 2)), id=[1])
    found = folder_columns(tmp_path / "in", None, OnBadFile.FAIL)
    assert found.readable.names == ["id"]
    assert found.others == {"x": pa.decimal256(50, 2)}
    assert found.all.names == ["id", "x"]


WIDER = [
    (pa.int8(), pa.int32(), pa.int32()),
    (pa.null(), pa.string(), pa.string()),
    (pa.int32(), pa.float32(), pa.float64()),
    (pa.int64(), pa.float64(), None),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.int32(), pa.decimal128(5, 2), pa.decimal128(12, 2)),
    (pa.decimal128(10, 2), pa.decimal128(12, 5), pa.decimal128(13, 5)),
    (pa.decimal128(38, 0), pa.decimal128(38, 10), None),
    (pa.string(), pa.int64(), None),
    (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
    (pa.list_(pa.int8()), pa.list_(pa.int64()), pa.list_(pa.int64())),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16())]), pa.struct([("a", pa.int16())])),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), None),
    (
        pa.map_(pa.string(), pa.int8()),
        pa.map_(pa.string(), pa.int16()),
        pa.map_(pa.string(), pa.int16()),
    ),
]


@pytest.mark.parametrize(("one", "other", "both"), WIDER, ids=str)
def test_the_wider_of_two_types(one, other, both):
    assert wider(one, other) == wider(other, one) == both
    if both is not None:
        assert misfit(pa.schema([("x", one)]), pa.schema([("x", both)])) is None
        fits = misfit(pa.schema([("x", both)]), pa.schema([("x", one)])) is None
        assert fits == (both == one)


def test_the_columns_of_a_stream_are_those_of_all_its_files(folder):
    put(folder, "1.parquet", when=2000, id=pa.array([1], pa.int8()), price=[Decimal("1.50")])
    put(folder, "2.parquet", when=3000, price=[2])
    found = folder_columns(folder, None, OnBadFile.FAIL).readable
    assert found.names == ["id", "name", "price"]
    assert found.types == [pa.int64(), pa.string(), pa.decimal128(21, 2)]


def test_files_whose_types_do_not_go_together(folder):
    put(folder, "1.parquet", when=2000, id=["x"])
    clash = "column 'id' is string in .*1.parquet and int64 in .*0.parquet"
    with pytest.raises(InvalidRequest, match=clash):
        folder_columns(folder, None, OnBadFile.FAIL)
    assert folder_columns(folder, None, OnBadFile.SKIP).readable.types == COLUMNS.types


def test_footers_are_read_once(folder, monkeypatch):
    for number in range(1, 12):
        put(folder, f"{number}.parquet", id=[number], name=["x"])
    footers, faults = survey(folder)
    assert (len(footers), faults) == (12, {})
    monkeypatch.setattr(pq, "read_metadata", lambda path: pytest.fail(f"{path} is read again"))
    known = FolderFeed(str(folder), 100, None, Expected(COLUMNS), footers)
    known.discover()
    assert known.end() == 12


# Folders that are named for a value

INFERRED = {
    "int": (["1", "2"], pa.int32()),
    "leading zeros": (["007", "8"], pa.int32()),
    "bigint": (["99999999999", "1"], pa.int64()),
    "decimal": (["9" * 25, "1"], pa.decimal128(25, 0)),
    "more than 38 digits": (["9" * 39, "1"], pa.float64()),
    "least int": (["-2147483648"], pa.int32()),
    "power": (["1e5"], pa.decimal128(6, 0)),
    "power and int": (["1e5", "2"], pa.decimal128(10, 0)),
    "point without digits": (["1."], pa.decimal128(1, 0)),
    "many digits": (["1e38"], pa.float64()),
    "boundless power": (["1e99999999999999999999"], pa.float64()),
    "digits of Arabic": (["\u0663"], pa.string()),
    "double": (["1.5", "2"], pa.float64()),
    "bigint and double": (["99999999999", "2.5"], pa.string()),
    "date": (["2026-03-01", "2026-03-02"], pa.date32()),
    "no date": (["2026-03-01", "2026-13-02"], pa.string()),
    "timestamp": (["2026-03-01 10%3A00%3A00", "2026-03-01"], pa.timestamp("us", "UTC")),
    "text": (["1", "x"], pa.string()),
    "boolean": (["true", "false"], pa.string()),
    "null": (["__HIVE_DEFAULT_PARTITION__", "7"], pa.int32()),
    "nulls": (["__HIVE_DEFAULT_PARTITION__"], pa.string()),
}


@pytest.mark.parametrize(("values", "kind"), INFERRED.values(), ids=INFERRED)
def test_columns_of_folder_names_have_the_types_that_spark_infers(values, kind):
    paths = [f"/in/p={value}/0.parquet" for value in values]
    assert partition_columns(paths, "/in") == pa.schema([("p", kind)])


@pytest.mark.parametrize(("value", "read"), [("1e5", 100_000), ("1.", 1), ("\u0663", "\u0663")])
def test_numbers_of_odd_form_are_read_as_inferred(value, read):
    kind = partition_columns([f"/in/p={value}/0.parquet"], "/in").field("p").type
    assert partition_value(value, kind, "UTC").as_py() == read


def test_values_of_folder_names_are_read(folder):
    shutil.rmtree(folder)
    put(folder, "day=2026-03-01/n=7/0.parquet", when=1, id=[1], name=["a"])
    put(folder, "day=2026-03-02/n=__HIVE_DEFAULT_PARTITION__/0.parquet", when=2, id=[2], n=[5])
    found = folder_columns(folder, None, OnBadFile.FAIL)
    assert found.readable.names == ["id", "name", "day", "n"]
    files = feed(folder, columns=found.all)
    files.discover()
    rows, _ = rows_of(files, Reading(found.readable, root=str(folder)))
    assert rows == [(1, "a", dt.date(2026, 3, 1), 7), (2, None, dt.date(2026, 3, 2), None)]
    put(folder, "day=soon/n=1/0.parquet", id=[1])
    with pytest.raises(InvalidRequest, match="has 'soon' for the partition column 'day'"):
        files.discover()


def test_instants_in_folder_names_are_of_the_session_s_zone():
    found = partition_value("2026-03-01 10:00:00", pa.timestamp("us", "UTC"), "Asia/Tokyo")
    assert found.as_py() == dt.datetime(2026, 3, 1, 1, tzinfo=dt.UTC)


def test_parts_of_columns_of_a_dataframe_may_be_null():
    """As in a row without a partner, also those of a variant, which stays one."""
    inside = StructType([StructField("a", LongType(), nullable=False)])
    kinds = {"v": VariantType(), "s": inside, "m": MapType(StringType(), inside, False)}
    schema = arrow_schema(StructType([StructField(n, kind, False) for n, kind in kinds.items()]))
    alone = schema.empty_table().take(pa.array([None], pa.int64()))
    pq.write_table(alone, pa.BufferOutputStream())
    assert spark_schema(schema)["v"].dataType == VariantType()
    assert str(schema.field("m").type.item_type) == "struct<a: int64>"


def test_what_schema_says_is_not_null_may_be_null():
    """As in Spark: a file holds what it holds."""
    inner = StructType([StructField("a", LongType(), nullable=False)])
    columns = [
        StructField(name, kind, nullable=False)
        for name, kind in (
            ("k", LongType()),
            ("s", inner),
            ("l", ArrayType(inner, containsNull=False)),
        )
    ]
    said = said_columns(StructType(columns))
    rows = [[None], [{"a": None}], [[None, {"a": None}]]]
    for field, values in zip(said, rows, strict=True):
        assert cast(pa.array(values), field.type).to_pylist() == values
