"""A sink for functions of the user that take Arrow: gives a batch as a reader of its staged files.

Why: a batch becomes a DataFrame only through Spark's JVM. Here the driver itself reads the staged
Parquet files, a piece at a time, and the function can pass them to any library that takes Arrow.

Law: the function is called for every committed batch in order, even an empty one. It is called
again for the last batch if the driver is killed before it has noted the end of the call.
Cost: a piece of `READ_ROWS` rows in memory and, with an object store, one staged file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event

import pyarrow as pa
from typing_extensions import override

from joinengine.model.errors import JoinEngineError
from joinengine.results.merging import TARGET_BYTES
from joinengine.results.sinks import AtLeastOnce, check_staged
from joinengine.results.staging import Cutting, rows_of
from joinengine.results.targets import SinkTarget, ToParquet
from joinengine.sources.readings import conform
from joinengine.world.storage import Storage, StoredFile

#: The most rows of a record batch that a reader yields.
READ_ROWS = 1 << 16
#: (reader, number of the batch) -> nothing.
Receiver = Callable[[pa.RecordBatchReader, int], None]


@dataclass
class ReaderSink(AtLeastOnce):
    """`receive` gets each batch's results as an Arrow reader; at-least-once."""

    results: Storage
    schema: pa.Schema
    receive: Receiver

    @override
    def target(self, generation: int) -> SinkTarget:
        """Results wait in the checkpoint, in files that fit in the driver's memory."""
        cutting = Cutting(target_bytes=TARGET_BYTES)
        return ToParquet(self.results.folder, generation, cutting)

    @override
    def hand_over(self, batch: int, files: Sequence[StoredFile]) -> None:
        """Call the function; the reader ends with the call."""
        check_staged(self.results, files)
        over = Event()
        pieces = _pieces(self.results, files, self.schema, over)
        try:
            self.receive(pa.RecordBatchReader.from_batches(self.schema, pieces), batch)
        finally:
            over.set()


def _pieces(
    storage: Storage, files: Sequence[StoredFile], schema: pa.Schema, over: Event
) -> Iterator[pa.RecordBatch]:
    """The rows of staged files, in order; raises an error if read after `over` is set.

    Without the error, it would look as if there were no more rows.
    """
    for stored in files:
        _check(over)
        for piece in rows_of(storage, stored, READ_ROWS):
            _check(over)
            yield conform(piece, schema)


def _check(over: Event) -> None:
    if over.is_set():
        raise JoinEngineError(
            "foreach_batch_arrow: a reader was read after its function had returned; read it, or "
            "copy its rows, inside the function"
        )
