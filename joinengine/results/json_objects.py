"""Writes rows as JSON objects, by DuckDB.

Instants and dates are ISO 8601 texts, bytes base64, special floating-point numbers the texts "NaN",
"Infinity" and "-Infinity", and NULL is null, also inside structs, lists and maps.

Law: `joinengine.sources.json_values` reads the same rows from these objects, by the schema of the
rows. But it refuses maps, and "NaN" and the like inside lists or in fields with a shared name.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterable
from functools import cache
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from joinengine.model.nested_types import holds, is_bytes

#: The expression for a year below 1, with a sign and four digits as in ISO 8601.
_YEAR = "(CASE WHEN year({0}) < 0 THEN '-' ELSE '' END || format('{{:04d}}', abs(year({0}))))"


def objects_of(rows: pa.RecordBatch) -> pa.Array:
    """(n,) rows -> n JSON objects as bytes."""
    names = [f"c{number}" for number in range(rows.num_columns)]
    plain = pa.table([_plain(column) for column in rows.columns], names)
    variables = count()
    fields = [
        (field.name, _of_plain(field.type, name, variables))
        for field, name in zip(rows.schema, names, strict=True)
    ]
    database = _database()
    database.register("plain_rows", plain)
    try:
        encoded = database.sql(f"SELECT {_object(fields)} AS v FROM plain_rows")
        return encoded.to_arrow_table().column(0).combine_chunks().cast(pa.binary())
    finally:
        database.unregister("plain_rows")


def _plain(column: pa.Array) -> pa.Array:
    """Instants as microseconds without a zone, which DuckDB writes fast, or as texts if finer."""
    if not pa.types.is_timestamp(column.type):
        return column
    if column.type.unit != "ns":
        return column.cast(pa.timestamp("us"))
    zone = "Z" if column.type.tz else ""
    column = column.cast(pa.timestamp("ns", "UTC")) if zone else column
    return pc.strftime(column, format=f"%Y-%m-%dT%H:%M:%S{zone}")


def _of_plain(kind: pa.DataType, sql: str, variables: count[int]) -> str:
    """The expression of DuckDB's that writes a column made by `_plain`."""
    if not pa.types.is_timestamp(kind):
        return _expression(kind, sql, variables)
    if kind.unit == "ns":
        return _quoted(sql)
    return _quoted(_time(sql, f"%H:%M:%S.%f{'Z' if kind.tz else ''}"))


def _time(sql: str, rest: str) -> str:
    """The expression for the text of a time: DuckDB writes -5 for the year -0005."""
    return (
        f"CASE WHEN year({sql}) < 0 THEN {_YEAR.format(sql)} || strftime({sql}, '-%m-%dT{rest}') "
        f"ELSE strftime({sql}, '%Y-%m-%dT{rest}') END"
    )


def _expression(kind: pa.DataType, sql: str, variables: count[int]) -> str:
    """The expression of DuckDB's that writes a value of this type, given by `sql`, as text.

    Texts are put together: a JSON value inside another one would be read again, as a double.
    `variables`: numbers the variables of lambdas, which may be nested.
    """
    if not holds(kind, _is_written_otherwise):
        return f"to_json({sql})::VARCHAR"
    if _is_written_otherwise(kind):
        return _plain_expression(kind, sql)
    if pa.types.is_struct(kind):
        # By place: names that differ only in case are one name for DuckDB.
        fields = [
            (part.name, _expression(part.type, f"struct_values({sql})[{n}]", variables))
            for n, part in enumerate(kind, 1)
        ]
        return f"CASE WHEN {sql} IS NOT NULL THEN {_object(fields)} END"
    item = f"e{next(variables)}"
    if pa.types.is_map(kind):
        key, value = f"{item}.key", _expression(kind.item_type, f"{item}.value", variables)
        if _is_written_otherwise(kind.key_type):
            key = f"trim({_plain_expression(kind.key_type, key)}, '\"')"
        pair = f"to_json({key}::VARCHAR)::VARCHAR || ':' || {_or_null(value)}"
        pairs = f"list_transform(map_entries({sql}), lambda {item}: {pair})"
        return f"'{{' || array_to_string({pairs}, ',') || '}}'"
    value = _or_null(_expression(kind.value_type, item, variables))
    return f"'[' || array_to_string(list_transform({sql}, lambda {item}: {value}), ',') || ']'"


def _object(fields: Iterable[tuple[str, str]]) -> str:
    """The expression for an object of (name, expression of the value)."""
    names = (_text(json.dumps(name, ensure_ascii=False) + ":") for name, _ in fields)
    pairs = (f"{name} || {_or_null(value)}" for name, (_, value) in zip(names, fields, strict=True))
    return f"""'{{' || {" || ',' || ".join(pairs) or "''"} || '}}'"""


def _plain_expression(kind: pa.DataType, sql: str) -> str:
    if is_bytes(kind):
        return _quoted(f"base64({sql})")
    if pa.types.is_decimal(kind):
        return f"regexp_replace({sql}::VARCHAR, '^(-?)\\.', '\\10.')"
    if pa.types.is_floating(kind):
        return (
            f"CASE WHEN isfinite({sql}) THEN to_json({sql})::VARCHAR "
            f"""WHEN isnan({sql}) THEN '"NaN"' WHEN {sql} > 0 THEN '"Infinity"' """
            f"""WHEN {sql} < 0 THEN '"-Infinity"' END"""
        )
    if pa.types.is_date(kind):  # DuckDB writes 0006-01-01 (BC) for -0005-01-01
        old = f"{_YEAR.format(sql)} || strftime({sql}, '-%m-%d')"
        return _quoted(f"CASE WHEN year({sql}) <= 0 THEN {old} ELSE {sql}::VARCHAR END")
    if kind.tz:  # in microseconds: DuckDB has no finer instants with a zone
        return _quoted(_time(f"({sql} AT TIME ZONE 'UTC')", "%H:%M:%S.%fZ"))
    return _quoted(_time(sql, f"%H:%M:%S.%{'n' if kind.unit == 'ns' else 'f'}"))


def _is_written_otherwise(kind: pa.DataType) -> bool:
    """Whether DuckDB by itself writes values of a type in another form than needed."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision == kind.scale)  # it writes .5, and JSON wants 0.5
    tests = (is_bytes, pa.types.is_floating, pa.types.is_timestamp, pa.types.is_date)
    return any(test(kind) for test in tests)


def _quoted(sql: str) -> str:
    """The expression for a text without characters that JSON escapes."""
    return f"""'"' || ({sql}) || '"'"""


def _or_null(sql: str) -> str:
    return f"coalesce({sql}, 'null')"


def _text(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


@cache
def _database() -> Any:
    """The process's database in memory."""
    import duckdb  # noqa: PLC0415 # its start costs tasks that send nothing 50 ms

    atexit.register(_database.cache_clear)  # or it reports leaks at the end of the process
    return duckdb.connect(":memory:", config={"threads": 1})
