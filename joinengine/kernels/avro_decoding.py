"""Decodes Avro records of one schema into columns: each field of all records at once.

Avro has no index: the place of a field is known only once the previous field is read. So all
records are read in step, field by field, and an array holds the present place in each. A number
takes a fixed count of array operations, however many bytes it has.

Law: a record consists of exactly its bytes. One that is shorter, longer or invalid is refused,
whatever bytes surround it.
Cost: some 0.1 us a field of a record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.probing import Ints, expand_ranges

#: Bytes after the last record, because a read that begins at its end goes beyond it.
ROOM = bytes(16)
_STOPS = np.uint64(0x8080808080808080)
#: The steps that join the low seven bits of each byte: (bits that stay, bits that move, how far).
_SQUEEZES = [
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
]
#: Logical type -> the type of its column, and how many units of this type one of Avro's is.
INSTANTS = {
    "timestamp-millis": (pa.timestamp("us", "UTC"), 1000),
    "timestamp-micros": (pa.timestamp("us", "UTC"), 1),
    "local-timestamp-millis": (pa.timestamp("us"), 1000),
    "local-timestamp-micros": (pa.timestamp("us"), 1),
}


class Unserved(Exception):
    """A schema has a type that is not read here."""


def columns(
    content: bytes, starts: Ints, ends: Ints, record: Mapping[str, Any], names: Collection[str]
) -> dict[str, pa.Array]:
    """(n,) records in `content` -> name -> (n,) column, for those `names` that the records have.

    `content` ends with ROOM. `record`: the parsed schema. Raises ValueError if a record does not
    fit the schema, and Unserved, whatever the records are, for a type that is not read.
    """
    records = _Records(content, starts, ends)
    fields = {field["name"]: records.read(field["type"]) for field in record["fields"]}
    chosen = {name: fields[name] for name in names if name in fields}
    for column in chosen.values():
        column.validate(full=True)
    if (records.at != ends).any():
        raise ValueError("there are bytes behind the record: it has another schema")
    return chosen


class _Records:
    """n records in `content`; `at` (n,): how far each is read."""

    def __init__(self, content: bytes, at: Ints, ends: Ints) -> None:
        self._content = content
        self._bytes = np.frombuffer(content, np.uint8)
        self.at, self._ends = at, ends

    def read(self, kind: Any) -> pa.Array:
        """(n,) the next value of each record, of type `kind`."""
        if isinstance(kind, list):
            return self._read_union(kind)
        described = kind if isinstance(kind, Mapping) else {"type": kind}
        is_decimal = described.get("logicalType") == "decimal"
        name = "decimal" if is_decimal else described["type"]
        if name not in _READ:
            raise Unserved(str(name))
        return _READ[name](self, described)

    def _words(self, kind: str) -> NDArray[Any]:
        """For each byte of `content`, the number of a NumPy kind that begins there."""
        size = len(self._content) - np.dtype(kind).itemsize
        return np.ndarray((size,), kind, self._content, strides=(1,))

    def _pass(self, sizes: int | Ints) -> Ints:
        """Skip so many bytes of each record; returns (n,) where they begin."""
        begins = self.at
        if ((self._ends - begins < sizes) | (np.asarray(sizes) < 0)).any():
            raise ValueError("it ends before its schema does")
        self.at = begins + sizes
        return begins

    def _numbers(self) -> Ints:
        """(n,) integers: seven bits a byte; the eighth bit is set in all bytes but the last."""
        words = self._words("<u8")[self.at]
        stops = ~words & _STOPS
        low = (stops & (~stops + np.uint64(1))) - np.uint64(1)  # the bits of the number, 0: all
        sizes = (np.bitwise_count(low) >> 3).astype(np.int64) + 1
        zigzag = words & low & ~_STOPS
        for stay, move, far in _SQUEEZES:
            zigzag = (zigzag & stay) | ((zigzag & move) >> far)
        if (many := np.flatnonzero(stops == 0)).size:
            self._add_rest(zigzag, sizes, many)
        self._pass(sizes)
        unit = np.uint64(1)
        return ((zigzag >> unit) ^ (~(zigzag & unit) + unit)).view(np.int64)

    def _add_rest(self, zigzag: NDArray[np.uint64], sizes: Ints, many: Ints) -> None:
        """Add the ninth and the tenth byte of the numbers that have them."""
        ninth, tenth = (self._bytes[self.at[many] + at].astype(np.uint64) for at in (8, 9))
        more = ninth >= 0x80
        if (tenth[more] > 1).any():
            raise ValueError("a number has more than 64 bits")
        zigzag[many] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
        zigzag[many] |= np.where(more, tenth, np.uint64(0)) << np.uint64(63)
        sizes[many] += more

    def _chosen(self, count: int, what: str) -> Ints:
        choices = self._numbers()
        if ((choices < 0) | (choices >= count)).any():
            raise ValueError(f"it has a {what} that its schema does not have")
        return choices

    def _read_null(self, kind: Mapping[str, Any]) -> pa.Array:
        return pa.nulls(len(self.at))

    def _read_boolean(self, kind: Mapping[str, Any]) -> pa.Array:
        return pa.array(self._bytes[self._pass(1)] != 0)

    def _read_float(self, kind: Mapping[str, Any]) -> pa.Array:
        words = self._words("<f4" if kind["type"] == "float" else "<f8")
        return pa.array(words[self._pass(words.itemsize)])

    def _read_int(self, kind: Mapping[str, Any]) -> pa.Array:
        numbers = self._numbers()
        short = numbers.astype(np.int32)
        if (numbers != short).any():
            raise ValueError("a number has more than 32 bits")
        return pa.array(short).cast(
            pa.date32() if kind.get("logicalType") == "date" else pa.int32()
        )

    def _read_long(self, kind: Mapping[str, Any]) -> pa.Array:
        numbers = self._numbers()
        instant, units = INSTANTS.get(kind.get("logicalType", ""), (pa.int64(), 1))
        most = (2**63 - 1) // units
        if ((numbers > most) | (numbers < -most - 1)).any():
            raise ValueError("an instant has more than 64 bits")
        return pa.array(numbers * units).cast(instant)

    def _read_text(self, kind: Mapping[str, Any]) -> pa.Array:
        is_fixed = kind["type"] == "fixed"
        sizes = np.full(len(self.at), kind["size"]) if is_fixed else self._numbers()
        content = self._bytes[expand_ranges(self._pass(sizes), sizes)]
        ends = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=ends[1:])
        parts = [None, pa.py_buffer(ends), pa.py_buffer(content)]
        text = pa.string() if kind["type"] == "string" else pa.binary()
        return pa.Array.from_buffers(text, len(sizes), parts)

    def _read_enum(self, kind: Mapping[str, Any]) -> pa.Array:
        symbols = kind["symbols"]
        return pa.array(symbols, pa.string()).take(pa.array(self._chosen(len(symbols), "symbol")))

    def _read_decimal(self, kind: Mapping[str, Any]) -> pa.Array:
        """Decimals, in two's complement, most significant byte first."""
        count = len(self.at)
        sizes = np.full(count, kind["size"]) if kind["type"] == "fixed" else self._numbers()
        begins = self._pass(sizes)
        is_negative = (sizes > 0) & (self._bytes[begins] >= 0x80)
        above = np.where(is_negative, np.uint8(255), np.uint8(0))
        digits = above[:, None].repeat(16, axis=1)
        for place in range(int(sizes.max(initial=0))):
            has = np.flatnonzero(sizes > place)
            byte = self._bytes[begins[has] + sizes[has] - 1 - place]
            if place < digits.shape[1]:
                digits[has, place] = byte
            elif (byte != above[has]).any():
                raise ValueError("a decimal has more than 128 bits")
        decimal = pa.decimal128(kind["precision"], kind.get("scale", 0))
        return pa.Array.from_buffers(decimal, count, [None, pa.py_buffer(digits)])

    def _read_record(self, kind: Mapping[str, Any]) -> pa.Array:
        fields = [(field["name"], self.read(field["type"])) for field in kind["fields"]]
        if not fields:
            raise Unserved("a record without fields")
        return pa.StructArray.from_arrays(
            [column for _, column in fields], [name for name, _ in fields]
        )

    def _read_union(self, kinds: list[Any]) -> pa.Array:
        """Values of a union of one type, or of one type and NULL."""
        others = [number for number, branch in enumerate(kinds) if branch != "null"]
        if len(others) != 1:
            raise Unserved(f"a union of {len(others)} types")
        is_there = self._chosen(len(kinds), "branch") == others[0]
        rows = np.flatnonzero(is_there)
        some = _Records(self._content, self.at[rows], self._ends[rows])
        values = some.read(kinds[others[0]])
        self.at[rows] = some.at
        if len(rows) == len(is_there):
            return values
        return values.take(pa.array(np.cumsum(is_there) - 1, mask=~is_there))


_READ: dict[str, Callable[[_Records, Mapping[str, Any]], pa.Array]] = {
    "null": _Records._read_null,
    "boolean": _Records._read_boolean,
    "int": _Records._read_int,
    "long": _Records._read_long,
    "float": _Records._read_float,
    "double": _Records._read_float,
    "string": _Records._read_text,
    "bytes": _Records._read_text,
    "fixed": _Records._read_text,
    "enum": _Records._read_enum,
    "record": _Records._read_record,
    "decimal": _Records._read_decimal,
}
