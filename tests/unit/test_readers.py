"""A batch as an Arrow reader: all rows, in pieces, once per call; damage is named."""

from __future__ import annotations

from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

from joinengine.model.errors import DamagedState, JoinEngineError
from joinengine.results import readers
from joinengine.results.readers import ReaderSink
from joinengine.results.staging import staged_files
from joinengine.world.world import MACHINE

SCHEMA = pa.schema(
    [("a", pa.int64()), ("price", pa.decimal128(9, 2)), ("at", pa.timestamp("us", "UTC"))]
)


def table(start, rows):
    numbers = range(start, start + rows)
    prices = [Decimal(n % 90) / 4 for n in numbers]
    columns = [pa.array(one) for one in (numbers, prices, numbers)]
    return pa.table(columns, names=SCHEMA.names).cast(SCHEMA)


@pytest.fixture
def staged(tmp_path):
    """A storage, and the sealed files of a batch: rows 0 to 29."""
    storage = MACHINE.storage(str(tmp_path / "results"))
    storage.make()
    files = []
    for number in range(3):
        one = staged_files(
            storage, f"g1-{number}", ReaderSink(storage, SCHEMA, print).target(1).cutting
        )
        one.add(table(10 * number, 10).combine_chunks().to_batches()[0])
        files += one.close()
    return storage, files


def test_the_function_gets_all_rows_in_pieces_and_the_number(staged, monkeypatch):
    monkeypatch.setattr(readers, "READ_ROWS", 4)
    storage, files = staged
    seen = []

    def receive(reader, batch):
        assert reader.schema == SCHEMA
        pieces = list(reader)
        seen.append((batch, [piece.num_rows for piece in pieces], pa.Table.from_batches(pieces)))

    ReaderSink(storage, SCHEMA, receive).deliver(7, files, 1)
    ((batch, sizes, found),) = seen
    assert (batch, sizes) == (7, [4, 4, 2] * 3)
    assert found == table(0, 30)


def test_a_batch_comes_twice_only_if_its_note_is_of_another_one(staged):
    storage, files = staged
    seen = []
    sink = ReaderSink(
        storage, SCHEMA, lambda reader, batch: seen.append((batch, len(list(reader))))
    )
    sink.deliver(7, files, 1)
    sink.deliver(7, files, 2)
    sink.deliver(7, files[:1], 2)  # the same number, and other results
    sink.deliver(3, files, 2)  # numbers that begin anew
    storage.put("handed-over", b"3")  # cut
    sink.deliver(3, files, 2)
    assert [batch for batch, _ in seen] == [7, 7, 3, 3]


def test_an_empty_batch_is_a_reader_without_rows(staged):
    seen = []
    sink = ReaderSink(
        staged[0], SCHEMA, lambda reader, batch: seen.append((reader.read_all(), batch))
    )
    sink.deliver(3, (), 1)
    assert seen == [(SCHEMA.empty_table(), 3)]


def test_the_error_of_the_function_is_the_error(staged):
    def fails(reader, batch):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        ReaderSink(*staged[:1], SCHEMA, fails).deliver(0, staged[1], 1)


def test_a_reader_ends_with_the_call(staged):
    kept = []
    ReaderSink(staged[0], SCHEMA, lambda reader, batch: kept.append(reader)).deliver(
        0, staged[1], 1
    )
    with pytest.raises(JoinEngineError, match="read after its function had returned"):
        kept[0].read_next_batch()


def test_damage_is_named_through_a_library_too(staged, tmp_path):
    storage, files = staged
    path = tmp_path / "results" / files[1].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedState, match=r"result file .* is truncated"):
        ReaderSink(storage, SCHEMA, lambda reader, batch: reader.read_all()).deliver(0, files, 1)

    def copies(reader, batch):
        duckdb.connect().execute("create table t as select * from reader").fetchall()

    with pytest.raises(duckdb.Error, match="is truncated"):
        ReaderSink(storage, SCHEMA, copies).deliver(0, files, 1)


def test_delivered_results_are_removed(staged):
    storage, files = staged
    ReaderSink(storage, SCHEMA, print).clean(files[:1], range(2))
    assert storage.names() == [files[0].name]
