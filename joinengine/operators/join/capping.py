"""Caps the pairs of a key, for users who would rather lose pairs than wait for all of them.

Why: n left and m right tuples of a key make n * m pairs. One wrong value, such as an empty text in
place of NULL, can make more pairs than any disk holds.

Law: a pair that is left out is counted. If a task runs again on the same arrivals, it leaves out
the same pairs. If the input is cut into other batches, other pairs are left out, since the cap
applies to the arrivals of one batch.
Cost: none for keys below the cap; for the others some additions for each stored tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints
from joinengine.wire.reports import MOST_CAPPED, CappedKey, worst_capped


class Cap(NamedTuple):
    """The cap of keys that probe together: (keys,) pairs left of `most`, (keys,) pairs left out."""

    most: int
    free: Ints
    left_out: Ints

    @classmethod
    def of(cls, keys: int, most: int) -> Cap:
        """The cap before any pair is made."""
        return cls(most, np.full(keys, most), np.zeros(keys, np.int64))

    def cut(self, keys: Ints, lengths: Ints) -> Ints:
        """(n,) keys of stored tuples, equal ones adjacent, (n,) pairs of each -> (n,) pairs made.

        >>> Cap.of(2, 5).cut(np.array([0, 0, 0, 1]), np.array([3, 3, 3, 4])).tolist()
        [3, 2, 0, 4]
        """
        heads = np.flatnonzero(np.diff(keys, prepend=-1))
        before = np.cumsum(lengths) - lengths
        before -= np.repeat(before[heads], np.diff(heads, append=len(keys)))
        made = np.clip(self.free[keys] - before, 0, lengths)
        self.free[keys[heads]] -= np.add.reduceat(made, heads)
        self.left_out[keys[heads]] += np.add.reduceat(lengths - made, heads)
        return made


class Capped:
    """The pairs that a task has left out, and the keys that lost most; `named`: with values."""

    def __init__(self, *, named: bool) -> None:
        self._named = named
        self.pairs = 0
        self.keys = list[CappedKey]()

    def add(self, cap: Cap, hashes: Words, texts: Callable[[Ints], Iterable[str | None]]) -> None:
        """Take note of a cap after its use; `hashes`: (keys,); `texts`: gives values of keys."""
        top = np.argsort(cap.left_out)[-MOST_CAPPED:]
        top = top[cap.left_out[top] > 0]
        if not len(top):
            return
        self.pairs += int(cap.left_out.sum())
        numbers = hashes[top], cap.most - cap.free[top], cap.left_out[top]
        names = texts(top) if self._named else [None] * len(top)
        keys = zip(*(column.tolist() for column in numbers), names, strict=True)
        self.keys = worst_capped([*self.keys, *(CappedKey(*key) for key in keys)])
