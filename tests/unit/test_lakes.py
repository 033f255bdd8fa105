"""Tables of Delta and Iceberg: what is in them, what is refused before a start, and what waits."""

from __future__ import annotations

import json
import sys
from collections import Counter

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.transforms import TruncateTransform

from joinengine.model.errors import CheckpointMismatch, InvalidRequest, JoinEngineError
from joinengine.results import delta, iceberg_catalog
from joinengine.results.delta_actions import statistics
from joinengine.results.iceberg import PATIENCE_S
from joinengine.results.staging import staged_files
from tests.lakes import LAKES, DeltaLake, IceLake, deliver, rows_of, table_of


@pytest.fixture(params=LAKES, ids=lambda kind: kind.kind)
def lake(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
def ice(tmp_path):
    return IceLake(tmp_path)


@pytest.fixture
def lakehouse(tmp_path):
    return DeltaLake(tmp_path)


def test_each_batch_is_a_commit_and_an_empty_one_is_none(lake):
    sink, generation = deliver(lake, range(10), range(10, 20))
    before = lake.commits()
    sink.deliver(2, (), generation)
    assert lake.commits() == before
    assert lake.rows() == rows_of(table_of(range(20)))
    assert lake.elsewhere() == dict.fromkeys(range(20), 1)


def test_gathered_batches_are_one_commit(lake):
    sink, generation = lake.sink(every_s=60.0)
    first = lake.stage(sink, generation, range(10))
    before = lake.commits()
    held = ((0, first), (1, lake.stage(sink, generation, range(10, 20))))
    assert sink.deliver_held(held, lake.checkpoint, generation, whole=False) == held
    assert lake.commits() == before
    lake.world.slept_s += 61
    assert sink.deliver_held(held, lake.checkpoint, generation, whole=False) == ()
    assert lake.commits() == before + 1
    assert lake.rows() == rows_of(table_of(range(20)))
    again, generation = lake.sink()
    again.check_held(held, lake.checkpoint)
    assert again.deliver_held(held, lake.checkpoint, generation, whole=True) == ()
    assert lake.commits() == before + 1


@pytest.mark.parametrize("divided", [False, True])
def test_small_files_of_gathered_batches_are_merged_up_to_the_target_size(lake, divided):
    if divided:
        lake.partition()
    sink, generation = lake.sink(60.0, 1 << 20)
    parts = [range(n, n + 7) for n in range(0, 42, 7)]
    held = lake.held(sink, generation, *parts)
    # A driver that was killed behind its commit has left this.
    lake.checkpoint.storage.create("merged-00000000-00000001.json", b"[]")
    before, staged = lake.commits(), sum(len(files) for _, files in held)
    assert sink.deliver_held(held, lake.checkpoint, generation, whole=True) == ()
    assert lake.commits() == before + 1
    assert lake.rows() == rows_of(table_of(range(42)))
    assert lake.elsewhere() == dict.fromkeys(range(42), 1)
    places = len({tuple(one.name.split("/")[1:-1]) for _, files in held for one in files})
    assert staged > 2 * places
    assert len(lake.paths()) == places
    sink.clean((), range(generation + 1))
    assert not lake.strays()
    assert not [name for name in lake.checkpoint.storage.names() if name.startswith("merged-")]
    small, generation = lake.sink(60.0, 2000)
    more = [range(n, n + 200) for n in (100, 300, 500)]
    held = [(n + 6, files) for n, files in lake.held(small, generation, *more)]
    small.deliver_held(tuple(held), lake.checkpoint, generation, whole=True)
    assert len(lake.paths()) > places + 2
    assert lake.rows() == rows_of(table_of([*range(42), *range(100, 700)]))


def test_results_that_are_held_back_elsewhere_are_refused(lake):
    sink, generation = lake.sink(every_s=60.0)
    held = ((0, lake.stage(sink, generation, range(10))),)
    sink.check_held(held, lake.checkpoint)
    for one in held[0][1]:
        sink.staging.delete(one.name)
    with pytest.raises(CheckpointMismatch, match="holds back results of the batches 0 to 0"):
        sink.check_held(held, lake.checkpoint)


def test_partitions(lake):
    lake.partition()
    deliver(lake, range(10), range(10, 30))
    assert lake.rows() == rows_of(table_of(range(30)))
    assert not lake.strays()
    if lake.kind == "delta":
        parts = pa.table(lake.opened().get_add_actions(flatten=True)).to_pylist()
        assert {one["partition.s"] for one in parts} == {None, "s1", "s2"}
        assert [one for one in lake.opened().partitions() if one["s"] == "s1"]
    else:
        parts = lake.opened().inspect.files()["partition"].to_pylist()
        assert {(one["s"], one["at_day"].day) for one in parts} == {
            (text, day) for text in (None, "s1", "s2") for day in (1, 2, 3)
        }
        found = lake.opened().scan(row_filter="s = 's1'")
        assert found.to_arrow().num_rows == 10
        assert len(list(found.plan_files())) < len(parts)


def test_iceberg_tells_null_from_empty_text_in_partitions(ice):
    ice.partition()
    sink, generation = ice.sink()
    made = sink.target(generation)

    files = staged_files(ice.world.storage(made.folder), "g1-x", made.cutting)
    texts = ["", None, "a/b =", "", "__HIVE"]
    rows = table_of(range(5)).set_column(1, "s", pa.array(texts, pa.string()))
    files.add(rows.combine_chunks().to_batches()[0])
    sink.deliver(0, tuple(files.close()), generation)
    assert ice.rows() == rows_of(rows)
    parts = ice.opened().inspect.files()["partition"].to_pylist()
    assert sorted(str(one["s"]) for one in parts) == ["", "None", "__HIVE", "a/b ="]


def test_readers_skip_files_by_their_statistics(lake):
    deliver(lake, range(10), range(100, 110))
    if lake.kind == "delta":
        found = pa.table(lake.opened().get_add_actions(flatten=True)).to_pylist()
        assert sorted((one["min.a"], one["max.a"]) for one in found) == [
            *((0, 8), (1, 9)), *((100, 108), (101, 109))
        ]  # fmt: skip
        assert sum(one["num_records"] for one in found) == 20
        assert sum(one["null_count.s"] for one in found) == 7
    else:
        assert len(list(ice_scan(lake, "a > 50"))) == 2
    assert len(lake.paths()) == 4


def ice_scan(lake, where):
    return lake.opened().scan(row_filter=where).plan_files()


def test_statistics_say_nothing_that_is_not_certain(tmp_path):
    long = "x" * 100
    rows = pa.table(
        {
            "f": [1.0, float("nan")],
            "t": [long, long],
            "b": [True, False],
            "bytes": [b"a", b"b"],
            "nested": [{"a": 1}, None],
            "n": pa.array([None, None], pa.int64()),
            "i": [3, 1],
        }
    )
    pq.write_table(rows, tmp_path / "x.parquet")
    found = statistics(pq.read_metadata(tmp_path / "x.parquet"), rows.schema)
    assert found["minValues"] == {"t": "x" * 64, "i": 1}
    assert found["maxValues"] == {"i": 3}
    assert found["nullCount"] == {"f": 0, "t": 0, "b": 0, "bytes": 0, "n": 2, "i": 0}


def test_dates_beyond_those_of_python_have_no_bounds(tmp_path):
    days, instants = pa.array([0, 3_700_000], pa.int32()), pa.array([0, 1 << 60], pa.int64())
    rows = pa.table(
        {"d": days.cast(pa.date32()), "t": instants.cast(pa.timestamp("us")), "i": [1, 2]}
    )
    pq.write_table(rows, tmp_path / "x.parquet")
    found = statistics(pq.read_metadata(tmp_path / "x.parquet"), rows.schema)
    assert (found["minValues"], found["maxValues"]) == ({"i": 1}, {"i": 2})
    assert found["nullCount"] == {"d": 0, "t": 0, "i": 0}


def test_instants_beyond_those_of_python_go_into_tables(lake):
    """A file that holds any has no bounds of its instants; others keep theirs."""
    far = range(30_000_000, 30_000_015)
    deliver(lake, range(10), far, range(20, 30))
    assert lake.elsewhere() == Counter([*range(10), *far, *range(20, 30)])


def test_iceberg_takes_structs_whatever_the_numbers_of_their_fields(ice):
    inner = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.struct([("z", pa.string())])))])
    nested = pa.schema([("a", pa.int64()), ("s", inner), ("more", pa.struct([("x", pa.int8())]))])
    ice.catalog().create_table("shop.nested", nested)
    assert ice.check(nested, "shop.nested") == []
    other = nested.set(1, pa.field("s", pa.struct([("x", pa.string())])))
    with pytest.raises(InvalidRequest, match=r"column s of the table shop.nested is struct<x: opt"):
        ice.check(other, "shop.nested")


