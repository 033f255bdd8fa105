"""What the `Stream`s of a query bring in each batch: the driver says which task reads what.

Why: Spark's log of offsets says how far a batch goes in each feed, and the feed which row groups
these are. So the route tasks of `Stream`s are a job of our own, always the same one: Spark neither
plans nor compiles it, which takes seconds in the first batch, and time in every other. The
streaming plan holds the source only so that Spark asks it for offsets (joinengine.spark.source).

Law: a batch that is run again reads the same row groups, in the same tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from joinengine.exchange.feeds import Feed, RowGroup, Skipped, by_file, fold, open_feed
from joinengine.exchange.reading import Reading
from joinengine.exchange.reports import RouteReport
from joinengine.exchange.route import Portion
from joinengine.spark.logs import offset_in
from joinengine.spark.source import Offset, first_offset


class Brought(NamedTuple):
    """What a batch brings: the portions of its tasks, and what needs no task to be told."""

    portions: Sequence[Portion]
    report: RouteReport


class Streams:
    """The `Stream`s of a query, by the options of their feeds.

    `readings`: source -> how it is read. `offset_of(batch)` reads Spark's log. `tasks`: how many
    share a batch at most.
    """

    def __init__(
        self,
        feeds: Sequence[dict[str, Any]],
        readings: Mapping[int, Reading],
        offset_of: Callable[[int], Offset],
        tasks: int,
    ) -> None:
        self._options = feeds
        self.readings = readings
        self._offset_of = offset_of
        self._tasks = tasks
        self._opened: list[Feed] | None = None
        self._noted = dict[int, Offset]()
        self._last: tuple[int, Offset] = (-1, first_offset(len(feeds)))

    def in_batch(self, batch: int) -> Brought:
        """The row groups of a batch, in as many portions of about equal rows as there are tasks.

        Raises DamagedState if a log does not reach so far.
        """
        if not self._options:
            return Brought((), RouteReport(0))
        start, end = self._offset(batch - 1), self._offset(batch)
        report, groups = RouteReport(0), list[tuple[int, RowGroup]]()
        for number, (options, feed) in enumerate(zip(self._options, self._feeds, strict=True)):
            source, name = options["source"], f"feed{number}"
            first, last = start[name], end[name]
            for group in feed.row_groups(first, last) if last > first else ():
                if group.skipped is None:
                    groups.append((source, group))
                else:
                    report.skipped.append(Skipped(group.file, group.skipped))
            known = feed.progress(last) if last > first else None
            if known is not None:
                report.progress[source] = known
        parts = fold(groups, self._tasks) if groups else []
        return Brought([_portion(part) for part in parts], report)

    def note(self, batch: int, logged: Mapping[str, str]) -> None:
        """Learn where a batch ends from Spark's logs in its manifest, if these have it."""
        for number in (batch - 1, batch):
            content = logged.get(name := f"offsets/{number}")
            if content is not None:
                self._noted[number] = offset_in(content, name)

    @property
    def _feeds(self) -> list[Feed]:
        # Opened on first use, when the source has made their logs.
        if self._opened is None:
            self._opened = [open_feed(options) for options in self._options]
        return self._opened

    def _offset(self, batch: int) -> Offset:
        """Where a batch ends."""
        if self._last[0] != batch:
            if batch < 0:
                found = first_offset(len(self._options))
            else:
                noted = self._noted.get(batch)
                found = self._offset_of(batch) if noted is None else noted
            self._last = batch, found
        return self._last[1]


def _portion(groups: Sequence[tuple[int, RowGroup]]) -> Portion:
    """Stretches of row groups of one stream and file, stream by stream."""
    sources = dict.fromkeys(source for source, _ in groups)
    return Portion(
        tuple(
            (source, tuple(part))
            for source in sources
            for part in by_file([group for one, group in groups if one == source])
        )
    )
