"""What a query is: a stream to record, joins to build on it, and the same in DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from joinengine import StreamJoin, equi
from joinengine.layouts import LayoutChoice, Mnrt, choose
from joinengine.model.durations import describe
from joinengine.model.errors import InvalidRequest
from tpch.stream import SPAN_US, RecordedStream, StreamSpec


@dataclass(frozen=True)
class Options:
    """How a query is run; durations in microseconds. `window_us` None: full history.

    `relayouts`: (batch, layout or None, instances or None), what changes before a batch.
    `capacity`: tuples that an instance may hold before its layout grows. `moves`: `eager`
    or `lazy`. `work_per_tuple`: emulated work for each tuple that an instance receives.
    """

    scale: float = 0.1
    zipf: float = 0.8
    seed: int = 0
    order: str = "uniform"
    interval_rows: int | None = None
    rate: float | None = None
    span_us: int = SPAN_US
    disorder_us: int = 0
    shift_us: int | None = None
    window_us: int | None = None
    layout: LayoutChoice = field(default_factory=Mnrt)
    instances: int = 8
    relayouts: tuple[tuple[int, LayoutChoice | None, int | None], ...] = ()
    capacity: int | None = None
    moves: str = "eager"
    work_per_tuple: int = 0

    def __post_init__(self) -> None:
        self.layout.check(equi("key", "key"), self.instances)
        if self.capacity is not None and self.capacity < 1:
            raise InvalidRequest(f"capacity: {self.capacity} must be at least 1 (tuples)")
        if self.work_per_tuple < 0:
            raise InvalidRequest(
                f"work-per-tuple: {describe(self.work_per_tuple)} is negative; use 0 or more"
            )
        if self.window_us is not None and self.window_us < 0:
            raise InvalidRequest(f"window: {describe(self.window_us)} is negative; use 0 or more")

    def stream(self, tables: tuple[str, ...], facts: tuple[str, ...]) -> StreamSpec:
        """The stream of these tables. Raises InvalidRequest for settings that make none."""
        return StreamSpec(
            tables=tables,
            facts=facts,
            scale=self.scale,
            zipf=self.zipf,
            seed=self.seed,
            order=self.order,
            interval_rows=self.interval_rows,
            rate=self.rate,
            span_us=self.span_us,
            disorder_us=self.disorder_us,
            shift_us=self.shift_us,
        )


class Query(Protocol):
    """One file of this package."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    @property
    def summary(self) -> str:
        """One line for `joinengine queries`."""

    @property
    def source(self) -> str:
        """Where it comes from."""

    def stream(self, options: Options) -> StreamSpec:
        """The stream that it reads."""

    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        """The joins over a recorded stream; `spark` may be None where nothing will run."""

    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        """The same rows, in the same columns, as SQL for DuckDB."""


def relayouts_of(
    switches: Sequence[str], sizes: Sequence[str]
) -> tuple[tuple[int, LayoutChoice | None, int | None], ...]:
    """(batch, layout, instances) from `BATCH:LAYOUT` and `BATCH:N`; None: as it was."""
    return (
        *((batch, choose(name), None) for batch, name in _timed_words("switch", switches)),
        *((batch, None, _count("resize", n)) for batch, n in _timed_words("resize", sizes)),
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
