"""A query of the command line: a stream to record, operators over it, and its SQL for DuckDB."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pyarrow import RecordBatchReader, Table

from joinengine import equi, within
from joinengine.api.option_table import OPTIONS
from joinengine.api.options import value_of
from joinengine.api.queries import StreamQuery
from joinengine.driver.recovery.demands import as_recovered
from joinengine.lab.queries.level_files import read_file
from joinengine.lab.queries.synthetic import Rows, SyntheticSpec
from joinengine.lab.tpch.arrival import TableOrder
from joinengine.lab.tpch.generate import Say, silent
from joinengine.lab.tpch.skew import check_zipf
from joinengine.lab.tpch.stream import SPAN_US, RecordedStream, StreamSpec
from joinengine.layouts import LayoutChoice, asked_or_auto
from joinengine.layouts.auto import Unasked
from joinengine.layouts.layout import check_aggregates
from joinengine.model.durations import describe
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import one_of
from joinengine.model.windows import Within
from joinengine.sources.sourcefiles import SourceFile
from joinengine.world.kafka_clients import Cluster

#: The exponent of the skew of generated streams, except those with rules of their own.
ZIPF = 0.8
#: Options of the queries that learn, and their defaults: bins of a histogram, classes, levels of a
#: tree.
OWN = {"bins": 64, "classes": 2, "depth": 3}
#: The options of a query whose partial results are merged.
MERGING = ("aggregators", "merge-every")
_LEAST = {"aggregators": 1, "merge-every": 1, "bins": 2, "classes": 2, "depth": 1}


@dataclass(frozen=True)
class Events:
    """What happens to a run at its batches.

    `relayouts`: (batch, layout or None, instances or None): wishes to grant before a batch.
    `losses`: (batch, instance): the instance loses its state before the batch. `kills`: batches
    before which an executor is killed.
    """

    relayouts: tuple[tuple[int, LayoutChoice | None, int | None], ...] = ()
    losses: tuple[tuple[int, int], ...] = ()
    kills: tuple[int, ...] = ()


@dataclass(frozen=True)
class Options:
    """How a query is run; durations in microseconds. `window_us` None: full history.

    `aggregators` (None: as many as instances) merge partial results after every `merge_every`
    batches (None: as the query does). `text`: a file whose words replace the generated ones. `own`:
    the given options of OWN. `cluster`: the brokers whose topics hold the stream; None: it is read
    from files. `zipf`, `span_us`, `shift_us`: None means the query's own. `engine`: options of the
    writer as text.
    """

    scale: float = 0.1
    zipf: float | None = None
    seed: int = 0
    order: TableOrder = TableOrder.UNIFORM
    interval_rows: int | None = None
    rate: float | None = None
    span_us: int | None = None
    disorder_us: int = 0
    shift_us: int | None = None
    window_us: int | None = None
    layout: LayoutChoice = field(default_factory=Unasked)
    instances: int = 8
    events: Events = Events()
    aggregators: int | None = None
    merge_every: int | None = None
    text: Path | None = None
    own: Mapping[str, int] = field(default_factory=dict)
    cluster: Cluster | None = None
    engine: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", one_of(TableOrder, self.order, "order"))
        for name in self.engine:
            self.asked(name)
        object.__setattr__(self, "layout", as_recovered(self.layout, self.asked("recovery")))
        self.layout.check(equi("key", "key"), self.instances)
        for name, number in (("scale", self.scale), ("rate", self.rate)):
            if number is not None and not 0 < number < math.inf:
                raise InvalidRequest(f"{name}: expected a number above 0, found {number}")
        if self.zipf is not None:
            check_zipf(self.zipf)
        counts = {"aggregators": self.aggregators, "merge-every": self.merge_every, **self.own}
        for name, number in counts.items():
            if number is not None and number < _LEAST[name]:
                raise InvalidRequest(f"{name}: expected at least {_LEAST[name]}, found {number}")
        if self.window_us is not None and self.window_us < 0:
            raise InvalidRequest(
                f"window: expected a duration of 0 or more, found {describe(self.window_us)}"
            )

    def asked(self, name: str) -> Any:
        """The value of an option of the writer. Raises InvalidRequest for an invalid text."""
        return value_of(self.engine, name)

    @property
    def layouts(self) -> list[LayoutChoice]:
        """The layouts of the run: the first, and those to which it switches."""
        later = (choice for _, choice, _ in self.events.relayouts)
        return [self.layout, *(choice for choice in later if choice is not None)]

    @property
    def placing(self) -> dict[str, Any]:
        """The layout and the number of instances, as operators take them."""
        return {"layout": self.layout, "instances": self.instances}

    @property
    def delay(self) -> str:
        """How late a tuple may come, as windows take it."""
        return f"{self.disorder_us} us"

    def window(self, default_us: int) -> int:
        """The length of the window in microseconds."""
        return default_us if self.window_us is None else self.window_us

    def at_most_apart(
        self, left: str | list[str], right: str, default_us: int | None = None
    ) -> Within | None:
        """A window of tuples whose times are at most its length apart; None: full history."""
        span_us = default_us if self.window_us is None else self.window_us
        if span_us is None:
            return None
        ends = {"lower": f"-{span_us} us", "upper": f"{span_us} us"}
        return within(left, right, delay=self.delay, **ends)

    def own_of(self, name: str) -> int:
        """The value of one of OWN."""
        return self.own.get(name, OWN[name])

    def text_of(self, name: str) -> str | None:
        """The text of an option of the writer, or its default."""
        return self.engine.get(name, OPTIONS[name].default)

    def under(self, **engine: str) -> Options:
        """These options with other options of the writer."""
        return replace(self, engine={**self.engine, **engine})

    def span(self, default_us: int = SPAN_US) -> int:
        """How much event time the stream covers, if no rate is given."""
        return default_us if self.span_us is None else self.span_us

    def stream(
        self,
        tables: tuple[str, ...],
        facts: tuple[str, ...],
        span_us: int = SPAN_US,
        shift_us: int | None = None,
    ) -> StreamSpec:
        """The stream of these tables, with the query's own span and shift unless options give some.

        Raises InvalidRequest if the settings make no stream.
        """
        return StreamSpec(
            tables=tables,
            facts=facts,
            scale=self.scale,
            zipf=ZIPF if self.zipf is None else self.zipf,
            seed=self.seed,
            order=self.order,
            interval_rows=self.interval_rows,
            rate=self.rate,
            span_us=self.span(span_us),
            disorder_us=self.disorder_us,
            shift_us=shift_us if self.shift_us is None else self.shift_us,
        )

    def synthetic(
        self,
        table: str,
        rows_at_one: int,
        columns: Callable[[SyntheticSpec, Rows, Rows], Table],
        *,
        exact: bool = False,
        **settings: object,
    ) -> SyntheticSpec:
        """A generated stream of one table, with `rows_at_one` rows at scale 1; `exact`: at any.

        Raises InvalidRequest for options that such a stream does not have.
        """
        if self.order is not TableOrder.UNIFORM:
            raise InvalidRequest(
                f"order: the stream has the one table {table!r}, found {self.order.value!r}; leave "
                "--order out"
            )
        if self.shift_us is not None and "shift_us" not in settings:
            raise InvalidRequest(
                f"shift-every: the hot keys of {table!r} stay the same, found "
                f"{describe(self.shift_us)}; leave --shift-every out"
            )
        rows = rows_at_one if exact else max(1, round(rows_at_one * self.scale))
        span_us = self.span() if self.rate is None else int(rows / self.rate * 1e6)
        return SyntheticSpec(
            table=table,
            rows=rows,
            zipf=ZIPF if self.zipf is None else self.zipf,
            seed=self.seed,
            interval_rows=self.interval_rows,
            span_us=span_us,
            disorder_us=self.disorder_us,
            settings=tuple((key, str(value)) for key, value in sorted(settings.items())),
            columns=columns,
        )


class Recordable(Protocol):
    """A stream before it is written."""

    def record(self, say: Say = silent) -> RecordedStream:
        """The stream, written now unless it is in the cache."""


class Conclusion(NamedTuple):
    """What a query concludes from all its results.

    `entries`: for the report. `said`: sentences for the user. `following`: the query that runs
    next; None: this was the last run.
    """

    entries: Mapping[str, Any]
    said: Sequence[str]
    following: Query | None = None


class Oracle(NamedTuple):
    """SQL for DuckDB, and the Arrow tables that it names, each to be read once.

    `files`: the files behind the tables; while they are the same, so are the results. `ties`: SQL
    that has a row if other results would be right, too; empty: no other results can be right.
    """

    sql: str
    tables: Mapping[str, RecordBatchReader]
    files: tuple[SourceFile, ...] = ()
    ties: str = ""


class Query(Protocol):
    """A query that the command line runs; each is a file of this package."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the query on the command line."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """One line for `joinengine queries`."""

    @property
    @abstractmethod
    def source(self) -> str:
        """Where the query comes from: a paper, a benchmark."""

    #: whether the query aggregates, which not every layout serves
    aggregates: bool = False
    #: whether only layouts that keep keys whole have the results of one process
    whole_keys: bool = False
    #: whether the streams are generated, by a scale, a skew and a seed
    generated: bool = True
    #: the exponent of the skew if the user names none; None: the streams have other rules
    zipf: float | None = ZIPF
    #: the name of the layout if the user names none; None: `auto`
    layout: str | None = None
    #: whether it concludes from its results, which are kept until then
    concludes: bool = False
    #: the options of OWN that it takes, and of `text`, `aggregators` and `merge-every`
    own: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """The folder of a run below the query's folders; empty if the query has one run."""
        return ""

    @abstractmethod
    def stream(self, options: Options) -> Recordable:
        """The stream that the query reads."""

    @abstractmethod
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamQuery:
        """The operators over a recorded stream; if nothing will run, `spark` may be None."""

    @abstractmethod
    def oracle(self, recorded: RecordedStream, options: Options) -> str | Oracle:
        """SQL for DuckDB that has the same rows, in the same columns and order, as the query."""

    def conclude(self, results: Table, report: dict[str, Any], options: Options) -> Conclusion:
        """The conclusion from all results, if the query `concludes`; `report`: that of the run."""
        return Conclusion({}, [])


