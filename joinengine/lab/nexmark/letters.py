"""Texts of random letters, many at a time: each is a piece of one long text."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from joinengine.lab.nexmark.event_keys import Numbers, below
from joinengine.lab.tpch.skew import uniform

_LONG = 1 << 16
#: The shortest phrase; and of how many characters one is a space.
_SHORTEST, _SPACES = 3, 13
#: By what part of its mean length a filling may be longer or shorter.
_SPREAD = 0.2


def letters(seed: int, name: str, rows: Numbers, lengths: Numbers) -> pa.Array:
    """(n,) texts of the given lengths, of the letters a to z."""
    return _pieces(_text(seed, spaces=False), seed, name, rows, lengths)


def phrases(seed: int, name: str, rows: Numbers, limit: int) -> pa.Array:
    """(n,) texts of letters and spaces, shorter than `limit`, without a space at an end."""
    lengths = _SHORTEST + below(seed, f"{name}: length", rows, limit - _SHORTEST)
    pieces = _pieces(_text(seed, spaces=True), seed, name, rows, lengths)
    return pc.utf8_trim(pieces, " ")


def filling(seed: int, name: str, rows: Numbers, sizes: Numbers, average: int) -> pa.Array:
    """(n,) texts that make rows of (n,) `sizes` bytes `average` bytes long in the mean."""
    missing = np.maximum(average - sizes, 0)
    spread = np.rint(missing * _SPREAD).astype(np.int64)
    return letters(
        seed, name, rows, missing - spread + below(seed, f"{name}: size", rows, 2 * spread)
    )


@lru_cache(maxsize=2)
def _text(seed: int, *, spaces: bool) -> NDArray[np.uint8]:
    places = np.arange(_LONG)
    text = (ord("a") + below(seed, "letters", places, 26)).astype(np.uint8)
    if spaces:
        text[uniform(seed, "spaces", places) < 1 / _SPACES] = ord(" ")
    return text


def _pieces(
    text: NDArray[np.uint8], seed: int, name: str, rows: Numbers, lengths: Numbers
) -> pa.Array:
    starts = below(seed, f"{name}: start", rows, len(text) - lengths)
    ends = np.append(0, np.cumsum(lengths))
    places = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
    buffers = (pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(text[places]))
    return pa.StringArray.from_buffers(len(rows), *buffers)
