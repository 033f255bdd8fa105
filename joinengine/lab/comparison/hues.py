"""Which colour a layout has: the same in every picture and page, as far as six colours go.

Why: a reader who has seen `auto` in orange looks for orange in the next picture. If colours
followed the order of a picture's layouts, they would change with that order.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count

#: Layouts that are often compared, one or two of each kind: the number of its colour is its place.
OWN = ("hash", "auto", "mnrt", "dynamic", "bi", "pkg")


def hues_of(layouts: Iterable[str]) -> dict[str, int]:
    """The layouts of a picture, perhaps with settings -> the numbers of their colours.

    No two have the same number. A layout of OWN has its own number. Other layouts, and the same
    layout with other settings, get free numbers, the less known ones first, beyond six if need be.

    >>> hues_of(["auto", "hash"]), hues_of(["lptf", "mnrt:imbalance=0.2", "mnrt", "hash"])
    ({'auto': 1, 'hash': 0}, {'lptf': 5, 'mnrt:imbalance=0.2': 4, 'mnrt': 2, 'hash': 0})
    """
    labels, owners = list(dict.fromkeys(layouts)), dict[str, str]()
    for label in sorted(labels, key=lambda label: ":" in label):
        owners.setdefault(label.partition(":")[0], label)
    own = {owners[name]: number for number, name in enumerate(OWN) if name in owners}
    numbers = chain(reversed(range(len(OWN))), count(len(OWN)))
    free = (number for number in numbers if number not in own.values())
    return {label: own[label] if label in own else next(free) for label in labels}
