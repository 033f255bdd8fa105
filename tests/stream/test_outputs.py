"""Output folders of the Parquet sink: whose they are, how they are cut, and when files appear."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from joinengine import CheckpointMismatch, InvalidRequest, StreamJoin, equi
from tests.stream.cases import pairs, streams
from tests.stream.conftest import same

pytestmark = pytest.mark.spark


@pytest.fixture
def writer(spark, folders, tmp_path):
    joined = StreamJoin(*streams(spark, folders), on=equi("id", "order_id"), instances=3)

    def make(checkpoint="checkpoint", **options):
        writer = joined.writeStream.format("parquet").options(**options)
        writer = writer.option("checkpointLocation", tmp_path / checkpoint)
        return writer.trigger(availableNow=True)

    return make


def run(writer, out):
    query = writer.start(str(out))
    query.awaitTermination()
    return query


def test_checkpoint_and_output_know_each_other(writer, folders, tmp_path):
    out, moved = tmp_path / "out", tmp_path / "moved"
    run(writer(COMPRESSION="zstd"), out)
    (file, *_) = out.glob("*.parquet")
    assert pq.read_metadata(file).row_group(0).column(0).compression == "ZSTD"
    with pytest.raises(CheckpointMismatch, match=r"has written its results to .*/out, asked for"):
        writer().start(str(tmp_path / "other"))
    with pytest.raises(InvalidRequest, match=r"another query .* with the checkpoint .*/checkpoin"):
        writer("second").start(str(out))
    out.rename(moved)
    with pytest.raises(CheckpointMismatch, match=r"/out no longer holds the results of checkpoint"):
        writer().start(str(out))
    out.rmdir()
    folders.add()
    run(writer(), moved)
    same(moved, pairs(folders, "id = order_id"))
    run(writer("second", overwrite=True), moved)
    same(moved, pairs(folders, "id = order_id"))
