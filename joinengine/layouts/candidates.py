"""The candidates of a key under choice layouts, and how many a key of the head needs.

Law: the candidates of a key for a smaller degree are the first of those for a larger one; a degree
of at least the number of instances gives all instances.
Source: Nasir et al., ICDE 2015 and ICDE 2016 (least_degree).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from joinengine.kernels.hashing import Words, mix
from joinengine.kernels.probing import Ints
from joinengine.model.errors import InvalidRequest
from joinengine.routing.routes import Instances

#: The imbalance that d-choices accepts (ICDE 2016, epsilon).
EPSILON = 1e-4


def check_choices(name: str, choices: int, instances: int) -> None:
    """Raise InvalidRequest, naming the layout, for more candidates of a key than instances."""
    if choices > instances:
        raise InvalidRequest(
            f"{name}: choices must be at most the number of instances, {instances}, found {choices}"
        )


def candidates(hashes: Words, choices: int, instances: int) -> Instances:
    """(n,) key hashes -> (n, choices) instances; two of a key may be the same, as in the paper.

    >>> candidates(np.array([5], np.uint64), 2, 10).shape
    (1, 2)
    """
    numbers = (np.arange(1, choices + 1, dtype=np.uint64) << np.uint64(48))[None, :]
    return (mix(hashes[:, None] ^ numbers) % np.uint64(instances)).astype(np.uint16)


def head_places(hash_: int, degree: int, instances: int) -> Instances:
    """The places of a key with `degree` candidates; all instances if `degree` is that many."""
    if degree >= instances:
        return np.arange(instances, dtype=np.uint16)
    return each_once(drawn_for(hash_, degree, instances))


def drawn_for(hash_: int, degree: int, instances: int) -> Instances:
    """(degree,) the candidates of one key, in order, as they are drawn."""
    drawn: Instances = candidates(np.array([hash_], np.uint64), degree, instances)[0]
    return drawn


def each_once(places: Instances) -> Instances:
    """The places without repetition, in the order of their first occurrence."""
    distinct_places: Instances = places[np.sort(np.unique(places, return_index=True)[1])]
    return distinct_places


def covering(hash_: int, holders: Ints, choices: int, instances: int) -> int:
    """The least degree, at least `choices`, whose places include all `holders` of a key.

    >>> covering(5, np.arange(3), 2, 3)
    3
    """
    drawn = drawn_for(hash_, max(choices, instances - 1), instances)
    places, firsts = np.unique(drawn, return_index=True)
    needed = np.full(instances, -1)
    needed[places] = firsts + 1
    needed = needed[holders]
    if (needed < 0).any():
        return max(instances, choices + 1)
    return max(choices, int(needed.max(initial=0)))


def least_degree(head: Sequence[float], instances: int) -> int:
    """The least d with which no prefix of the head exceeds the fair share of its candidates.

    The tuples that other keys are expected to bring to the same candidates count too.

    >>> least_degree([0.5], 10), least_degree([0.05], 10)
    (10, 2)
    """
    n, tail = instances, 1.0 - sum(head)
    prefix = np.cumsum(head)
    sizes = np.arange(1, len(head) + 1)
    degree = max(2, math.ceil(max(head, default=0.0) * n))
    while degree < n and len(head):
        covered = 1 - ((n - 1) / n) ** (sizes * degree)
        drawn = prefix + covered**degree * (prefix[-1] - prefix) + covered**2 * tail
        if (drawn <= covered + EPSILON).all():
            return degree
        degree += 1
    return min(degree, n)
