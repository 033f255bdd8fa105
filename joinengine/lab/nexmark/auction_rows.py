"""The rows of Nexmark's tables, under the names of columns that Nexmark has.

The ids, times, prices, states, categories and sizes follow the published rules. Texts that no join
reads are our own: names, cities, and one URL for each channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinengine.lab.nexmark.event_keys import FIRST_ID, KINDS, REFERENCES, ROUND, Numbers, below
from joinengine.lab.nexmark.letters import filling, letters, phrases
from joinengine.lab.tpch.skew import ZipfKeys, uniform
from joinengine.lab.tpch.stream import EPOCH_US, time_array

MS = 1000
#: The mean size of a row, in bytes; numbers and times count as 8.
SIZES = {"person": 200, "auction": 500, "bid": 100}
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = ("Tucson", "Phoenix", "Oakland", "Fresno", "Boise", "Salem", "Portland", "Seattle")
FIRST_NAMES = ("Ada", "Alan", "Barbara", "Donald", "Edgar", "Frances", "Grace", "Jim", "Leslie")
LAST_NAMES = ("Allen", "Codd", "Gray", "Hopper", "Knuth", "Lamport", "Liskov", "Turing")
#: The first of five categories.
FIRST_CATEGORY, CATEGORIES = 10, 5
#: How many other auctions begin while an auction of average length is open.
OPEN_AUCTIONS = 100
OPEN_EVENTS = OPEN_AUCTIONS * ROUND // KINDS["auction"].each
#: Half of the bids come through one of the first channels, the others through any of the rest.
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000


@dataclass(frozen=True)
class House:
    """What the rows of an auction house depend on; durations in microseconds.

    `lasting`: column -> draws that replace the published rule. `shift_us`: after how long other
    keys become hot in them; None: never.
    """

    seed: int
    rate: float
    disorder_us: int
    lasting: dict[str, ZipfKeys]
    shift_us: int | None

    def arrivals_us(self, events: Numbers) -> Numbers:
        """(n,) numbers of events -> (n,) times, in whole milliseconds."""
        return EPOCH_US + (events * (1e6 / self.rate)).astype(np.int64) // MS * MS

    def longest_us(self) -> int:
        """The longest that an auction may be open."""
        return 2 * MS * (int(OPEN_EVENTS * (1e6 / self.rate)) // MS + 1)

    def times_us(self, table: str, rows: Numbers) -> Numbers:
        """(n,) rows of a table -> (n,) event times."""
        late = below(self.seed, f"{table}: disorder", rows, self.disorder_us)
        return self.arrivals_us(KINDS[table].events(rows)) - late

    def keys(self, table: str, column: str, rows: Numbers) -> pa.Array:
        """(n,) rows of a table -> (n,) ids that a column of it names."""
        events = KINDS[table].events(rows)
        if column not in self.lasting:
            return pa.array(REFERENCES[column].draw(self.seed, column, rows, events))
        phases = None
        if self.shift_us is not None:
            phases = (self.arrivals_us(events) - EPOCH_US) // self.shift_us
        return pa.array(self.lasting[column].draw(rows, phases))


def persons(house: House, rows: Numbers) -> pa.Table:
    """Persons, by their rows."""
    seed = house.seed
    name = pc.binary_join_element_wise(
        _choice(seed, "person: first name", rows, FIRST_NAMES),
        _choice(seed, "person: last name", rows, LAST_NAMES),
        " ",
    )
    mailbox, host = (
        phrases(seed, "person: mailbox", rows, 7),
        phrases(seed, "person: host", rows, 5),
    )
    groups = [
        pc.utf8_lpad(pa.array(below(seed, f"person: card {n}", rows, 10_000).astype("U4")), 4, "0")
        for n in range(4)
    ]
    columns = {
        "id": pa.array(FIRST_ID + rows),
        "name": name,
        "emailAddress": pc.binary_join_element_wise(mailbox, "@", host, ".com", ""),
        "creditCard": pc.binary_join_element_wise(*groups, " "),
        "city": _choice(seed, "person: city", rows, CITIES),
        "state": _choice(seed, "person: state", rows, STATES),
        "dateTime": time_array(house.times_us("person", rows)),
    }
    return _filled(seed, "person", rows, columns)


def auctions(house: House, rows: Numbers) -> pa.Table:
    """Auctions, by their rows."""
    seed, times = house.seed, house.times_us("auction", rows)
    events = KINDS["auction"].events(rows)
    mean_ms = (house.arrivals_us(events + OPEN_EVENTS) - house.arrivals_us(events)) // MS
    open_ms = 1 + below(seed, "auction: length", rows, np.maximum(2 * mean_ms, 1))
    bid = _prices(seed, "auction: first bid", rows)
    columns = {
        "id": pa.array(FIRST_ID + rows),
        "itemName": phrases(seed, "auction: name", rows, 20),
        "description": phrases(seed, "auction: description", rows, 100),
        "initialBid": pa.array(bid),
        "reserve": pa.array(bid + _prices(seed, "auction: reserve", rows)),
        "dateTime": time_array(times),
        "expires": time_array(times + open_ms * MS),
        "seller": house.keys("auction", "seller", rows),
        "category": pa.array(FIRST_CATEGORY + below(seed, "auction: category", rows, CATEGORIES)),
    }
    return _filled(seed, "auction", rows, columns)


def bids(house: House, rows: Numbers) -> pa.Table:
    """Bids, by their rows."""
    seed = house.seed
    hot = below(seed, "bid: hot channel", rows, len(HOT_CHANNELS))
    other = len(HOT_CHANNELS) + below(seed, "bid: channel", rows, CHANNELS)
    channels = pa.array(np.where(uniform(seed, "bid: is hot channel", rows) < 0.5, hot, other))
    names, urls = _channels()
    columns = {
        "auction": house.keys("bid", "auction", rows),
        "bidder": house.keys("bid", "bidder", rows),
        "price": pa.array(_prices(seed, "bid: price", rows)),
        "channel": names.take(channels),
        "url": urls.take(channels),
        "dateTime": time_array(house.times_us("bid", rows)),
    }
    return _filled(seed, "bid", rows, columns, texts=False)


#: Table -> its rows.
ROWS: dict[str, Callable[[House, Numbers], pa.Table]] = {
    "person": persons,
    "auction": auctions,
    "bid": bids,
}


def _filled(
    seed: int, table: str, rows: Numbers, columns: dict[str, pa.Array], *, texts: bool = True
) -> pa.Table:
    """The whole table. `texts`: whether texts count for the size of a row."""
    sizes = np.zeros(len(rows), np.int64)
    for column in columns.values():
        if not pa.types.is_string(column.type):
            sizes += 8
        elif texts:
            sizes += pc.binary_length(column).to_numpy()
    extra = filling(seed, f"{table}: extra", rows, sizes, SIZES[table])
    return pa.table({**columns, "extra": extra})


def _choice(seed: int, name: str, rows: Numbers, words: Sequence[str]) -> pa.Array:
    return pa.array(words).take(pa.array(below(seed, name, rows, len(words))))


def _prices(seed: int, name: str, rows: Numbers) -> Numbers:
    """Prices in cents, from 1 to a million dollars, each power of ten equally often."""
    return np.rint(10 ** (uniform(seed, name, rows) * 6) * 100).astype(np.int64)


@lru_cache(maxsize=1)
def _channels() -> tuple[pa.Array, pa.Array]:
    """The names of all channels, and their URLs."""
    numbers = np.arange(CHANNELS)
    names = pa.array([*HOT_CHANNELS, *(f"channel-{number}" for number in numbers)])
    words = letters(0, "channel", np.arange(len(names)), np.full(len(names), 15))
    return names, pc.binary_join_element_wise(
        "https://auctions.example/", words, "/item?channel=", names, ""
    )
