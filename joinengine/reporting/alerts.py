"""Warnings of a query: rows that it leaves out, and state that grows for ever.

Why: both are counted, but nobody reads the counters of a query that seems to work. Files that are
read in another order than event time can cost nearly all results, with exit code 0; and a join
without a window works for weeks before a disk is full.

How: for each reason (rows that are late, ahead of the clock, or without a key), one warning names
an input by its side, in the first batch that leaves out a MARKED part of its rows; when the query
ends, another one gives the sum of the run, if it had several batches. A join whose cap leaves out
pairs has the same. A join without a window has a warning once it holds state, with the cost of a
row. If the query ends by itself, a single run needs no such warning; but if the checkpoint had
state from an earlier start, one at the end says how the state has grown in the run. An instance
that stays above `capacity` has one warning.
Cost: some additions for each batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from joinengine.balancing.reasons import Cause
from joinengine.driver.records import BatchRecord, Refused
from joinengine.model.conditions import AsOf
from joinengine.model.keys import PAIR, Side
from joinengine.model.query import FromSource
from joinengine.model.texts import counted, size_text
from joinengine.operators.base import QuerySpec, sides_of
from joinengine.reporting.explain import input_name, name_of

#: A warning names an input if a batch leaves out this part of its rows.
MARKED = 0.01
#: A warning names an instance that is full for so many batches in a row without a change of layout.
FULL_BATCHES = 3
#: Reason -> what has happened to the rows, and what to do. The names are fields of `Refused`.
_WORDS: Mapping[str, tuple[str, str]] = {
    "late": (
        "arrived later than the delay allows, so no result contains them",
        "Give a longer delay",
    ),
    "null": (
        "have no key or no event time, so they match nothing",
        "If that is not intended, check these columns in the source",
    ),
    "ahead": (
        "have an event time further ahead of the clock than max_ahead, so no result contains them",
        "Check the clocks of the writers, or give a longer max_ahead",
    ),
    "change": (
        "have a change that is NULL, 0 or a word without a meaning, so no result contains them",
        "Check the column of changes in the source",
    ),
}
#: The words for a row without a time, in an operator without another side that it could match.
_NO_WINDOW = "have no event time, so no window holds them"

#: What to do about late rows of a source, by the first word of its name.
_LATE_CURES: Mapping[str, str] = {
    "folder": "If the files are not read in the order of event time, use parquet_stream(.., "
    "order='time') or --file-order time. Otherwise give a longer delay",
    "dataframe": "Give a longer delay=, or if none is given, a longer withWatermark. If Spark "
    "reads Parquet files in another order than event time, use parquet_stream(.., order='time')",
}
_WINDOW = "If old rows need not match new ones, give within=, tumbling or sliding windows"


@dataclass
class Alerts:
    """The warnings of a query; `take` gets each batch. `ends`: whether the query ends by itself.

    `capacity`: rows that an instance may hold; None: any number.
    `before`: (rows, bytes) that each operator held at the start; empty: the checkpoint is new.
    """

    query: QuerySpec
    ends: bool = False
    before: Sequence[tuple[int, int]] = ()
    capacity: int | None = None
    _sums: dict[tuple[int, Side], Refused] = field(default_factory=dict)
    _named: dict[tuple[int, Side, str], Refused] = field(default_factory=dict)
    #: operator -> pairs that its cap has left out
    _capped: dict[int, int] = field(default_factory=dict)
    #: joins without a window -> (rows, bytes) that they hold; and the joins already named
    _endless: dict[int, tuple[int, int]] = field(default_factory=dict)
    _warned: set[int] = field(default_factory=set)
    #: operator -> how many batches in a row ended with a full instance; and those already named
    _full: dict[int, int] = field(default_factory=dict)
    _overfull: set[int] = field(default_factory=set)

    def take(self, record: BatchRecord) -> list[str]:
        """The new warnings after a batch; each appears once in a run."""
        said = self._leaving_out(record), self._capping(record), self._growth(record)
        return [*chain(*said), *self._filling(record)]

    def _capping(self, record: BatchRecord) -> list[str]:
        """A warning for each join that leaves out pairs of a key for the first time."""
        alerts = list[str]()
        for number, entry in enumerate(record.joins):
            if not entry.capped_pairs:
                continue
            if number not in self._capped:
                key = entry.capped[0]
                value = "with a value that is not told" if key.text is None else key.text
                alerts.append(
                    f"batch {record.batch}: the key {value} of {self._join(number)} has "
                    f"{counted(key.made + key.left_out, 'pair')}, of which max_pairs_per_key left "
                    f"out {key.left_out:,}, so no result contains them. Filter such rows, or raise "
                    f"max_pairs_per_key"
                )
            self._capped[number] = self._capped.get(number, 0) + entry.capped_pairs
        return alerts

    def _filling(self, record: BatchRecord) -> list[str]:
        """A warning for each operator with an instance that stays full, once."""
        alerts = list[str]()
        for operator, entry in zip(self.query.operators, record.joins, strict=True):
            number, held = operator.index, entry.state.held
            stays = entry.reason is None or entry.reason.cause is Cause.DECLINED
            most = self.capacity if operator.policy.grows else None
            is_full = most is not None and max(held, default=0) > most
            self._full[number] = self._full.get(number, 0) + 1 if is_full and stays else 0
            if self._full[number] == FULL_BATCHES and number not in self._overfull:
                self._overfull.add(number)
                alerts.append(
                    f"batch {record.batch}: instance {held.index(max(held))} of "
                    f"{self._join(number)} holds {counted(max(held), 'row')}, above its capacity "
                    f"of {self.capacity:,}. The layout does not grow, since few keys fill the "
                    f"instance, and more instances would not divide them. Use a layout that "
                    f"divides keys, such as auto, or raise capacity"
                )
        return alerts

    def _growth(self, record: BatchRecord) -> list[str]:
        """A warning for each join of two streams whose state nothing ever leaves."""
        alerts = list[str]()
        tables = [FromSource(source) for source in self.query.tables]
        for operator, entry in zip(self.query.operators, record.joins, strict=True):
            streams = [source for source in operator.inputs if source not in tables]
            if operator.window is not None or len(streams) < len(PAIR) or not entry.state.rows:
                continue
            if isinstance(operator.condition, AsOf):  # `latest` keeps one version of a key
                continue
            if all(operator.admission(side).u_of for side in sides_of(operator)):
                continue  # the state follows the rows that are there, not their changes
            self._endless[operator.index] = entry.state.rows, entry.state.size_bytes
            if not self.ends and operator.index not in self._warned:
                self._warned.add(operator.index)
                each = size_text(entry.state.size_bytes / entry.state.rows * 1e6)
                alerts.append(
                    f"{self._join(operator.index)} has no window, so its state grows without "
                    f"bound: by {each} per million rows. {_WINDOW}"
                )
        return alerts

    def _grown(self) -> list[str]:
        """A sentence for each such join, if the query ends and has continued from earlier state."""
        alerts = list[str]()
        for number, (rows, size) in self._endless.items() if self.ends else ():
            rows_before, size_before = self.before[number] if self.before else (0, 0)
            if 0 < rows_before < rows:
                alerts.append(
                    f"{self._join(number)} has no window, so its state grows with every start: in "
                    f"this run from {counted(rows_before, 'row')} ({size_text(size_before)}) to "
                    f"{counted(rows, 'row')} ({size_text(size)}). {_WINDOW}"
                )
        return alerts

    def _join(self, number: int) -> str:
        return name_of(self.query.operators[number]).removeprefix("joinengine ")

    def _leaving_out(self, record: BatchRecord) -> list[str]:
        """A warning for each stream that loses a MARKED part of its rows for the first time."""
        alerts = list[str]()
        for operator, entry in zip(self.query.operators, record.joins, strict=True):
            for side in sides_of(operator):
                refused = entry.sides[side].refused
                key = operator.index, side
                self._sums[key] = self._sums.get(key, Refused()) + refused
                for reason in _WORDS:
                    count = getattr(refused, reason)
                    if count == 0 or count < MARKED * refused.rows:
                        continue
                    if (*key, reason) not in self._named:
                        self._named[*key, reason] = refused
                        counted = self._counted(key, count, refused.rows)
                        cure = self._cure(reason, key)
                        what = self._what(reason, operator.index)
                        alerts.append(f"batch {record.batch}: {counted} {what}. {cure}")
        return alerts

    def sums(self) -> Sequence[str]:
        """The warnings about the whole run, once it is over."""
        left_out = [
            f"in total, {self._counted((operator, side), getattr(sums, reason), sums.rows)} "
            f"{self._what(reason, operator)}"
            for (operator, side, reason), named in self._named.items()
            for sums in [self._sums[operator, side]]
            if sums.rows != named.rows  # else the run is one batch, and its warning says the same
        ]
        capped = [
            f"in total, max_pairs_per_key left out {counted(pairs, 'pair')} of {self._join(number)}"
            for number, pairs in self._capped.items()
        ]
        return [*left_out, *capped, *self._grown()]

    def _counted(self, key: tuple[int, Side], count: int, rows: int) -> str:
        """The input in words, and how many of its rows."""
        return f"{count:,} of {rows:,} rows ({count / rows:.0%}) of {self._input(*key)}"

    def _what(self, reason: str, number: int) -> str:
        """What has happened to rows of an operator."""
        alone = len(sides_of(self.query.operators[number])) == 1
        return _NO_WINDOW if alone and reason == "null" else _WORDS[reason][0]

    def _cure(self, reason: str, key: tuple[int, Side]) -> str:
        """What to do about rows that an input loses."""
        kind, cure = self._source(*key).partition(" ")[0], _WORDS[reason][1]
        return _LATE_CURES.get(kind, cure) if reason == "late" else cure

    def _input(self, number: int, side: Side) -> str:
        """An input in words; a side tells apart two DataFrames, or one stream read on both."""
        name, operators = self._source(number, side), self.query.operators
        if len(sides_of(operators[number])) == 1:
            return name
        among = f" of operator {number}" if len(operators) > 1 else ""
        return f"the {side.name.lower()} side{among} ({name})"

    def _source(self, number: int, side: Side) -> str:
        return input_name(self.query, self.query.operators[number].inputs[side])
