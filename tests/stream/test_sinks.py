"""Every sink gets every result; ours exactly once."""

from __future__ import annotations

import datetime as dt
import json
import os
import traceback
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import (
    InvalidRequest,
    JoinEngineError,
    StreamJoin,
    TakenOver,
    active,
    equi,
    parquet_stream,
    within,
)
from joinengine.model.errors import DamagedState
from joinengine.spark.query.frame_sinks import TransformedParquetSink
from joinengine.spark.sources.frames import read_exactly
from joinengine.spark.sources.types import spark_schema
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.world import MACHINE
from tests.stream.cases import pairs, streams
from tests.stream.conftest import ended, found_in, oracle, same

pytestmark = pytest.mark.spark


@pytest.fixture
def writer(spark, folders, tmp_path):
    joined = StreamJoin(*streams(spark, folders, (80, 240)), on=equi("id", "order_id"), instances=3)

    def make(function=None):
        chosen = joined if function is None else joined.transform(function)
        return chosen.writeStream.option("checkpointLocation", tmp_path / "checkpoint").trigger(
            availableNow=True
        )

    return make


def expected(folders):
    return oracle(pairs(folders, "id = order_id"))


def rows(frame):
    return Counter(tuple(row) for row in frame.collect())


def test_foreach_batch_gets_frames_and_numbers(writer, folders):
    seen = {}
    query = writer().foreachBatch(lambda frame, batch: seen.update({batch: rows(frame)})).start()
    query.awaitTermination()
    assert list(seen) == [0, 1]
    assert sum(seen.values(), Counter()).total() == expected(folders).total()
    seen.clear()
    writer().foreachBatch(lambda frame, batch: seen.update({batch: 1})).start().awaitTermination()
    assert not seen, "a start after a clean end hands nothing on again"


def test_staged_results_are_read_as_written_whatever_the_session_says(spark, tmp_path):
    """Settings for the user's own files had old dates shifted, and damaged files left out."""
    dates = [dt.date(1500, 1, 1), dt.date(2026, 1, 1)]
    for name in ("whole", "damaged"):
        pq.write_table(pa.table({"day": dates}), tmp_path / f"{name}.parquet")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    settings = {
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.files.ignoreCorruptFiles": "true",
        "spark.sql.files.ignoreMissingFiles": "true",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        columns = spark_schema(pa.schema([("day", pa.date32())]))
        whole = read_exactly(spark, columns, str(tmp_path / "whole.parquet"))
        assert [row.day for row in whole.collect()] == dates
        with pytest.raises(Exception, match=r"damaged\.parquet"):
            read_exactly(spark, columns, str(tmp_path)).collect()
        whole = read_exactly(spark, columns, str(tmp_path / "whole.parquet"))
        (tmp_path / "whole.parquet").unlink()
        with pytest.raises(Exception, match=r"whole\.parquet"):
            whole.collect()
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_a_start_says_all_that_sparks_does(writer, folders, tmp_path):
    query = writer().start(
        str(tmp_path / "out"), "parquet", "append", "day", "said", compression="zstd"
    )
    assert query.name == "said"
    query.awaitTermination()
    assert {path.name.partition("=")[0] for path in tmp_path.glob("out/*=*")} == {"day"}
    files = sorted(tmp_path.glob("out/*=*/*.parquet"))
    assert pq.ParquetFile(files[0]).metadata.row_group(0).column(0).compression == "ZSTD"
    assert sum(pq.read_metadata(file).num_rows for file in files) == expected(folders).total()


def test_an_error_of_a_function_leads_to_its_line(writer):
    def fails(frame, batch):
        raise ValueError("no room")

    with pytest.raises(JoinEngineError, match="the query failed: ValueError: no room") as raised:
        writer().foreachBatch(fails).start().awaitTermination()
    cause = raised.value.__cause__
    assert isinstance(cause, ValueError)
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)][-1] == "fails"


def test_results_that_are_dropped_after_others_were_kept_are_told(
    writer, folders, tmp_path, caplog
):
    writer().format("noop").start().awaitTermination()
    assert "drops its own" not in caplog.text
    folders.add()
    with pytest.raises(InvalidRequest, match=r"'parket', and .*\. Did you mean 'parquet'\?$"):
        writer().format("parket").start()
    writer().format("parquet").start(str(tmp_path / "out")).awaitTermination()
    writer().format("noop").start().awaitTermination()
    assert f"has delivered its results to {tmp_path / 'out'}; this run drops its own" in caplog.text


def test_memory(spark, writer, folders):
    for odd in ("größe", "a b; drop"):
        with pytest.raises(InvalidRequest, match="memory: expected a table name of the letters"):
            writer().format("memory").queryName(odd).start()
    writer().format("memory").queryName("joined").start().awaitTermination()
    table = spark.table("joined")
    assert table.count() == expected(folders).total()
    assert table.where("id = 0").count() > 0


