"""Plans how far a batch reads in each partition of a topic.

Why by time: after an outage, each partition may hold hours of messages. If a batch took the next n
messages of each, event times of a slow partition would fall behind the others, and its rows would
be late. So all partitions are read up to the same moment, which is chosen so that the batch has
about as many messages as allowed.

Law: an end is never before its start nor beyond the end of its partition, and some partition
advances if there are any messages. Pure: `offsets_at` asks the broker.
Cost: no request if everything fits into a batch; otherwise a few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Partition -> offset.
Offsets = Mapping[int, int]
#: A batch is large enough with this part of the messages that it may have.
_ENOUGH = 0.5
_MOST_STEPS = 48


def are_offsets(offsets: Mapping[Any, Any]) -> bool:
    """Whether it maps partitions to offsets, as integers."""
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
    """The end of a batch of at most `most` messages that begins at `start`, and its moment (ms).

    `end`: the end of each partition. `times`: the moments (ms) between which to look.
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
    if reached == 0:  # one moment has more messages than a batch may have
        return in_proportion(start, end, most), low
    return furthest, until


def in_proportion(start: Offsets, end: Offsets, most: int) -> dict[int, int]:
    """Ends at which each partition has advanced by the same part of its messages."""
    total = sum(end[number] - start[number] for number in end)
    return {
        number: start[number] + -(-(end[number] - start[number]) * most // total) for number in end
    }
