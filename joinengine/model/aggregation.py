"""Windowed aggregates: groups, functions, panes, and when a window is over.

Event time is cut into *panes*, the longest stretches such that every window is made of whole panes.
Tuples are added up per pane and group, and panes are added up to windows: a tuple is added up once,
however many windows hold it. Times are microseconds; a pane is named by its end. Under sessions,
panes are pieces of sessions: they begin where a tuple does, and may overlap.
Source of panes: Li et al., SIGMOD Record 2005.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.model.arguments import check_count, check_number, check_text
from joinengine.model.durations import describe
from joinengine.model.errors import InvalidRequest
from joinengine.model.lateness import (
    Delays,
    Duration,
    Lateness,
    TimeColumns,
    lateness,
    positive_length,
    time_columns,
)
from joinengine.model.query import WINDOW_END, WINDOW_START
from joinengine.model.windows import INT_MAX, INT_MIN, Times, plus_held, window_numbers

#: Columns of partial results: the end of a row's pane and, under sessions, its beginning.
PANE, BEGINNING = "__pane", "__beginning"


class AggregateFunction(StrEnum):
    """The function that an aggregate applies to the values of an expression."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    HISTOGRAM = "histogram"


#: Prefixes of the columns that count +inf, -inf and NaN among the values of a sum.
ENDLESS_VALUES = ("i", "j", "u")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One output column: `function` of an expression.

    `sql`: the expression over columns c0, c1, .. of `Grouping.columns`; None: rows are counted.
    `kind`: the type of the result. `sums`: the type of sums in partial results. `weight`: the
    column that says how often a row counts; empty: once. `bins`: the most bins of a histogram.
    """

    name: str
    function: AggregateFunction
    sql: str | None
    kind: pa.DataType
    sums: str = ""
    weight: str = ""
    bins: int = 0

    @property
    def counts_values(self) -> bool:
        """Whether partial results also count the values of a sum."""
        is_sum = self.function is AggregateFunction.SUM
        return self.function is AggregateFunction.MEAN or (is_sum and bool(self.weight))

    @property
    def counts_endless(self) -> bool:
        """Whether partial results count infinities and NaN apart: no sum can subtract them."""
        return bool(self.weight) and self.sums == "DOUBLE"

    @property
    def parts(self) -> tuple[str, ...]:
        """Prefixes of a partial sum's columns: the sum, its values, infinities and NaN."""
        return ("p", *"n" * self.counts_values, *ENDLESS_VALUES * self.counts_endless)


@dataclass(frozen=True, slots=True)
class Top:
    """Per window the `k` groups with the greatest values of the aggregate `by`.

    `error`: counts may err by this part of the window's tuples, and have bounds; None: exact.
    """

    k: int
    by: str
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Panes:
    """Windows of `size`, one ending every `slide`, and the panes that they are made of.

    `given`: the rows hold the end of their window; each window is then one pane.
    """

    size_us: int
    slide_us: int
    given: bool = False
    function: ClassVar[str] = "windows"

    @property
    def pane_us(self) -> int:
        """The length of a pane."""
        return math.gcd(self.size_us, self.slide_us)

    def pane_of(self, times: Times) -> Times:
        """(n,) event times, or ends of windows -> the end of the pane of each."""
        if self.given:
            return times
        numbers, last = times // self.pane_us, INT_MAX // self.pane_us - 1
        # A pane that ends beyond 64-bit times is in no window, and INT_MAX is the end of no window.
        return np.where(numbers > last, INT_MAX, (np.minimum(numbers, last) + 1) * self.pane_us)

    def ends(self, panes: Times, closed: float, watermark: float) -> NDArray[np.int64]:
        """The ends of the windows that hold any of (n,) panes and lie in (closed, watermark]."""
        instants = np.unique(panes)
        if self.given:
            return instants[(instants > closed) & (instants <= watermark)]
        # Panes share windows: each window is listed once, and none that ends after `watermark`.
        numbers, first, last = [np.empty(0, np.int64)], self._after(closed), self._after(watermark)
        for low, high in map(self._holding, instants.tolist()):
            numbers.append(np.arange(min(max(low, first), high, last), min(high, last)))
            first = max(first, high)
        return np.concatenate(numbers) * self.slide_us + self.size_us

    def _after(self, moment: float) -> int:
        """The first window that ends after a moment, or the one after the last."""
        least, most = window_numbers(self.size_us, self.slide_us)
        number = moment if math.isinf(moment) else (int(moment) - self.size_us) // self.slide_us
        return int(min(max(number + 1, least), most + 1))

    def first_end(self, time: int) -> float:
        """The end of the first window that ends at `time` or later; inf: there is none."""
        first = self._after(time - 1)
        return first * self.slide_us + self.size_us if first < self._after(math.inf) else math.inf

    def _holding(self, pane: int) -> tuple[int, int]:
        """The first window that ends with a pane or later, and the one after the last."""
        most, last = self._after(math.inf), (pane - self.pane_us) // self.slide_us
        return self._after(pane - 1), min(last + 1, most)

    def first_pane(self, end: int) -> int:
        """The end of the first pane of the window that ends at `end`."""
        return end if self.given else end - self.size_us + self.pane_us

    def spent(self, watermark: float) -> int:
        """The time up to which panes are in no window that ends after `watermark`."""
        if self.given or math.isinf(watermark):
            return time_before(watermark)
        return (int(watermark) - self.size_us) // self.slide_us * self.slide_us + self.slide_us

    def __str__(self) -> str:
        return f"windows of {describe(self.size_us)} every {describe(self.slide_us)}"


