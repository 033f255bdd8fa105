"""The columns of files as a stream sees them: plain types, widening, partition folders.

Why: files of one folder differ: a column is added, an integer grows, one writer stores a
dictionary. The columns of a stream are fixed once, as the union of the files at its start. A later
file either fits or is bad, and its footer shows which, before it is in the log
(`joinengine.sources.feeds`).

Law: a file that fits is read without loss, except for digits of instants below a microsecond.
Unsigned integers become what Spark reads them as (uint32 a bigint, uint64 a decimal(20,0)).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from joinengine.model.errors import InvalidRequest
from joinengine.model.nested_types import holds

#: The value of a partition folder whose rows have NULL there.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INSTANTS = pa.timestamp("us", "UTC")
#: Integer type -> the most digits that its values need.
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_MOST_DIGITS = 38
_PLAIN: Mapping[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
    pa.large_string(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.large_binary(): pa.binary(),
    # The form in which Spark hands over times of day.
    **{one: pa.time64("ns") for one in (pa.time32("s"), pa.time32("ms"), pa.time64("us"))},
}


class Footer(NamedTuple):
    """The facts in the footer of a file: the rows of each row group, its columns in plain types.

    `size`, `modified_ns`: of the file when the footer was read. `least_us`: the earliest time in
    the column that sorts files, -inf if there is none; None: the footer does not say, or was not
    asked.
    """

    size: int
    modified_ns: int
    rows: list[int]
    columns: pa.Schema
    least_us: float | None = None


def plain_columns(metadata: Any) -> pa.Schema:
    """The columns of Parquet metadata in plain types."""
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    # INT96, Spark's old type of instants, has no time zone: its values are always in UTC.
    instants = {
        column.path.partition(".")[0] for column in columns if column.physical_type == "INT96"
    }
    instants |= {column.path for column in columns if column.physical_type == "INT96"}
    whole = metadata.schema.to_arrow_schema()
    return pa.schema([(f.name, plain(f.type, instants=f.name in instants)) for f in whole])


def plain(kind: pa.DataType, *, instants: bool = False) -> pa.DataType:
    """The type as which a stream reads `kind`; a type that no stream can read stays as it is.

    `instants`: times without a zone are instants, as INT96 has them.

    >>> plain(pa.list_(pa.uint32()))
    ListType(list<item: int64>)
    """
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz or instants else None)
    if pa.types.is_decimal(kind) and kind.precision <= _MOST_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    if is_list(kind):
        return pa.list_(plain(kind.value_type, instants=instants))
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, plain(f.type, instants=instants)) for f in kind])
    if pa.types.is_map(kind):
        both = (plain(inner, instants=instants) for inner in (kind.key_type, kind.item_type))
        return pa.map_(*both)
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else _PLAIN.get(kind, kind)


def wider(kind: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The plain type that holds all values of two plain types; None: there is none.

    >>> wider(pa.int32(), pa.int64()), wider(pa.int64(), pa.string())
    (DataType(int64), None)
    """
    if kind == other or pa.types.is_null(other):
        return kind
    if pa.types.is_null(kind):
        return other
    if is_list(kind) and is_list(other):
        inner = wider(kind.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        return _wider_struct(kind, other)
    if pa.types.is_map(kind) and pa.types.is_map(other):
        key, item = wider(kind.key_type, other.key_type), wider(kind.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return _wider_number(kind, other)


def _wider_struct(kind: Any, other: Any) -> pa.DataType | None:
    if [field.name for field in kind] != [field.name for field in other]:
        return None
    inner = [(a.name, wider(a.type, b.type)) for a, b in zip(kind, other, strict=True)]
    return None if any(common is None for _, common in inner) else pa.struct(inner)


def _wider_number(*kinds: pa.DataType) -> pa.DataType | None:
    if all(kind in _DIGITS for kind in kinds):
        return max(kinds, key=lambda kind: _DIGITS[kind])
    if any(pa.types.is_floating(kind) for kind in kinds):
        exact = all(pa.types.is_floating(k) or _DIGITS.get(k, 99) <= 10 for k in kinds)
        return pa.float64() if exact else None
    if all(kind in _DIGITS or pa.types.is_decimal128(kind) for kind in kinds):
        wholes, scales = zip(*map(_digits, kinds), strict=True)
        scale = max(scales)
        digits = max(wholes) + scale
        return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else None
    return None


def _digits(kind: Any) -> tuple[int, int]:
    """(digits before the decimal point, digits after it) of a type."""
    return (_DIGITS[kind], 0) if kind in _DIGITS else (kind.precision - kind.scale, kind.scale)


def is_list(kind: pa.DataType) -> bool:
    """Whether a type holds any number of values, however it stores them."""
    plain_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(plain_list or pa.types.is_fixed_size_list(kind))


def united(
    files: Iterable[tuple[str, pa.Schema]], on_clash: Callable[[str], None] = lambda _: None
) -> pa.Schema:
    """The columns of all files, each in the widest of its types, in the order of appearance.

    A file with a column for which no wider type exists is left out; `on_clash` gets a sentence that
    names it.
    """
    types = dict[str, pa.DataType]()
    origin = dict[str, str]()
    for name, schema in files:
        merged = {f.name: wider(types.get(f.name, f.type), f.type) for f in schema}
        clash = next((column for column, kind in merged.items() if kind is None), None)
        if clash is not None:
            on_clash(
                f"column {clash!r} is {schema.field(clash).type} in {name} and {types[clash]} in "
                f"{origin[clash]}"
            )
            continue
        types |= {column: kind for column, kind in merged.items() if kind is not None}
        origin |= {column: name for column in merged if column not in origin}
    return pa.schema(list(types.items()))


def folder_union(
    footers: Mapping[str, Footer], root: str, on_clash: Callable[[str], None] = lambda _: None
) -> pa.Schema:
    """The columns of files by path, then those in the names of folders below `root`.

    If a file has a column that is also in its folder's name, the folder counts.
    """
    inside = list[tuple[str, pa.Schema]]()
    for path, footer in footers.items():
        named = partition_values(path, root)
        kept = [field for field in footer.columns if field.name not in named]
        inside.append((path, pa.schema(kept)))
    return pa.schema([*united(inside, on_clash), *partition_columns(footers, root)])


def misfit(columns: pa.Schema, wanted: pa.Schema) -> tuple[str, str] | None:
    """(column, why) of the first column that does not fit `wanted`; None: all fit or are missing.

    A column with a name that `wanted` lacks is no misfit; see `unknown`.
    """
    names = columns.names
    for field in columns:
        if names.count(field.name) > 1:
            return field.name, "appears twice"
        if field.name in wanted.names:
            kind = wanted.field(field.name).type
            held = wider(kind, field.type)
            if held is None or not _alike(held, kind):
                return field.name, f"is {field.type}, but the stream reads it as {kind}"
    return None


def unknown(names: Iterable[str], wanted: pa.Schema) -> list[str]:
    """The names that `wanted` lacks."""
    return [name for name in names if name not in wanted.names]


def _alike(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types differ at most in the names of list items and in nullability."""
    return bool(plain(kind) == plain(other))


# Reading


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column in a plain type that holds its values; instants are cut to microseconds."""
    if column.type == kind:
        return column
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    cut = holds(column.type, _is_in_nanoseconds)
    return pc.cast(_floored(column) if cut else column, kind, safe=not cut)


def _floored(column: Any) -> Any:
    """A column, perhaps nested, with nanoseconds rounded down to microseconds."""
    kind = column.type
    if not holds(kind, _is_in_nanoseconds):
        return column
    if pa.types.is_timestamp(kind):
        # Without a zone: in a zone, an hour that clocks repeat in autumn cannot be floored.
        plain = pc.floor_temporal(column.cast(pa.timestamp("ns")), unit="microsecond")
        return plain.cast(pa.timestamp("ns", kind.tz and "UTC")).cast(kind)
    if pa.types.is_struct(kind):
        inner = [_floored(column.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=column.is_null())
    column = pa.concat_arrays([column])  # so that it begins where its values do
    if pa.types.is_map(kind):
        sides, fields = (column.keys, column.items), [kind.key_field, kind.item_field]
        values = pa.StructArray.from_arrays(list(map(_floored, sides)), fields=fields)
    else:
        values = _floored(column.values)
    buffers = column.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
    return pa.Array.from_buffers(kind, len(column), buffers, column.null_count, children=[values])


def _is_in_nanoseconds(kind: Any) -> bool:
    """Whether a type has instants in nanoseconds, which a safe cast refuses to cut."""
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")


def completed(
    batch: pa.RecordBatch, needed: Sequence[pa.Field], given: Mapping[str, pa.Scalar]
) -> pa.RecordBatch:
    """A batch with the columns that its file lacks added: a value of a folder's name, or NULL."""
    if len(batch.schema) == len(needed):
        return batch
    columns = [
        batch.column(field.name)
        if field.name in batch.schema.names
        else pa.repeat(given.get(field.name, pa.scalar(None, field.type)), batch.num_rows)
        for field in needed
    ]
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in needed])


# Partition folders


def partition_values(path: str, root: str) -> dict[str, str | None]:
    """The values in the names of the folders between `root` and a file.

    >>> partition_values("/in/day=2026-03-01/n=7/a.parquet", "/in")
    {'day': '2026-03-01', 'n': '7'}
    """
    below = path[len(root) :].rpartition("/")[0].split("/")
    pairs = (part.partition("=") for part in below if "=" in part[1:])
    values = {unquote(name): unquote(value) for name, _, value in pairs}
    return {name: None if value == _NULL else value for name, value in values.items()}


def partition_columns(paths: Iterable[str], root: str) -> pa.Schema:
    """The columns in the names of folders, in the types that Spark infers for them."""
    values = dict[str, list[str]]()
    for path in paths:
        for name, value in partition_values(path, root).items():
            values.setdefault(name, []).extend([] if value is None else [value])
    return pa.schema(
        [
            (name, reduce(_common, map(_inferred, set(seen)), None) or pa.string())
            for name, seen in values.items()
        ]
    )


def partition_value(value: str | None, kind: pa.DataType, zone: str) -> pa.Scalar:
    """A value of a folder's name in the type of its column. Raises ValueError if it does not fit.

    `zone`: of instants.
    """
    if value is None:
        return pa.scalar(None, kind)
    try:
        if pa.types.is_timestamp(kind):
            local = pc.cast(pa.scalar(value), pa.timestamp("us"))
            if not kind.tz:
                return local
            # If clocks show the same time twice, Spark takes the first of the two instants.
            return pc.cast(pc.assume_timezone(local, zone, ambiguous="earliest"), kind)
        return pc.cast(pa.scalar(value.removeprefix("+")), kind)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None


def _inferred(value: str) -> pa.DataType:
    """The type that Spark infers for one value."""
    if _REAL.fullmatch(value):
        return _inferred_number(value)
    if _DATE.fullmatch(value) and _is_kind(value, pa.date32()):
        return pa.date32()
    if _INSTANT.fullmatch(value) and _is_kind(value, _INSTANTS):
        return _INSTANTS
    return pa.string()


def _inferred_number(value: str) -> pa.DataType:
    if _WHOLE.fullmatch(value):
        bits = max(int(value), ~int(value)).bit_length()
        if bits < 64:
            return pa.int32() if bits < 32 else pa.int64()
    try:
        _, digits, exponent = Decimal(value).as_tuple()
    except InvalidOperation:  # an exponent of more digits than Decimal has
        return pa.float64()
    # 1e5 and 1. are also integers: a decimal, unless it has too many digits.
    wholes = len(digits) + int(exponent)
    if int(exponent) >= 0 and wholes <= _MOST_DIGITS:
        return pa.decimal128(wholes, 0)
    return pa.float64()


def _is_kind(value: str, kind: pa.DataType) -> bool:
    try:
        partition_value(value, kind, "UTC")
    except ValueError:
        return False
    return True


def _common(kind: pa.DataType | None, other: pa.DataType) -> pa.DataType:
    """The type of a partition column with values of both types."""
    if kind is None or kind == other:
        return other
    if {kind, other} == {pa.date32(), _INSTANTS}:
        return _INSTANTS
    return wider(kind, other) or pa.string()


def as_text(schema: pa.Schema) -> str:
    """A schema as text, for options."""
    return str(schema.serialize().to_pybytes().hex())


def from_text(text: str) -> pa.Schema:
    """The inverse of `as_text`."""
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))


def refuse_clash(what: str) -> Callable[[str], None]:
    """A function that raises InvalidRequest for a clash of two files of the folder `what`."""

    def refuse(clash: str) -> None:
        raise InvalidRequest(
            f"parquet_stream: {what}: {clash}, and no type holds both; remove one of the files, "
            "give schema=, or skip the files that do not fit with on_bad_file='skip'"
        )

    return refuse
