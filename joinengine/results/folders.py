"""Divides results among Hive folders: rows with equal values of some columns share a folder.

Law: the folders and their names are those of Spark's `partitionBy`, so that every reader of Hive
folders recovers the columns. NULL and empty text have the folder `__HIVE_DEFAULT_PARTITION__`.
Source: Spark's `ExternalCatalogUtils`. Departures: years beyond 9999 have no plus sign, and the
character NUL is written as %00, since no file system accepts it.
Cost: one dictionary for each column, and one text for each distinct value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from joinengine.kernels.murmur import buckets
from joinengine.model.columns import require_column
from joinengine.model.errors import InvalidRequest

#: The folder of NULL and of empty text.
NOTHING = "__HIVE_DEFAULT_PARTITION__"
#: The unit of a folder whose name has the value itself.
IDENTITY = "identity"
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
#: Between these bounds, Java writes doubles without an exponent.
_PLAIN = 1e-3, 1e7


def check_partitions(schema: pa.Schema, names: Sequence[str], *, exact: bool) -> tuple[str, ...]:
    """The columns of `schema` with these names; case does not matter unless `exact`.

    Raises InvalidRequest for missing or repeated columns, for types that cannot name a folder, and
    if no column is left for the files.
    """
    fields = [require_column(schema, name, "partitionBy", exact=exact) for name in names]
    columns = tuple(str(field.name) for field in fields)
    for name in columns:
        kind = schema.field(name).type
        if columns.count(name) > 1:
            raise InvalidRequest(f"partitionBy: {name} is given twice; give it once")
        if _text_of(kind) is None:
            raise InvalidRequest(
                f"partitionBy: {name} is {kind}, which cannot name a folder; cast it to text or a "
                "number"
            )
    if len(columns) == len(schema.names):
        raise InvalidRequest(
            f"partitionBy: {', '.join(columns)} are all the columns, so the files would have none; "
            "leave one out"
        )
    return columns


def partitioned(
    batch: pa.RecordBatch, names: Sequence[str], zone: str, units: Sequence[str] = ()
) -> list[tuple[str, pa.RecordBatch]]:
    """(folder, its rows without the columns `names`); each folder once, rows in their order.

    `zone`: the time zone in which instants become text. `units`: for each column, the unit whose
    value names the folder (`whole_units`); then the columns stay in the rows, and NULL and empty
    text have different folders. A unit with a size is also in the folder's name (`label`).
    """
    codes: NDArray[np.int64] = np.zeros(batch.num_rows, np.int64)
    values = [batch.column(name) for name in names]
    if units:
        values = [whole_units(column, unit) for column, unit in zip(values, units, strict=True)]
    columns = [_texts(column, zone, "" if units else NOTHING) for column in values]
    for numbers, texts in columns:
        _, codes = np.unique(codes * (len(texts) + 1) + numbers, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    left_out = () if units else names
    labels = [label(*pair) for pair in zip(names, units, strict=True)] if units else names
    rest = batch.select([name for name in batch.schema.names if name not in left_out])
    rest = rest.take(pa.array(order))
    ends = [*starts[1:], batch.num_rows]
    by_folder = dict[str, list[pa.RecordBatch]]()
    for start, end in zip(starts, ends, strict=True):
        row = order[start]
        folder = "/".join(
            f"{_escaped(name)}={texts[numbers[row]]}"
            for name, (numbers, texts) in zip(labels, columns, strict=True)
        )
        by_folder.setdefault(folder, []).append(rest.slice(start, end - start))
    return [
        (folder, parts[0] if len(parts) == 1 else pa.concat_batches(parts))
        for folder, parts in by_folder.items()
    ]


def label(name: str, unit: str) -> str:
    """The part of a folder's name before its value.

    >>> label("id", "day"), label("id", "bucket[8]")
    ('id', 'id bucket 8')
    """
    transform, _, size = unit.removesuffix("]").partition("[")
    return f"{name} {transform} {size}" if size else name


def whole_units(column: pa.Array, unit: str) -> pa.Array:
    """(n,) values -> (n,) values that name partitions, by a transform of Iceberg's (`unit`).

    Instants or dates are cut to whole years, months, days or hours. `bucket[n]` is a number below
    n. `truncate[w]` is the greatest multiple of w not above a number, or the first w characters of
    a text. `identity` changes nothing.
    """
    if unit == IDENTITY:
        return column
    name, _, size = unit.removesuffix("]").partition("[")
    if name == "bucket":
        return buckets(column, int(size))
    if name == "truncate":
        if not pa.types.is_integer(column.type):
            return pc.utf8_slice_codeunits(column, 0, int(size))
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        return pa.array(numbers - numbers % int(size), column.type, mask=is_null)
    cut = pc.floor_temporal(column, unit=unit)
    return cut if unit == "hour" else cut.cast(pa.date32())


def _texts(column: pa.Array, zone: str, empty: str) -> tuple[NDArray[np.int64], list[str]]:
    """(n,) column -> (n,) numbers of distinct values, and the text of each in a folder's name.

    `empty`: the text for empty text.
    """
    coded = column.dictionary_encode(null_encoding="mask")
    nothing = len(coded.dictionary)
    numbers = pc.fill_null(coded.indices.cast(pa.int64()), nothing).to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(column.type):
        texts = _moments(coded.dictionary, zone)
    elif pa.types.is_date(column.type):  # not through Python, which has no years beyond 9999
        texts = coded.dictionary.cast(pa.date32()).cast(pa.string()).to_pylist()
    else:
        text_of = _text_of(column.type)
        assert text_of is not None
        texts = [text_of(value) for value in coded.dictionary.to_pylist()]
    return numbers, [*(_escaped(text) or empty for text in texts), NOTHING]


def _moments(values: pa.Array, zone: str) -> list[str]:
    """Timestamps as Spark casts them to text: instants in `zone`, without trailing zeros."""
    if values.type.tz is not None:
        values = pc.local_timestamp(values.cast(pa.timestamp("us", zone)))
    texts = values.cast(pa.timestamp("us")).cast(pa.string()).to_pylist()
    return [text.rstrip("0").removesuffix(".") for text in texts]


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _text_of(kind: pa.DataType) -> Callable[[Any], str] | None:
    """A function from values of a type to Spark's text of them; None: it cannot name a folder."""
    if pa.types.is_floating(kind):
        exact = np.float32 if kind.bit_width == 32 else np.float64
        return lambda value: java_text(exact(value))
    return next((text_of for is_kind, text_of in _TEXTS if is_kind(kind)), None)


#: (test of a type, function from its values to text). Dates and timestamps are cast as columns.
_TEXTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...] = (
    (pa.types.is_boolean, lambda value: str(value).lower()),
    (pa.types.is_decimal, lambda value: f"{value:f}"),
    (pa.types.is_binary, lambda value: bytes(value).decode(errors="replace")),
    (pa.types.is_large_binary, lambda value: bytes(value).decode(errors="replace")),
    *(
        (is_kind, str)
        for is_kind in (
            *(pa.types.is_integer, pa.types.is_string, pa.types.is_large_string),
            *(pa.types.is_date, pa.types.is_timestamp),
        )
    ),
)


def java_text(value: np.floating[Any]) -> str:
    """A floating-point number as Java writes it.

    >>> [java_text(np.float64(x)) for x in (1.0, 1e7, 1.25e-5, 123456.789)]
    ['1.0', '1.0E7', '1.25E-5', '123456.789']
    """
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or _PLAIN[0] <= abs(value) < _PLAIN[1]:
        return np.format_float_positional(value, unique=True, trim="0")
    digits, _, power = np.format_float_scientific(value, unique=True, trim="0").partition("e")
    return f"{digits}E{int(power)}"
