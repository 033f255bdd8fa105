"""Column types: what Spark calls them, and what Arrow calls them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from joinengine.exchange.feeds import parquet_files, read_footer
from joinengine.model.errors import InvalidRequest


def arrow_schema(schema: StructType) -> pa.Schema:
    """The one Arrow form of a Spark schema in which we handle tuples: microseconds, UTC."""
    plain = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([pa.field(field.name, field.type) for field in plain])


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark form of an Arrow schema."""
    return from_arrow_schema(schema)


def folder_schema(folder: Path) -> pa.Schema:
    """The schema of the first Parquet file below `folder`.

    Raises InvalidRequest where there is none: a stream must know its columns before it starts.
    """
    if not folder.exists():
        raise InvalidRequest(f"parquet_stream: {folder} does not exist; create it or mend the path")
    files = parquet_files(folder)
    if not files:
        raise InvalidRequest(
            f"parquet_stream: {folder} holds no Parquet file yet; put one there, or pass schema="
        )
    footer = read_footer(files[0])
    columns = [footer.schema.column(i) for i in range(footer.num_columns)]
    # INT96, Spark's old way to store instants, says nothing of a time zone; it always is UTC.
    instants = {column.path for column in columns if column.physical_type == "INT96"}
    found = pq.read_schema(str(files[0]))
    plain = pa.schema([_plain(field, instant=field.name in instants) for field in found])
    return arrow_schema(from_arrow_schema(plain))


def _plain(field: pa.Field, *, instant: bool) -> pa.Field:
    """Dictionaries, views and finer or coarser timestamps are ways of storing, not of meaning."""
    kind = field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", "UTC" if kind.tz or instant else None)
    kind = {
        pa.string_view(): pa.string(),
        pa.large_string(): pa.string(),
        pa.binary_view(): pa.binary(),
        pa.large_binary(): pa.binary(),
    }.get(kind, kind)
    return pa.field(field.name, kind)
