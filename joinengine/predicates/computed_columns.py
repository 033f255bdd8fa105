"""Columns that are computed from the columns of a stream, by expressions in the dialect."""

from __future__ import annotations

import pyarrow as pa

from joinengine.model.conditions import Computed
from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import quoted
from joinengine.predicates.dialect import Translation, evaluated_type, parsed
from joinengine.predicates.engine import over_pairs


def compile_column(
    name: str, text: str, schema: pa.Schema, zone: str = "UTC", *, exact: bool = False
) -> Computed:
    """Column `name`, which is the expression `text` over the columns of one side.

    Its type is that of the expression in DuckDB; a bare column keeps its own type. `zone`, `exact`:
    as for predicates. Raises InvalidRequest if the text is not an expression, and for every
    expression or type that is not served.
    """
    what = f"withColumn: {name}"
    reading = Translation(text, (schema,), what, zone, exact=exact)
    sql, kind_found = reading.select(parsed(text, what))
    if sql == "SELECT c0":
        kind = schema.field(reading.columns[0][1]).type
        return Computed(name, text, f"{sql} from pairs", tuple(reading.columns), kind, zone)
    kind = _plain(_values(f"{sql} from pairs", text, zone, reading.empty()).type)
    if kind is None:
        raise InvalidRequest(
            f"{what}: {quoted(text)} has type {kind_found}, which cannot be a column; cast it to "
            f"another type"
        )
    return Computed(name, text, f"{sql} from pairs", tuple(reading.columns), kind, zone)


def computed(column: Computed, batch: pa.RecordBatch) -> pa.Array:
    """(n,) the values of a computed column for the rows of `batch`."""
    arrays = [batch.column(name) for _, name in column.columns]
    arrays = arrays or [pa.nulls(batch.num_rows, pa.int8())]
    arrays = [array.cast(evaluated_type(array.type)) for array in arrays]
    names = [f"c{number}" for number in range(len(arrays))]
    table = pa.table(arrays, names=names)
    return _values(column.sql, column.text, column.zone, table).cast(column.kind).combine_chunks()


def _values(sql: str, text: str, zone: str, table: pa.Table) -> pa.ChunkedArray:
    with over_pairs(table, text, zone) as database:
        return database.sql(sql).to_arrow_table().column(0)


def _plain(kind: pa.DataType) -> pa.DataType | None:
    """The type in which a computed column of a type is kept; None: joinengine cannot keep it."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    served = (
        *(pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_floating),
        *(pa.types.is_decimal128, pa.types.is_string, pa.types.is_binary, pa.types.is_date32),
    )
    return kind if any(test(kind) for test in served) else None
