"""Column types: from Spark to Arrow and back."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from joinengine.exchange.feeds import parquet_files, read_footer
from joinengine.model.errors import InvalidRequest


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema in which the engine handles tuples: instants are microseconds in UTC."""
    plain = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([pa.field(field.name, field.type) for field in plain])


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark form of an Arrow schema."""
    return from_arrow_schema(schema)


def folder_schema(folder: Path) -> pa.Schema:
    """The schema of the first Parquet file below `folder`.

    Raises InvalidRequest if there is none: a stream must know its columns before it starts.
    """
    if not folder.exists():
        raise InvalidRequest(f"parquet_stream: {folder} does not exist; create it or give another")
    files = parquet_files(folder)
    if not files:
        raise InvalidRequest(
            f"parquet_stream: {folder} holds no Parquet file yet; put one there, or pass schema="
        )
    footer = read_footer(files[0])
    columns = [footer.schema.column(i) for i in range(footer.num_columns)]
    # INT96, Spark's old type of instants, has no time zone: its values are always UTC.
    instants = {column.path for column in columns if column.physical_type == "INT96"}
    found = pq.read_schema(str(files[0]))
    plain = pa.schema([_plain(field, instant=field.name in instants) for field in found])
    return arrow_schema(from_arrow_schema(plain))


def _plain(field: pa.Field, *, instant: bool) -> pa.Field:
    """A field in its plain type: dictionaries, views and units of timestamps are only storage."""
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
