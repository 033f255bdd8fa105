"""Numbers watched tuples, chooses their watchers, and makes words from the times of judging.

Law: no two tuples in the state of one side of a join have the same number at the same time.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints
from joinengine.model.errors import InvalidRequest

#: A number has the serial of a task in its upper bits, and row times windows in the lower ROW_BITS.
#: Numbers repeat after 2^36 tasks: at 100 tasks a second, after 21 years.
ROW_BITS = 28
_SIGN = np.uint64(1 << 63)


def number_tuples(n: int, before: int, windows_each: int, serial: int) -> Words:
    """(n,) numbers for tuples that a task brings after `before` others; `serial`: of the task.

    After each number, windows_each - 1 numbers stay free for the tuple's further windows. Raises
    InvalidRequest if a task brings more tuples than it has numbers.

    >>> (number_tuples(3, 1, 2, serial=0)).tolist()
    [2, 4, 6]
    """
    if (before + n) * windows_each > 1 << ROW_BITS:
        raise InvalidRequest(
            f"a task reads {before + n} rows, each in {windows_each} windows, for one side of an "
            "outer, semi, anti or as-of join in one batch, but joinengine can number at most "
            f"{1 << ROW_BITS} entries of a task; lower rows_per_interval, so that each task reads "
            "fewer rows"
        )
    base = (serial << ROW_BITS) % (1 << 64)
    rows = np.arange(before, before + n, dtype=np.uint64) * np.uint64(windows_each)
    return rows + np.uint64(base)


def watcher_of(numbers: Words, windows_each: int, watchers: int) -> NDArray[np.uint16]:
    """(n,) numbers of tuples, or of their further windows -> (n,) watchers, in turn by tuple."""
    rows = (numbers & np.uint64((1 << ROW_BITS) - 1)) // np.uint64(windows_each)
    return (rows % np.uint64(watchers)).astype(np.uint16)


def in_order(times: Ints) -> Words:
    """(n,) times -> (n,) words that sort as the times do."""
    return times.astype(np.int64).view(np.uint64) ^ _SIGN


def word_of_time(time: float) -> int:
    """The least word (`in_order`) of a time not below `time`: 0 for -inf, 2^64 for inf.

    >>> word_of_time(float("-inf")), word_of_time(0.0) == 1 << 63, word_of_time(float("inf")) >> 64
    (0, True, 1)
    """
    if math.isinf(time):
        return 1 << 64 if time > 0 else 0
    return max(math.ceil(time) + (1 << 63), 0)
