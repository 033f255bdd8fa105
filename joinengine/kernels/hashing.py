"""Computes key hashes, u, and words.

Why: operators, layouts and state work on one 64-bit word per tuple. The columns themselves are read
only to compare a candidate pair and to make a result. The hash is our own and not from a library,
because it is stored: every later version must find the state again.

Law: equal values of equal type hash alike, whatever array, slice or batch they come in.
Cost: 2 to 5 ns a row for a fixed-width column, some 10 ns per 8 bytes of a string.
Source: the finaliser is the public-domain SplitMix64 of Steele, Lea and Flood (OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import U_BITS, U_ONE

Words = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)
_NULL = np.uint64(0x6A09E667F3BCC909)
_MOST_DIGITS = 38
_U_SHIFT = np.uint64(U_BITS)
_U_MASK = np.uint64(U_ONE - 1)


def mix(values: Words) -> Words:
    """(n,) -> (n,): each bit of the input flips about half of the bits of the output."""
    z = values + _GAMMA
    # One scratch array for all steps: fresh ones cost more in page faults than the arithmetic.
    shifted = np.empty_like(z)
    for shift, factor in ((_S30, _M1), (_S27, _M2)):
        np.right_shift(z, shift, out=shifted)
        z ^= shifted
        z *= factor
    np.right_shift(z, _S31, out=shifted)
    z ^= shifted
    return z


def hash_columns(columns: Iterable[pa.Array]) -> Words:
    """(n,) columns -> (n,) hashes of their rows. NULL hashes as one more value.

    Raises InvalidRequest for a type without a hash (nested types).

    >>> a, b = hash_columns([pa.array([7])]), hash_columns([pa.array([6, 7])[1:]])
    >>> bool(a[0] == b[0])
    True
    """
    combined: Words | None = None
    for column in columns:
        hashes = _hash_column(column)
        combined = hashes if combined is None else mix(combined * _M1 ^ hashes)
    if combined is None:
        raise InvalidRequest("hashing needs at least one column")
    return combined


def content_hashes(columns: Sequence[pa.Array]) -> Words:
    """(n,) columns of any type -> (n,) hashes that put rows in an order given by their content.

    In whatever order rows arrive, sorting by this hash arranges them alike, except for unequal rows
    with one hash (the chance that a million rows have such a pair is 3e-8).

    >>> a, b = pa.array([5, 7, 6]), pa.array([7, 6, 5])
    >>> (np.sort(content_hashes([a])) == np.sort(content_hashes([b]))).tolist()
    [True, True, True]
    """
    combined = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        combined = mix(combined * _M1 ^ _content(column))
    return combined


def _content(column: pa.Array) -> Words:
    """(n,) values of any type -> (n,) hashes; hashes of nested types are never stored."""
    kind = column.type
    if pa.types.is_struct(kind):
        hashes = np.zeros(len(column), np.uint64)
        for part in column.flatten():
            hashes = mix(hashes * _M1 ^ _content(part))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        lengths = np.diff(offsets)
        parts = [column.keys, column.items] if pa.types.is_map(kind) else [column.values]
        places = np.arange(offsets[0], offsets[-1]) - np.repeat(offsets[:-1], lengths)
        elements = places.astype(np.uint64) * _GAMMA
        for part in parts:
            inside = part.slice(offsets[0], offsets[-1] - offsets[0])
            elements = mix(elements * _M1 ^ _content(inside))
        ends = np.concatenate([np.zeros(1, np.uint64), np.cumsum(elements, dtype=np.uint64)])
        at = offsets - offsets[0]
        hashes = mix(ends[at[1:]] - ends[at[:-1]] ^ lengths.astype(np.uint64))
    else:
        return _hash_column(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def scaled(column: pa.Array, scale: int | None) -> pa.Array:
    """(n,) decimals or integers -> (n,) decimals with `scale` decimal places.

    Equal numbers then have equal bits. `scale` None: the column as it is.
    """
    if scale is None or getattr(column.type, "scale", None) == scale:
        return column
    return pc.cast(column, pa.decimal128(_MOST_DIGITS, scale))


def any_null(columns: Sequence[pa.Array]) -> NDArray[np.bool_] | None:
    """(n,) whether any column is NULL in a row; None: no column has a NULL."""
    nulls = [
        column.is_null().to_numpy(zero_copy_only=False) for column in columns if column.null_count
    ]
    return np.logical_or.reduce(nulls) if nulls else None


def draw_u(hashes: Words, seed: int) -> Words:
    """(n,) hashes -> (n,) u in [0, U_ONE): a mix of the hash, the row's number and `seed`.

    The row's number makes the u of equal keys differ. The seed (batch and route task) prevents that
    the first rows of all batches share one u.
    """
    numbers = np.arange(len(hashes), dtype=np.uint64)
    start = mix(np.array([seed], dtype=np.uint64))[0]
    return mix(hashes ^ (numbers * _GAMMA + start)) >> np.uint64(64 - U_BITS)


def u_of_content(columns: Sequence[pa.Array]) -> Words:
    """(n,) rows -> (n,) u in [0, U_ONE), the same for equal rows, whatever their source."""
    return mix(hash_columns(columns)) >> np.uint64(64 - U_BITS)


def make_words(hashes: Words, u: Words) -> Words:
    """(n,) hashes and (n,) u -> (n,) words: the hash's upper 40 bits above u."""
    return (hashes & ~_U_MASK) | u