def test_to_table(spark, writer, folders, tmp_path):
    spark.sql(
        f"create table sink_table (id bigint, customer string, price decimal(9,2), day date, "
        f"o_ts timestamp, order_id int, buyer string, amount decimal(9,2), sold date, "
        f"i_ts timestamp) using parquet location '{tmp_path / 'table'}'"
    )
    try:
        writer().toTable("sink_table").awaitTermination()
        assert spark.table("sink_table").count() == expected(folders).total()
    finally:
        spark.sql("drop table sink_table")


def test_a_table_with_other_columns_is_refused_before_the_start(spark, writer, tmp_path):
    spark.sql(f"create table narrow_table (id bigint) using json location '{tmp_path / 'table'}'")
    try:
        with pytest.raises(InvalidRequest, match=r"'narrow_table' has the columns id, and .*, amo"):
            writer().toTable("narrow_table")
    finally:
        spark.sql("drop table narrow_table")


def test_a_batch_format_of_spark(spark, writer, folders, tmp_path):
    writer().format("json").option("path", tmp_path / "json").start().awaitTermination()
    assert spark.read.json(str(tmp_path / "json")).count() == expected(folders).total()


def test_console_prints_batches(writer, capfd):
    writer().format("console").option("numRows", 2).start().awaitTermination()
    printed = capfd.readouterr().out
    assert "Batch: 1" in printed
    assert "customer" in printed


def test_noop(writer, folders):
    query = writer().format("noop").start()
    query.awaitTermination()
    found = sum(query.metrics().column("output_rows").to_pylist())
    assert found == expected(folders).total()


def test_transformed_parquet(writer, folders, tmp_path):
    def narrow(frame):
        return frame.where("price > amount").selectExpr("id", "price - amount as gain")

    writer(narrow).format("parquet").start(str(tmp_path / "out")).awaitTermination()
    same(
        tmp_path / "out",
        f"select id, price - amount from ({pairs(folders, 'id = order_id')}) where price > amount",
    )
    (staging,) = (path for path in (tmp_path / "out" / "_joinengine").iterdir() if path.is_dir())
    assert not list(staging.iterdir())


@pytest.fixture
def transformed(spark, tmp_path):
    """A transformed sink, and the staged results of batch 3: one row."""
    checkpoint = Checkpoint.below(tmp_path / "checkpoint")
    checkpoint.create()
    pq.write_table(pa.table({"a": [7]}), f"{checkpoint.results.folder}/g1-staged.parquet")
    files = [checkpoint.results.seal("g1-staged.parquet")]
    schema = pa.schema([("a", pa.int64())])
    output = MACHINE.storage(f"{tmp_path}/out")
    sink = TransformedParquetSink(spark, output, "q", checkpoint, schema, lambda f: f)
    return sink, files


@pytest.mark.parametrize("name", ["c[1]", "{a}*?", "b\\c", "2026-11-28T10:00", "[a]:k=1"])
def test_the_folder_of_a_checkpoint_is_no_pattern(spark, folders, tmp_path, name):
    left, right = parquet_stream(spark, folders.orders), parquet_stream(spark, folders.items)
    joined = StreamJoin(left, right, on=equi("id", "order_id"), instances=2)
    found = []
    writer = joined.writeStream.foreachBatch(lambda frame, batch: found.append(frame.count()))
    writer = writer.option("checkpointLocation", tmp_path / name)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sum(found) == expected(folders).total()
    writer = joined.writeStream.format("memory").queryName("of_a_pattern")
    writer = writer.option("checkpointLocation", tmp_path / f"{name} of memory")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert spark.table("of_a_pattern").count() == expected(folders).total()


def test_instants_of_a_transformed_batch_are_those_of_other_results(transformed, tmp_path):
    """Spark's own type of instants in files has no zone, and no years before 1677."""
    sink, files = transformed
    old = replace(sink, transform=lambda f: f.selectExpr("timestamp'0068-09-03 12:00:00Z' as at"))
    old.deliver(3, files, generation=1)
    found = pq.read_table(next((tmp_path / "out").glob("part-*.parquet"))).column("at")
    assert found.type == pa.timestamp("us", "UTC")
    assert str(found[0].cast(pa.timestamp("us"))) == "0068-09-03 12:00:00"


def test_files_that_spark_writes_survive_power_loss_too(transformed, tmp_path, monkeypatch):
    sink, files = transformed
    synced, sync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))
    )
    output = MACHINE.storage(f"{tmp_path}/out", fsync=True)
    replace(sink, storage=output, fsync=True).deliver(3, files, generation=1)
    assert [path for path in synced if path.endswith(".parquet")]


