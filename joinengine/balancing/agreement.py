"""Which of the last intervals predict the next one, and for how long the prediction holds.

Intervals are taken together as far back as they agree with the newest one: if keys have since
become hot or cold, earlier intervals predict nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, starmap

import numpy as np

from joinengine.balancing.statistics import Interval
from joinengine.kernels.probing import distinct, rows_among

#: Intervals disagree if the tuples of a key differ by more than chance (in sigmas of a Poisson
#: count), and by more than this part of the mean that an instance stores.
DEPART_SIGMAS = 5.0
DEPART_PART = 0.1


def agreeing(history: Sequence[Interval]) -> Sequence[Interval]:
    """The last intervals, back to the first one that does not agree with the newest.

    An interval that brought no tuples agrees with every other. A light report says of a key that it
    does not list only that the key had few tuples.
    """
    newest = (_with_tuples(history) or history)[-1]
    for number in range(len(history) - 2, -1, -1):
        if _departs(newest, history[number]):
            return history[number + 1 :]
    return history


def _with_tuples(history: Sequence[Interval]) -> list[Interval]:
    return [interval for interval in history if interval.stored.any()]


def alike(agreed: Sequence[Interval]) -> Sequence[Interval]:
    """The intervals of `agreed` whose reports are light, or whole, as the newest one's are."""
    reported = [interval.whole for interval in _with_tuples(agreed)]
    return [
        interval
        for interval in agreed
        if not interval.stored.any() or interval.whole is reported[-1]
    ]


def expected_life(history: Sequence[Interval]) -> float:
    """For how many intervals the present loads will last, judged by how often they changed.

    If they have not changed yet: for as many intervals as the history has.
    """
    reported = _with_tuples(history)
    changes = sum(starmap(_departs, pairwise(reported)))
    return max(len(reported), 1) / max(changes, 1)


def _departs(newest: Interval, before: Interval) -> bool:
    """Whether some key has become hotter or colder than chance explains.

    Intervals may differ in length, so the key's parts of all tuples are compared.
    """
    sizes = [float(interval.stored.sum()) for interval in (newest, before)]
    if not all(sizes):
        return False
    hashes = distinct(np.concatenate([newest.loaded, before.loaded]))
    least, most = np.zeros((2, 2, len(hashes)))
    for low, high, interval in zip(least, most, (newest, before), strict=True):
        rows, places = rows_among(hashes, interval.hashes)
        high[:] = interval.unlisted
        low[rows] = high[rows] = interval.arrived.sum(axis=0)[places]
    now, scale = least[0], sizes[0] / sizes[1]
    then = least[1] * scale
    noise = DEPART_SIGMAS * np.sqrt(now + then * scale + max(1.0, scale) ** 2)
    enough = DEPART_PART * sizes[0] / newest.stored.shape[1]
    apart = np.maximum(now - most[1] * scale, then - most[0])
    return bool((apart > np.maximum(noise, enough)).any())
