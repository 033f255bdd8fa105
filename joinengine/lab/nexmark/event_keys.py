"""The kinds of Nexmark's events, and the persons and auctions that events name.

Of 50 events one is a person, the next three are auctions, and 46 are bids. An id is the number of a
person or an auction, from 1,000 on. Most auctions name the *hot* seller of their moment, half of
the bids the hot auction, and most bids the hot bidder: the first person, the first auction and the
second person of the newest hundred. The other events name any of the newest persons or auctions, or
one of the next ten, which do not exist yet.
Source: the generators of nexmark/nexmark and of Apache Beam, with the ratios of their default
configuration. Versions of nexmark/nexmark add the first id of a person to a bidder twice (its issue
30), so a bid there names a person who comes 50,000 events later; here it is added once, as in Beam.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joinengine.lab.tpch.skew import uniform

Numbers = NDArray[np.int64]

#: Events after which the kinds of events repeat.
ROUND = 50
FIRST_ID = 1000
#: One of so many persons or auctions is hot.
HUNDRED = 100
#: An event that names no hot key may name one of this many keys that come next.
LEAD = 10


@dataclass(frozen=True)
class Kind:
    """The events of a table: in each round, `each` of them from the event `first` on."""

    first: int
    each: int

    def events(self, rows: Numbers) -> Numbers:
        """(n,) rows of the table -> (n,) numbers of their events."""
        return rows // self.each * ROUND + self.first + rows % self.each

    def before(self, events: Numbers) -> Numbers:
        """(n,) numbers of events -> (n,) rows of the table that come before each."""
        return events // ROUND * self.each + np.clip(events % ROUND - self.first, 0, self.each)


#: Table -> its events.
KINDS = {"person": Kind(0, 1), "auction": Kind(1, 3), "bid": Kind(4, 46)}


@dataclass(frozen=True)
class Reference:
    """A column that names rows of another table.

    Of `ratio` rows, all but one name the hot key, which is number `place` of its hundred. The other
    names a row that is at most `back` rows older than the newest.
    """

    parent: str
    ratio: int
    place: int
    back: int

    def draw(self, seed: int, column: str, rows: Numbers, events: Numbers) -> Numbers:
        """(n,) rows and their events -> (n,) ids."""
        newest = KINDS[self.parent].before(events) - 1
        oldest = np.maximum(newest - self.back, 0)
        some = oldest + below(seed, column, rows, newest - oldest + 1 + LEAD)
        hot = newest // HUNDRED * HUNDRED + self.place
        is_hot = below(seed, f"{column}: hot", rows, self.ratio) > 0
        return FIRST_ID + np.where(is_hot, hot, some)


#: Column -> what it names: 100 auctions are open at a time, and 1,000 persons are active.
REFERENCES = {
    "seller": Reference("person", ratio=4, place=0, back=999),
    "auction": Reference("auction", ratio=2, place=0, back=100),
    "bidder": Reference("person", ratio=4, place=1, back=999),
}


def below(seed: int, name: str, rows: Numbers, limit: Numbers | int) -> Numbers:
    """(n,) whole numbers of at least 0 and below `limit`, by seed, name and row alone."""
    return (uniform(seed, name, rows) * limit).astype(np.int64)