def test_duckdb_reads_the_table_by_its_own_extension_where_there_is_one(lakehouse):
    deliver(lakehouse, range(10))
    connection = duckdb.connect()
    try:
        connection.execute("load delta")
    except duckdb.Error:
        pytest.skip("DuckDB's extension for Delta is not installed here")
    found = connection.execute(f"select count(*) from delta_scan('{lakehouse.place}')").fetchone()
    assert found == (10,)


def test_a_column_of_the_table_may_be_missing_in_results(lake):
    wider = lake.schema.append(pa.field("more", pa.float64()))
    narrow, lake.schema = lake.schema, wider
    if lake.kind == "delta":
        lake.target().make()
    else:
        lake.again()
    lake.schema = narrow
    deliver(lake, range(10))
    assert lake.rows() == rows_of(table_of(range(10)))


VARIANT = pa.struct([pa.field("metadata", pa.binary(), metadata={"variant": "true"})])
REFUSED = [
    (lambda schema: schema.append(pa.field("new", pa.int64())), "has no column new; its columns"),
    (
        lambda schema: schema.set(0, pa.field("a", pa.string())),
        r"column a of the table .* is long, but that of the results is string",
    ),
    (
        lambda schema: schema.set(0, pa.field("a", pa.duration("us"))),
        "column a is duration.us., which .* tables do not have",
    ),
    (
        lambda schema: schema.set(0, pa.field("a", pa.null())),
        "column a is null, which .* tables do not have",
    ),
    (
        lambda schema: schema.set(0, pa.field("a", VARIANT)),
        "column a is a variant, which Delta tables do not have|column a of the table .* is long",
    ),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_results_that_do_not_fit_are_refused(lake, change, said):
    deliver(lake, range(10))
    with pytest.raises(InvalidRequest, match=said):
        lake.check(change(lake.schema))


def test_not_null_columns(lake):
    whole = lake.schema
    lake.schema = pa.schema([field.with_nullable(field.name != "s") for field in whole])
    if lake.kind == "delta":
        lake.target().make()
    else:
        lake.again()
    with pytest.raises(InvalidRequest, match=r"column s of the table .* is NOT NULL, and the resu"):
        lake.check(whole.remove(1))
    lake.schema = whole
    sink, generation = lake.sink()
    files = lake.stage(sink, generation, [1, 2])
    sink.deliver(0, files, generation)
    files = lake.stage(sink, generation, [3])
    with pytest.raises(JoinEngineError, match=r"column s of table .* is NOT NULL, and a result"):
        sink.deliver(1, files, generation)
    assert lake.rows().total() == 2


def test_delta_refuses_what_it_cannot_do(lakehouse):

    with pytest.raises(InvalidRequest, match=r"partitionBy: .* does not exist"):
        lakehouse.check(partitions=("nothing",))
    lakehouse.partition()
    deliver(lakehouse, range(10))
    assert lakehouse.check() == ("s",)
    with pytest.raises(InvalidRequest, match="is partitioned by s; give the same columns"):
        lakehouse.check(partitions=("a",))
    DeltaTable(lakehouse.place).alter.add_constraint({"positive": "a >= 0"})
    with pytest.raises(InvalidRequest, match=r"asks of its writers delta.constraints.positive"):
        lakehouse.check()


def test_delta_makes_no_table_among_other_files(lakehouse):
    lakehouse.data.mkdir()
    pq.write_table(table_of(range(3)), lakehouse.data / "old.parquet")
    with pytest.raises(InvalidRequest, match="is no Delta table, but holds Parquet files such as"):
        lakehouse.check()


def test_a_damaged_log_is_named(lakehouse):
    deliver(lakehouse, range(10))
    log = sorted((lakehouse.data / "_delta_log").glob("*.json"))[0]
    log.write_text("no json")
    with pytest.raises(JoinEngineError, match="cannot be read or made"):
        lakehouse.check()


def test_iceberg_refuses_what_is_not_there(ice, tmp_path):
    with pytest.raises(InvalidRequest, match=r"the table shop.nothing does not exist in the catal"):
        ice.check(name="shop.nothing")
    with pytest.raises(InvalidRequest, match="expected a table with its namespace"):
        ice.check(name="sales")
    with pytest.raises(InvalidRequest, match=r"catalogue 'nowhere' is not configured .*URI m"):
        iceberg_catalog.Catalog("nowhere").checked("a.b")
    lost = {"type": "sql", "uri": f"sqlite:///{tmp_path}/none/x.db", "token": "hidden-secret"}
    with pytest.raises(InvalidRequest, match=r"does not answer .*unable to open") as refused:
        iceberg_catalog.Catalog("lost", lost).checked("a.b")
    assert "hidden" not in str(refused.value)


def test_iceberg_refuses_partitions_that_it_cannot_write(ice):
    ice.schema = ice.schema.append(pa.field("d", pa.decimal128(9, 2)))
    ice.spec = (("d", TruncateTransform(4), "d_truncated"),)
    ice.again()
    with pytest.raises(InvalidRequest, match=r"is partitioned by truncate\[4\] of d"):
        ice.check()


def test_secrets_of_a_catalogue_are_not_shown():
    catalog = iceberg_catalog.Catalog("x", {"uri": "postgresql://u:pass@h/d", "token": "abcd-efg"})
    assert "pass" not in repr(catalog)
    said = catalog.reason(ValueError("at postgresql://u:pass@h/d and //a:b@c with abcd-efg"))
    assert not any(word in said for word in ("pass", "abcd", "a:b"))


def test_a_catalogue_that_is_away_is_waited_for(ice):
    sink, generation = deliver(ice, range(10))
    files = ice.stage(sink, generation, range(10, 20))
    away = ice.database.rename(ice.root / "away")
    ice.database.mkdir()  # so that nobody makes another one

    def comes_back():
        if ice.world.slept_s > 20 and away.exists():
            ice.database.rmdir()
            away.rename(ice.database)

    ice.world.wakes = comes_back
    sink.deliver(1, files, generation)
    assert 20 < ice.world.slept_s < PATIENCE_S
    assert ice.rows() == rows_of(table_of(range(20)))


def test_a_catalogue_that_stays_away_is_named(ice):
    sink, generation = deliver(ice, range(10))
    files = ice.stage(sink, generation, range(10, 20))
    ice.database.rename(ice.root / "away")
    ice.database.mkdir()
    with pytest.raises(JoinEngineError, match="did not answer within 60 s"):
        sink.deliver(1, files, generation)


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("deltalake", delta.library, "delta"),
        ("pyiceberg.catalog", iceberg_catalog.library, "iceberg"),
    ],
)
def test_a_missing_package_is_named_with_its_install_line(name, library, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidRequest, match=rf"run pip install 'joinengine\[{extra}\]'"):
        library()