def test_two_drivers_that_transform_a_batch_show_it_once(transformed):
    """The first one falls asleep in its transformation, and the second one delivers."""
    sink, files = transformed

    def asleep(frame):
        replace(sink, transform=lambda f: f).deliver(3, files, generation=2)
        return frame.unionAll(frame.limit(0)).repartition(2)  # other files than the second one's

    replace(sink, transform=asleep).deliver(3, files, generation=1)
    assert found_in(Path(sink.storage.folder)) == Counter({(7,): 1})
    (shown,) = Path(sink.storage.folder).glob("*.parquet")
    assert "-g2-" in shown.name
    sink.deliver(3, files, generation=3)
    assert found_in(Path(sink.storage.folder)) == Counter({(7,): 1})
    sink.clean([], range(4))
    assert not sink.staging.names()


def test_a_closed_batch_is_not_transformed_again(transformed):
    """A driver slept until no showing was left that says which attempt has delivered."""
    sink, files = transformed
    for batch in (3, 4):
        sink.deliver(batch, files, generation=2)
    fence.raise_boundary(sink.checkpoint, 4)
    sink.clean(files, range(3))
    assert sink.checkpoint.showings.names() == ["00000004"]
    with pytest.raises(TakenOver, match=r"batch 3 .* are closed"):
        sink.deliver(3, files, generation=1)
    assert found_in(Path(sink.storage.folder)) == Counter({(7,): 2})


def test_a_marker_of_an_earlier_version_counts(transformed):
    """Its driver was killed between the marker and the renaming."""
    sink, files = transformed
    attempt = sink._attempt(3, files, 1)
    name = attempt[0].partition("/")[0]
    parts = [one.partition("/")[2] for one in attempt]
    marker = json.dumps([name, parts]).encode()
    (Path(sink.checkpoint.storage.folder) / "deliveries").mkdir()
    for damaged in (b"", marker[:9], b"[1, 2]", b"3"):
        sink.checkpoint.storage.put("deliveries/00000003.json", damaged)
        with pytest.raises(DamagedState, match=r"00000003.json is truncated"):
            sink.deliver(3, files, generation=2)
    sink.checkpoint.storage.put("deliveries/00000003.json", marker)
    sink.deliver(3, files, generation=2)
    (shown,) = Path(sink.storage.folder).glob("*.parquet")
    assert "-g1-" in shown.name
    assert found_in(Path(sink.storage.folder)) == Counter({(7,): 1})


def test_the_query_mirrors_sparks(writer):
    query = writer().format("noop").queryName("mirror").start()
    assert query.name == "mirror"
    assert uuid.UUID(query.id) != uuid.UUID(query.runId)
    assert query.query is None  # the engine's own loop runs it
    assert query in active()
    query.processAllAvailable()
    query.awaitTermination()
    assert not query.isActive
    assert query.exception() is None
    assert query.lastProgress["batchId"] == 1
    assert query.status["isDataAvailable"] is False
    assert query not in active()


def test_a_stream_that_ends_expires_all_state(spark, folders, tmp_path):
    """A tick after the last tuples: the watermark is infinity, and nothing is left."""
    window = within("o_ts", "i_ts", lower="-5 s", upper="5 s", delay="10 s")
    joined = StreamJoin(
        *ended(spark, folders), on=equi("id", "order_id"), within=window, instances=3
    )
    query = (
        joined.writeStream.format("parquet")
        .option("checkpointLocation", tmp_path / "checkpoint")
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    batches = query.batches()
    assert [batch.input_rows > 0 for batch in batches] == [True] * 4 + [False]
    assert batches[-1].joins[0].state.rows == 0
    assert batches[-1].joins[0].state.expired_rows > 0
    assert found_in(tmp_path / "out")


def test_an_idle_side_does_not_hold_the_watermark(spark, folders, tmp_path):
    """One side goes silent: after idle_after a tick moves the watermark and state leaves."""
    left = parquet_stream(spark, folders.orders, rows_per_interval=40)
    right = parquet_stream(spark, folders.items, rows_per_interval=120)
    window = within("o_ts", "i_ts", lower="-1 s", upper="1 s", delay="1 s", idle_after="1500 ms")
    joined = StreamJoin(left, right, on=equi("id", "order_id"), within=window, instances=2)
    query = (
        joined.writeStream.format("noop")
        .option("checkpointLocation", tmp_path / "checkpoint")
        .start()
    )
    query.processAllAvailable()
    held = query.batches()[-1].joins[0].state.rows
    assert held > 0
    # Only orders go on, far later: without idleness the items would hold everything back.
    folders.batches = 100
    for _ in range(2):
        from tests.stream.conftest import ORDERS  # noqa: PLC0415

        folders._write(folders.orders, ORDERS, 40)
        folders.batches += 1
    for _ in range(100):
        query.awaitTermination(0.2)
        last = query.batches()[-1]
        if (
            last.input_rows == 0
            and sum(b.joins[0].state.expired_rows for b in query.batches()) >= held
        ):
            break
    query.stop()
    assert sum(b.joins[0].state.expired_rows for b in query.batches()) >= held
    assert any(batch.input_rows == 0 for batch in query.batches())
