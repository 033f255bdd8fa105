"""Computes 32-bit Murmur3 hashes, by which Iceberg assigns values to buckets.

Law: the hash of a value depends only on its bytes, and is that of every Iceberg writer. A number, a
date or an instant counts as the eight bytes of an integer (days, microseconds), a text as UTF-8.
Cost: some 20 ns for each four bytes of a row; one Python step for each four bytes of the longest.
Source: MurmurHash3_x86_32 of Austin Appleby, public domain; Iceberg's specification, appendix B.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.probing import Ints

Hashes = NDArray[np.uint32]

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_F1, _F2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_STEP, _PLUS = np.uint32(5), np.uint32(0xE6546B64)
_MOST = np.uint32(0x7FFFFFFF)


def buckets(column: pa.Array, count: int) -> pa.Array:
    """(n,) integers, dates, instants or texts -> (n,) bucket numbers below `count`, or NULL.

    >>> buckets(pa.array([34, None]), 100).to_pylist()
    [79, None]
    """
    some = column.drop_null()
    content, starts, lengths = _bytes(some)
    numbers = (_murmur3(content, starts, lengths) & _MOST) % np.uint32(count)
    places = np.cumsum(column.is_valid().to_numpy(zero_copy_only=False)) - 1
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers.astype(np.int32)).take(pa.array(places, mask=is_null))


def _bytes(column: pa.Array) -> tuple[NDArray[np.uint8], Ints, Ints]:
    """Values without NULL -> their bytes, where each begins, and the length of each."""
    rows, kind = len(column), column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = column.cast(pa.large_string())
        _, offsets, content = texts.buffers()
        ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + rows + 1]
        return np.frombuffer(content or b"", np.uint8), ends[:-1], np.diff(ends)
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz))
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    words = column.cast(pa.int64()).to_numpy(zero_copy_only=False).astype("<i8")
    return words.view(np.uint8), np.arange(rows) * 8, np.full(rows, 8)


def _murmur3(content: NDArray[np.uint8], starts: Ints, lengths: Ints) -> Hashes:
    """(n,) pieces of `content` -> (n,) hashes."""
    hashes = np.zeros(len(starts), np.uint32)
    blocks = lengths // 4
    for block in range(int(blocks.max(initial=0))):
        rows = np.flatnonzero(blocks > block)
        at = starts[rows] + 4 * block
        mixed = _rotated(hashes[rows] ^ _scrambled(_word(content, at, 4)), 13)
        hashes[rows] = mixed * _STEP + _PLUS
    for rest in (1, 2, 3):
        rows = np.flatnonzero(lengths % 4 == rest)
        at = starts[rows] + 4 * blocks[rows]
        hashes[rows] ^= _scrambled(_word(content, at, rest))
    hashes ^= lengths.astype(np.uint32)
    for shift, factor in ((16, _F1), (13, _F2)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * factor
    return hashes ^ (hashes >> np.uint32(16))


def _word(content: NDArray[np.uint8], at: Ints, size: int) -> Hashes:
    """(n,) little-endian numbers of `size` bytes at (n,) places."""
    words = np.zeros(len(at), np.uint32)
    for place in range(size):
        words |= content[at + place].astype(np.uint32) << np.uint32(8 * place)
    return words


def _scrambled(words: Hashes) -> Hashes:
    return _rotated(words * _C1, 15) * _C2


def _rotated(words: Hashes, by: int) -> Hashes:
    return (words << np.uint32(by)) | (words >> np.uint32(32 - by))
