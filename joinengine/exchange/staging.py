"""Staged files: results and refused tuples wait in them until their batch is committed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.world.storage import Storage, StoredFile

#: Results of joins are wide and repeat values: a light codec halves the bytes cheaply.
CODEC = "snappy"


class ParquetFile:
    """A staged Parquet file, which is made when it gets its first rows."""

    def __init__(self, storage: Storage, name: str, codec: str = CODEC) -> None:
        self._storage = storage
        self._name = name
        self._codec = codec
        self._writer: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        if self._writer is None:
            self._sink = self._storage.output(self._name)
            # Decimals as integers, as Spark writes them, cost a third to read.
            self._writer = pq.ParquetWriter(
                self._sink, batch.schema, compression=self._codec, store_decimal_as_integer=True
            )
        self._writer.write_batch(batch)

    def close(self) -> StoredFile | None:
        """Seal the file; None: it got no rows."""
        if self._writer is None:
            return None
        self._writer.close()
        self._sink.close()
        return self._storage.seal(self._name)
