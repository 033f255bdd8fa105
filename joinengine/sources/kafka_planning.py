"""How far a batch reads in each partition of a topic, and what has become of the offsets before.

Why by time: after an outage each partition may hold hours. If a batch took the next n messages of
each, event times of a slow partition would stay behind those of the others, and its rows would be
late. So all partitions are read up to the same moment, and the moment is chosen so that the batch
has about as many messages as it may.

Law: an end is never before its start nor beyond what is there, and some partition moves on if
anything is there. Pure: `offsets_at` asks the broker.
Cost: where everything fits into a batch, nothing is asked; else some requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Partition -> offset.
Offsets = Mapping[int, int]
#: A batch is large enough if it has such a part of what it may have.
_ENOUGH = 0.5
_MOST_STEPS = 48


def are_offsets(offsets: Mapping[Any, Any]) -> bool:
    """Whether it says partition -> offset, in whole numbers."""
    return all(
        type(number) is int and type(at) is int and at >= 0 for number, at in offsets.items()
    )


def planned(
    start: Offsets,
    end: Offsets,
    most: int,
    times: tuple[int, int],
    offsets_at: Callable[[int], Offsets],
) -> tuple[dict[int, int], int]:
    """Where a batch of at most `most` messages ends that begins at `start`, and up to which time.

    `end`: after what is there. `times`: between which moments to look, in milliseconds.
    `offsets_at(time)`: partition -> its first offset at or after a moment.

    >>> there = {0: 100, 1: 50}
    >>> planned({0: 0, 1: 0}, there, 75, (0, 100), lambda t: {0: t, 1: t // 2})
    ({0: 50, 1: 25}, 50)
    """
    if sum(end[number] - start[number] for number in end) <= most:
        return dict(end), times[1]
    low, high = times
    furthest, reached, until = dict(start), 0, low
    for _ in range(_MOST_STEPS):
        if high - low <= 1 or reached >= most * _ENOUGH:
            break
        middle = (low + high) // 2
        there = offsets_at(middle)
        ends = {
            number: min(max(there.get(number, 0), start[number]), end[number]) for number in end
        }
        rows = sum(ends[number] - start[number] for number in end)
        if rows > most:
            high = middle
            continue
        low = until = middle
        furthest, reached = ends, rows
    if reached == 0:  # one moment has more than a batch may have
        return in_proportion(start, end, most), low
    return furthest, until


def in_proportion(start: Offsets, end: Offsets, most: int) -> dict[int, int]:
    """Ends that leave each partition the same part of what it has."""
    total = sum(end[number] - start[number] for number in end)
    return {
        number: start[number] + -(-(end[number] - start[number]) * most // total) for number in end
    }
