"""The join by definition: every left tuple against every right one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Row = TypeVar("Row", bound=Hashable)


def nested_loop(
    left: Iterable[Row], right: Iterable[Row], matches: Callable[[Row, Row], bool]
) -> Counter[tuple[Row, Row]]:
    """All pairs for which `matches(left, right)`, as a multiset. Cost: left x right.

    >>> nested_loop([1, 2], [2, 2], lambda a, b: a == b)
    Counter({(2, 2): 2})
    """
    rights = list(right)
    return Counter((a, b) for a in left for b in rights if matches(a, b))