@dataclass(frozen=True, slots=True)
class Sessions:
    """A session of a group ends `gap` after its last tuple; a tuple exactly at its end extends it.

    A session that would end beyond 64-bit times does not exist.
    """

    gap_us: int
    function: ClassVar[str] = "session_windows"

    def pane_of(self, times: Times) -> Times:
        """(n,) event times -> for each, the end of a session that holds this tuple alone."""
        return plus_held(times, self.gap_us)[0]

    @staticmethod
    def ended_by(watermark: float) -> int:
        """The latest end of a session that no tuple at or above `watermark` can extend."""
        return time_before(watermark if math.isinf(watermark) else math.ceil(watermark) - 1)

    def __str__(self) -> str:
        return f"sessions with gaps of {describe(self.gap_us)}"


@dataclass(frozen=True, slots=True)
class Last:
    """For each tuple: itself, and the `rows` - 1 tuples of its group before it in event time."""

    rows: int
    function: ClassVar[str] = "last"

    def __str__(self) -> str:
        return f"the last {self.rows} rows up to each"


def time_before(watermark: float) -> int:
    """The last 64-bit time that is not above a watermark."""
    if math.isinf(watermark):
        return INT_MAX if watermark > 0 else INT_MIN
    return int(watermark)


@dataclass(frozen=True, slots=True)
class Windows:
    """The event time and windows of an aggregate; see `windows`, `session_windows` and `last`."""

    times: tuple[str, ...]
    panes: Panes | Sessions | Last
    late: Lateness


def windows(
    time: TimeColumns,
    size: Duration,
    slide: Duration | None = None,
    *,
    delay: Duration | None = None,
    idle_after: Duration | None = None,
    max_ahead: Duration | None = None,
) -> Windows:
    """Windows of length `size` over event time; one starts every `slide`.

    `time`: the event-time column. A source that is a join may have several; the latest counts.
    `slide`: if not given, `size`: windows then follow one another.
    `delay`, `idle_after`, `max_ahead` and errors: as in `within`.

    >>> windows("ts", "1 minute").panes.slide_us
    60000000
    """
    length = positive_length(size, "windows: size")
    step = length if slide is None else positive_length(slide, "windows: slide")
    late = lateness("windows", delay, idle_after, max_ahead)
    return Windows(time_columns(time), Panes(length, step), late)


def session_windows(
    time: TimeColumns,
    gap: Duration,
    *,
    delay: Duration | None = None,
    idle_after: Duration | None = None,
    max_ahead: Duration | None = None,
) -> Windows:
    """Sessions: stretches of event time in which a group has rows at most `gap` apart.

    A session ends `gap` after its last row. A row at this end goes on with it, as in Spark.
    `time`, `delay`, `idle_after`, `max_ahead` and errors: as in `windows`.

    >>> print(session_windows("ts", gap="5 minutes").panes)
    sessions with gaps of 5 min
    """
    length = positive_length(gap, "session_windows: gap")
    late = lateness("session_windows", delay, idle_after, max_ahead)
    return Windows(time_columns(time), Sessions(length), late)


def last(
    time: TimeColumns,
    rows: int,
    *,
    delay: Duration | None = None,
    idle_after: Duration | None = None,
    max_ahead: Duration | None = None,
) -> Windows:
    """For each row, the last `rows` rows of its group up to it, by event time; each is a result.

    This is SQL's ROWS BETWEEN rows - 1 PRECEDING AND CURRENT ROW. Rows of one time are ordered by
    the columns that the aggregates use.
    `time`, `delay`, `idle_after`, `max_ahead` and errors: as in `windows`.

    >>> print(last("ts", rows=100).panes)
    the last 100 rows up to each
    """
    if check_count(rows, "last: rows") < 1:
        raise InvalidRequest(f"last: rows {rows} must be at least 1")
    late = lateness("last", delay, idle_after, max_ahead)
    return Windows(time_columns(time), Last(rows), late)