def test_a_table_of_iceberg_without_the_package(monkeypatch):
    for name in ("pyiceberg", "pyiceberg.catalog", "pyiceberg.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidRequest, match=r"install 'joinengine\[iceberg\]'"):
        iceberg_catalog.Catalog().checked("shop.sales")


def test_results_of_the_sink_before_are_taken_over_once(lake):
    """A checkpoint that has delivered through Spark holds the results of its last batch."""
    sink, generation = lake.sink()
    before = lake.checkpoint.results
    pq.write_table(table_of(range(10)), f"{before.folder}/g1-old.parquet")
    files = (before.seal("g1-old.parquet"),)
    sink.deliver(0, files, generation)
    sink.deliver(0, files, generation)
    assert lake.rows() == rows_of(table_of(range(10)))
    other = type(lake)(lake.root / "other")
    sink, generation = other.sink()
    with pytest.raises(CheckpointMismatch, match="made the results of its last batch"):
        sink.deliver(0, files, generation)


def test_the_note_of_a_checkpoint_is_checked(lake):
    deliver(lake, range(10))
    note = lake.checkpoint.storage.get("table.json")
    assert set(json.loads(note)) == {"table", "id", "crc32"}
    lake.checkpoint.storage.put("table.json", b"{")
    with pytest.raises(JoinEngineError, match=r"table.json, which names the table .* is truncated"):
        lake.sink()
