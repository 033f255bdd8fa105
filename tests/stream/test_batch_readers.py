"""`foreach_batch_arrow`: a query hands its batches to a function as Arrow, without the JVM."""

from __future__ import annotations

from collections import Counter

import pytest

from joinengine import CheckpointMismatch, InvalidRequest, StreamJoin, equi, parquet_stream
from tests.stream.cases import pairs
from tests.stream.conftest import oracle

pytestmark = pytest.mark.spark


@pytest.fixture
def writer(spark, folders, tmp_path):
    left = parquet_stream(spark, folders.orders, rows_per_interval=40)
    right = parquet_stream(spark, folders.items, rows_per_interval=120)
    joined = StreamJoin(left, right, on=equi("id", "order_id"), instances=3)

    def make(joined=joined):
        return joined.writeStream.option("checkpointLocation", tmp_path / "checkpoint").trigger(
            availableNow=True
        )

    make.joined = joined
    return make


def test_each_batch_comes_as_a_reader_with_its_number(writer, folders):
    seen = {}

    def receive(reader, batch):
        assert batch not in seen
        seen[batch] = Counter(tuple(row.values()) for row in reader.read_all().to_pylist())

    query = writer().foreach_batch_arrow(receive).start()
    query.awaitTermination()
    assert list(seen) == [0, 1, 2, 3]
    found, expected = sum(seen.values(), Counter()), oracle(pairs(folders, "id = order_id"))
    assert expected
    assert found == expected
    assert "resident" not in query.explain() or "jobs" not in query.explain()


def test_a_batch_that_went_elsewhere_is_not_handed_over(writer, tmp_path):
    writer().format("parquet").start(tmp_path / "out").awaitTermination()
    with pytest.raises(CheckpointMismatch, match="staged for the sink that the checkpoint had"):
        query = writer().foreach_batch_arrow(lambda *_: pytest.fail("it is not for us")).start()
        query.awaitTermination()


def test_a_batch_that_failed_comes_again_after_a_restart(writer):
    seen = []

    def fails(reader, batch):
        seen.append(batch)
        if batch == 1:
            raise ZeroDivisionError("the user's own words")

    query = writer().foreach_batch_arrow(fails).start()
    with pytest.raises(Exception, match="ZeroDivisionError: the user's own words"):
        query.awaitTermination()
    for _ in range(2):  # what is noted does not come again
        again = writer().foreach_batch_arrow(lambda reader, batch: seen.append(batch)).start()
        again.awaitTermination()
    assert seen == [0, 1, 1, 2, 3]


def test_what_cannot_be_is_refused(writer):
    with pytest.raises(InvalidRequest, match="foreach_batch_arrow: expected a function"):
        writer().foreach_batch_arrow("no function")
    with pytest.raises(InvalidRequest, match="foreach_batch_arrow is not valid with transform"):
        transformed = writer.joined.transform(lambda frame: frame)
        writer(transformed).foreach_batch_arrow(print).start()
    with pytest.raises(InvalidRequest, match="foreach_batch_arrow: option 'path' is unknown"):
        writer().foreach_batch_arrow(print).option("path", "x").start()