def top(k: int, *, by: str, error: float | None = None) -> Top:
    """Keep the `k` groups of each window with the greatest values of the aggregate `by`.

    Of equal values, the least group comes first.
    `error`: count with sketches, to save memory; only for `count(*)` by one column. A count is
    wrong by at most this fraction of the window's rows. The columns `<by>_low` and `<by>_high` are
    its bounds.

    Raises InvalidRequest if `k` is below 1, or if `error` is not from 1e-6 to below 1.
    """
    check_text(by, "top: by", "top(10, by='n')")
    if check_count(k, "top") < 1:
        raise InvalidRequest(f"top: {k} must be at least 1")
    if error is not None and not 1e-6 <= check_number(error, "top: error") < 1:
        raise InvalidRequest(
            f"top: error {error} must be a fraction of all rows, from 1e-6 to below 1"
        )
    return Top(k, by, error)


class Stage(Enum):
    """The stages of an aggregation, each an operator; TOP exists only if `top` is given.

    RUNNING stands alone, for `last`. Otherwise, a query has the others:

    PARTIAL  the instances of the layout add tuples up, and pass partial results on now and then.
    MERGE    aggregators, chosen by the hash of the group, add these results up, window by window.
    TOP      one instance for each window takes the greatest groups of all aggregators.
    RUNNING  the instance of a group adds up the last tuples before each of its tuples.
    """

    PARTIAL = "partial"
    MERGE = "merge"
    TOP = "top"
    RUNNING = "running"

    @property
    def is_first(self) -> bool:
        """Whether it gets the tuples of the source."""
        return self in (Stage.PARTIAL, Stage.RUNNING)


@dataclass(frozen=True, slots=True)
class Grouping:
    """The groups and aggregates of an aggregation. `columns`: the columns that expressions name.

    `zone`: the time zone in which instants have dates and hours. `is_net`: whether the last
    aggregate, which no result shows, counts the rows of a group; without rows there is no group.
    """

    groups: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    panes: Panes | Sessions | Last
    columns: tuple[str, ...]
    top: Top | None = None
    zone: str = "UTC"
    is_net: bool = False

    @property
    def shown(self) -> tuple[Aggregate, ...]:
        """The aggregates of the results."""
        return self.aggregates[:-1] if self.is_net else self.aggregates

    @property
    def places(self) -> tuple[str, ...]:
        """The names of the groups in partial results; those of users could collide with ours."""
        return tuple(f"g{number}" for number in range(len(self.groups)))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of `columns` in expressions."""
        return tuple(f"c{number}" for number in range(len(self.columns)))

    @property
    def edges(self) -> tuple[str, ...]:
        """The columns of partial results that tell panes apart."""
        return (BEGINNING, PANE) if isinstance(self.panes, Sessions) else (PANE,)


@dataclass(frozen=True, slots=True)
class EventTime:
    """The event time of an input: its columns, and when rows are late, idle and ahead: `Within`."""

    times: tuple[tuple[str, ...], tuple[str, ...]]
    delays_us: Delays = (None, None)
    idle_after_us: int | None = None
    ahead_us: int | None = None


def partial_fields(aggregates: Sequence[Aggregate]) -> list[tuple[str, AggregateFunction]]:
    """(name, the function that merges it) of each column of partial results.

    >>> mean = Aggregate("m", AggregateFunction.MEAN, "c0", pa.float64(), "DOUBLE")
    >>> [(name, how.value) for name, how in partial_fields([mean])]
    [('p0', 'sum'), ('n0', 'sum')]
    """
    fields = list[tuple[str, AggregateFunction]]()
    for number, aggregate in enumerate(aggregates):
        match aggregate.function:
            case AggregateFunction.MIN | AggregateFunction.MAX | AggregateFunction.HISTOGRAM:
                fields.append((f"p{number}", aggregate.function))
            case AggregateFunction.COUNT | AggregateFunction.SUM | AggregateFunction.MEAN:
                fields += [(f"{part}{number}", AggregateFunction.SUM) for part in aggregate.parts]
    return fields


def result_schema(
    groups: Sequence[pa.Field], aggregates: Sequence[Aggregate], time: pa.DataType
) -> pa.Schema:
    """Groups, aggregates, and the window."""
    columns = [pa.field(aggregate.name, aggregate.kind) for aggregate in aggregates]
    edges = [pa.field(name, time) for name in (WINDOW_START, WINDOW_END)]
    return pa.schema([*groups, *columns, *edges])
