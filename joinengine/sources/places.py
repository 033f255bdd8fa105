"""Places in sources, and the pieces between two places, which tasks read.

In a source that is one sequence, such as the row groups of a folder, a place is a count. In a topic
of Kafka, it says how far each partition has been read: partition -> next offset.

A *piece* is the unit that a task reads: a row group, or a range of offsets of a partition. Long
ranges are cut if several tasks share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple, Self, TypeVar

from joinengine.sources.positions import RowGroup

#: How far a source has been read.
Place = int | Mapping[int, int]
#: The fewest rows of a part of a range: each part costs a separate request.
_FEWEST_ROWS = 8_192


@dataclass(slots=True)
class Seen:
    """How far the partitions of a source have come.

    Partition -> the greatest event time (us), and the timestamp of the last message read
    (milliseconds since the epoch).
    """

    times: dict[int, int] = field(default_factory=dict)
    stamps: dict[int, int] = field(default_factory=dict)


class OffsetRange(NamedTuple):
    """The offsets [first, end) of a partition.

    `skipped`: why they are not read; None: they are read.
    """

    topic: str
    partition: int
    first: int
    end: int
    skipped: str | None = None

    @property
    def rows(self) -> int:
        """The most messages that it may have: not every offset has one."""
        return 0 if self.skipped else self.end - self.first

    @property
    def told(self) -> str:
        """The range in words."""
        return f"{self.topic}[{self.partition}] offsets {self.first} to {self.end - 1}"

    @property
    def source(self) -> tuple[str]:
        """The unit that is read in one go: the topic, with all its partitions."""
        return (self.topic,)

    def part(self, start: int, stop: int) -> Self:
        """The offsets number [start, stop) of the range."""
        return self._replace(first=self.first + start, end=self.first + stop)


Piece = RowGroup | OffsetRange
P = TypeVar("P", bound=Piece)


def shared(pieces: Sequence[tuple[int, Piece]], parts: int) -> list[tuple[int, Piece]]:
    """(source, piece) pairs, with long pieces cut where `parts` parts of equal rows end.

    >>> [(one.first, one.end) for _, one in shared([(0, OffsetRange("t", 0, 5, 40_005))], 2)]
    [(5, 20005), (20005, 40005)]
    """
    total = sum(piece.rows for _, piece in pieces)
    if total < parts * _FEWEST_ROWS:
        return list(pieces)
    ends = [total * part // parts for part in range(parts + 1)]
    shares, begin = list[tuple[int, Piece]](), 0
    for source, piece in pieces:
        end = begin + piece.rows
        if isinstance(piece, OffsetRange):
            cuts = [begin, *(at for at in ends if begin < at < end), end]
            shares += [
                (source, piece.part(start - begin, stop - begin)) for start, stop in pairwise(cuts)
            ]
        else:
            shares.append((source, piece))
        begin = end
    return shares


def fold(groups: Sequence[tuple[int, P]], parts: int) -> list[list[tuple[int, P]]]:
    """(source, piece) pairs in order -> at most `parts` stretches of about equal rows.

    >>> [len(part) for part in fold([(0, RowGroup("f", i, 10)) for i in range(5)], 2)]
    [2, 3]
    """
    ends = list(accumulate(group.rows for _, group in groups))
    folded: list[list[tuple[int, P]]] = [[] for _ in range(parts)]
    for (source, group), end in zip(groups, ends, strict=True):
        middle = end - group.rows / 2
        # Skipped files have no rows.
        folded[min(int(middle * parts / max(ends[-1], 1)), parts - 1)].append((source, group))
    return [part for part in folded if part]


def by_file(groups: Sequence[P]) -> Iterator[list[P]]:
    """Groups adjacent pieces that are read in one go, such as the row groups of one file."""
    part = list[P]()
    for group in groups:
        if part and part[-1].source != group.source:
            yield part
            part = []
        part.append(group)
    if part:
        yield part
