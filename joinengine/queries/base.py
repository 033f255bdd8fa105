"""A query of the command line: a stream to record, operators over it, and its SQL for DuckDB."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pyarrow import RecordBatchReader, Table

from joinengine import equi
from joinengine.api.queries import StreamQuery
from joinengine.balancing.costs import Load
from joinengine.driver.failing import as_recovered
from joinengine.driver.settings import ShowKeys
from joinengine.exchange.exchange import ExchangeKind, chosen_exchange
from joinengine.exchange.sourcefiles import SourceFile
from joinengine.layouts import Ftlb, LayoutChoice, asked_or_auto
from joinengine.layouts.auto import Unasked
from joinengine.layouts.base import check_aggregates
from joinengine.layouts.levels import read_file
from joinengine.layouts.versions import Moving
from joinengine.model.durations import describe
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import one_of
from joinengine.model.recovery import Durability, Recovery
from joinengine.queries.synthetic import Rows, SyntheticSpec
from joinengine.state.store import StoreSpeed
from joinengine.tpch.arrival import TableOrder
from joinengine.tpch.generate import Say, silent
from joinengine.tpch.stream import SPAN_US, RecordedStream, StreamSpec


@dataclass(frozen=True)
class Options:
    """How a query is run; durations in microseconds. `window_us` None: full history.

    `relayouts`: (batch, layout or None, instances or None): wishes to grant before a batch.
    `losses`: (batch, instance) that is made to lose its state before it. `kills`: batches before
    which an executor is killed. `recovery`: what takes the place of state that is lost;
    `durability`: what a batch waits for; `store`: the emulated speed of a store, None: the usual
    one, if any is kept.
    `capacity`: tuples that an instance may hold before its layout grows. `moves`: when state
    follows a new layout. `load`: what planners balance. `work_per_tuple`: emulated work for each
    tuple that an instance receives; `work_per_result`: for each row that it emits.
    `aggregators` (None: as many as instances) merge partial results after every `merge_every`
    batches. `text`: a file whose words take the place of generated ones. `span_us`, `shift_us`:
    None: the query's own. `show_keys`: whether reports and logs tell keys by value or by hash.
    `exchange`: what carries routed tuples; None: what suits where the state is.
    """

    scale: float = 0.1
    zipf: float = 0.8
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
    relayouts: tuple[tuple[int, LayoutChoice | None, int | None], ...] = ()
    losses: tuple[tuple[int, int], ...] = ()
    recovery: Recovery = Recovery.REPLICAS
    durability: Durability = Durability.BATCH
    kills: tuple[int, ...] = ()
    store: str | None = None
    capacity: int | None = None
    moves: Moving = Moving.EAGER
    load: Load = Load.WORK
    work_per_tuple: int = 0
    work_per_result: int = 0
    aggregators: int | None = None
    merge_every: int = 1
    text: Path | None = None
    show_keys: ShowKeys = ShowKeys.VALUE
    exchange: ExchangeKind | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", one_of(TableOrder, self.order, "order"))
        object.__setattr__(self, "moves", one_of(Moving, self.moves, "moves"))
        object.__setattr__(self, "load", one_of(Load, self.load, "load"))
        object.__setattr__(self, "show_keys", one_of(ShowKeys, self.show_keys, "show-keys"))
        if self.exchange is not None:
            object.__setattr__(self, "exchange", chosen_exchange(self.exchange))
        object.__setattr__(self, "recovery", one_of(Recovery, self.recovery, "recovery"))
        object.__setattr__(self, "durability", one_of(Durability, self.durability, "durability"))
        if self.store is not None:
            StoreSpeed.of(self.store, "store")
        object.__setattr__(self, "layout", as_recovered(self.layout, self.recovery))
        self.layout.check(equi("key", "key"), self.instances)
        if self.capacity is not None and self.capacity < 1:
            raise InvalidRequest(f"capacity: {self.capacity} must be at least 1 (tuples)")
        for name, number in (("aggregators", self.aggregators), ("merge-every", self.merge_every)):
            if number is not None and number < 1:
                raise InvalidRequest(f"{name}: {number} must be at least 1")
        works = (("tuple", self.work_per_tuple), ("result", self.work_per_result))
        for one, work in works:
            if work < 0:
                raise InvalidRequest(f"work-per-{one}: {describe(work)} is negative; use 0 or more")
        if self.window_us is not None and self.window_us < 0:
            raise InvalidRequest(f"window: {describe(self.window_us)} is negative; use 0 or more")

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
        """The stream of these tables; if the options name no span or shift, with the query's own.

        Raises InvalidRequest if the settings make no stream.
        """
        return StreamSpec(
            tables=tables,
            facts=facts,
            scale=self.scale,
            zipf=self.zipf,
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
        """A generated stream of one table, with `rows_at_one` rows at scale 1; `exact`: at any."""
        rows = rows_at_one if exact else max(1, round(rows_at_one * self.scale))
        span_us = self.span() if self.rate is None else int(rows / self.rate * 1e6)
        return SyntheticSpec(
            table=table,
            rows=rows,
            zipf=self.zipf,
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


class Oracle(NamedTuple):
    """SQL for DuckDB, and the tables of Arrow that it names, each to be read once.

    `files`: what the tables are read from; as long as they are the same, so are the results.
    """

    sql: str
    tables: Mapping[str, RecordBatchReader]
    files: tuple[SourceFile, ...] = ()


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

    @property
    @abstractmethod
    def aggregates(self) -> bool:
        """Whether the query aggregates, which not every layout serves."""

    @property
    @abstractmethod
    def whole_keys(self) -> bool:
        """Whether only layouts that keep keys whole have the results of one process."""

    @property
    @abstractmethod
    def generated(self) -> bool:
        """Whether the streams are generated, by a scale, a skew and a seed."""

    @property
    @abstractmethod
    def layout(self) -> str | None:
        """The name of the layout if the user names none; None: `auto`."""

    @abstractmethod
    def stream(self, options: Options) -> Recordable:
        """The stream that the query reads."""

    @abstractmethod
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamQuery:
        """The operators over a recorded stream; if nothing will run, `spark` may be None."""

    @abstractmethod
    def oracle(self, recorded: RecordedStream, options: Options) -> str | Oracle:
        """SQL for DuckDB that has the same rows, in the same columns and order, as the query."""


def check(query: Query, options: Options) -> None:
    """Raise InvalidRequest if `query` cannot be run with these options."""
    query.stream(options)
    if query.aggregates:
        for layout in (options.layout, *(layout for _, layout, _ in options.relayouts)):
            if layout is not None:
                check_aggregates(layout)


def layout_of(name: str | None, levels: Path | None = None) -> LayoutChoice:
    """The layout of a name; `ftlb` with the service levels of a file, if there is one."""
    choice = asked_or_auto(name)
    if levels is None or not isinstance(choice, Ftlb):
        return choice
    return replace(choice, levels=read_file(levels))


def relayouts_of(
    switches: Sequence[str], sizes: Sequence[str], levels: Path | None = None
) -> tuple[tuple[int, LayoutChoice | None, int | None], ...]:
    """(batch, layout, instances) from `BATCH:LAYOUT` and `BATCH:N`; None: it stays as it was."""
    named = _timed_words("switch", switches)
    return (
        *((batch, layout_of(name, levels), None) for batch, name in named),
        *((batch, None, _count("resize", n)) for batch, n in _timed_words("resize", sizes)),
    )


def losses_of(texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(batch, instance) from `BATCH:INSTANCE[,INSTANCE]`."""
    return tuple(
        (batch, _count("fail", one.strip()))
        for batch, listed in _timed_words("fail", texts)
        for one in listed.split(",")
    )


def _timed_words(option: str, texts: Sequence[str]) -> list[tuple[int, str]]:
    """`3:mnrt` -> (3, "mnrt")."""
    pairs = list[tuple[int, str]]()
    for text in texts:
        batch, colon, what = text.partition(":")
        if not (colon and what):
            raise InvalidRequest(f"{option}: {text!r} is not BATCH:VALUE; write for example 3:mnrt")
        pairs.append((_count(option, batch), what))
    return pairs


def _count(option: str, text: str) -> int:
    if not text.isdigit():
        raise InvalidRequest(f"{option}: {text!r} is no whole number")
    return int(text)