def key_hash(words: Words) -> Words:
    """(n,) words -> (n,) key hashes (40 bits)."""
    return words >> _U_SHIFT


def u_of(words: Words) -> Words:
    """(n,) words -> (n,) u."""
    return words & _U_MASK


def first_word(hashes: Words) -> Words:
    """(n,) key hashes -> (n,) the lowest word of each."""
    return hashes << _U_SHIFT


def multiset_checksum(columns: Iterable[pa.Array]) -> int:
    """The sum modulo 2^64 of the row hashes: the same for any order of the rows."""
    return int(hash_columns(columns).sum(dtype=np.uint64))


def net_checksum(columns: Iterable[pa.Array]) -> int:
    """The multiset checksum of a changelog, whose last column says how often each row counts.

    It equals the checksum of the rows that are left once changes of equal rows are added up.

    >>> rows, changes = pa.array([7, 8, 8]), pa.array([1, 2, -2])
    >>> net_checksum([rows, changes]) == multiset_checksum([rows[:1]])
    True
    """
    *rows, changes = columns
    weights = changes.cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)
    return int((hash_columns(rows) * weights).sum(dtype=np.uint64))


def _hash_column(column: pa.Array) -> Words:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _hash_bytes(column, np.int32)
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        hashes = _hash_bytes(column, np.int64)
    elif pa.types.is_decimal128(kind):
        halves = fixed_width(column, np.dtype(np.uint64), 2).reshape(-1, 2)
        hashes = mix(mix(halves[:, 0]) ^ halves[:, 1])
    elif pa.types.is_floating(kind):
        hashes = mix(float_bits(column))
    elif pa.types.is_null(kind):
        return np.full(len(column), _NULL)
    elif pa.types.is_primitive(kind) and kind.bit_width <= 64:
        signed = fixed_width(column, np.dtype(f"i{kind.bit_width // 8}"))
        # Widened, so that an int and a bigint of equal value hash alike.
        hashes = mix(signed.astype(np.int64).view(np.uint64))
    else:
        raise InvalidRequest(f"a column of type {kind} cannot be hashed; cast it or leave it out")
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def fixed_width(column: pa.Array, dtype: np.dtype[np.generic], per_row: int = 1) -> NDArray:  # type: ignore[type-arg]
    """The values of a fixed-width array for NumPy, without a copy; NULLs hold any value."""
    start, stop = column.offset * per_row, (column.offset + len(column)) * per_row
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(stop - start, dtype)
    return np.frombuffer(buffer, dtype)[start:stop]


def float_bits(column: pa.Array) -> Words:
    """(n,) floats -> (n,) bits of doubles, equal for equal numbers and for all NaN."""
    values = pc.cast(column, pa.float64())
    bits = fixed_width(values, np.dtype(np.float64)) + 0.0  # -0.0 becomes 0.0, on a copy
    bits[np.isnan(bits)] = np.nan
    return bits.view(np.uint64)


def _hash_bytes(column: pa.Array, offset_type: type[np.signedinteger]) -> Words:
    """(n,) strings -> (n,) hashes; 8 bytes of all rows at a time, until each row has ended."""
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, offset_type)[
        column.offset : column.offset + len(column) + 1
    ]
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    hashes = mix(lengths.view(np.uint64))
    if not len(column) or not lengths.any():
        return hashes
    end = int(offsets[-1])
    flat = np.frombuffer(data, np.uint8, count=end)
    padded = np.concatenate([flat, np.zeros(8, np.uint8)])
    length = int(lengths[0])
    if (lengths == length).all():
        # Numbered names, days, codes: all rows end together, so none has to be searched for.
        for taken in range(0, length, 8):
            at = int(offsets[0]) + taken
            words = np.ndarray((len(column),), np.dtype("<u8"), padded, at, (length,))
            mask = np.uint64((1 << 8 * min(length - taken, 8)) - 1)
            hashes = mix(hashes ^ (words & mask))
        return hashes
    # A little-endian word begins at every position, unaligned; the tail is masked off below.
    window = np.ndarray((end + 1,), np.dtype("<u8"), padded, strides=(1,))
    active = np.flatnonzero(lengths)
    taken = 0
    while len(active):
        left = lengths[active] - taken
        loaded = window[starts[active] + taken]
        short = left < 8
        if short.any():
            bits = (np.minimum(left, 7) * 8).astype(np.uint64)
            loaded = np.where(short, loaded & ((np.uint64(1) << bits) - np.uint64(1)), loaded)
        hashes[active] = mix(hashes[active] ^ loaded)
        taken += 8
        active = active[left > 8]
    return hashes