def skew_of(query: Query, options: Options) -> float | None:
    """The exponent of the skew of a query's streams; None: they have other rules."""
    return query.zipf if options.zipf is None else options.zipf


def check(query: Query, options: Options) -> None:
    """Raise InvalidRequest if `query` cannot be run with these options."""
    given = {"text": options.text, "aggregators": options.aggregators, **options.own}
    for name, value in (given | {"merge-every": options.merge_every}).items():
        if value is not None and name not in query.own:
            raise InvalidRequest(f"{name}: {query.name} has none, found {value}; leave it out")
    query.stream(options)
    if query.aggregates and options.cluster is not None:
        raise InvalidRequest(
            f"source: {query.name} aggregates windows, and a topic has no end that would close the "
            "last of them; leave out --source kafka, or take a query that joins, such as eq5"
        )
    if query.aggregates:
        for layout in options.layouts:
            check_aggregates(layout)


def layout_of(name: str | None, levels: Path | None = None) -> LayoutChoice:
    """The layout of a name; `ftlb` with the service levels of a file, if there is one."""
    choice = asked_or_auto(name)
    if levels is None or choice.copying is None:
        return choice
    return choice.copying.with_levels(read_file(levels))


def relayouts_of(
    switches: Sequence[str], sizes: Sequence[str], levels: Path | None = None
) -> tuple[tuple[int, LayoutChoice | None, int | None], ...]:
    """(batch, layout, instances) from `BATCH:LAYOUT` and `BATCH:N`; None: it stays as it was."""
    named, sized = _timed_words("switch", switches), _timed_words("resize", sizes)
    for option, pairs in (("switch", named), ("resize", sized)):
        batches = [batch for batch, _ in pairs]
        twice = next((batch for batch in batches if batches.count(batch) > 1), None)
        if twice is not None:
            raise InvalidRequest(f"{option}: batch {twice} is named twice; name it once")
    return (
        *((batch, layout_of(name, levels), None) for batch, name in named),
        *((batch, None, _count("resize", n)) for batch, n in sized),
    )


def losses_of(texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(batch, instance) from `BATCH:INSTANCE[,INSTANCE]`."""
    return tuple(
        (batch, _count("fail", part.strip()))
        for batch, listed in _timed_words("fail", texts)
        for part in listed.split(",")
    )


#: Option -> an example of its value.
_TIMED = {"switch": "3:mnrt", "resize": "4:13", "fail": "3:0 or 3:0,2"}


def _timed_words(option: str, texts: Sequence[str]) -> list[tuple[int, str]]:
    """`3:mnrt` -> (3, "mnrt")."""
    pairs = list[tuple[int, str]]()
    for text in texts:
        batch, colon, what = text.partition(":")
        if not (colon and what):
            raise InvalidRequest(
                f"{option}: expected BATCH:VALUE, such as {_TIMED[option]}, found {text!r}"
            )
        if (number := _count(option, batch)) < 1:
            raise InvalidRequest(f"{option}: expected a batch from 1 on, found {text!r}")
        pairs.append((number, what))
    return pairs


def _count(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"{option}: expected a whole number, found {text!r}")
    return int(text)
