"""Divides the row groups that the `Stream`s of a query bring in a batch among route tasks.

Why: a position says how far a batch reads in each feed, and the feed says which row groups these
are. So the route tasks of `Stream`s are a job of joinengine's, always the same one. Spark neither
plans nor compiles it, which would take seconds in the first batch, and time in every other. No
streaming plan reads them (for checkpoints of earlier versions, see
`joinengine.spark.sources.source`).

Law: a batch that is run again reads the same row groups, in the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from joinengine.exchange.route import Portion
from joinengine.model.skipped import Skipped
from joinengine.sources.feeds import ENDED, Feed, open_feed
from joinengine.sources.places import Piece, Place, by_file, fold, shared
from joinengine.sources.projection import Projection
from joinengine.sources.schemas import Footer
from joinengine.spark.sources.source import Offset
from joinengine.state.manifest import Position
from joinengine.wire.reports import Lag, RouteReport


class Brought(NamedTuple):
    """The input of a batch: the portions of its tasks, and a report of what needs no task."""

    portions: Sequence[Portion]
    report: RouteReport


class Streams:
    """The `Stream`s of a query, by the options of their feeds.

    `readings`: source -> how it is read. `tasks`: the most tasks that share a batch. `footers`:
    source -> path -> footer, of files whose footers are known.
    """

    def __init__(
        self,
        feeds: Sequence[dict[str, Any]],
        readings: Mapping[int, Projection],
        tasks: int,
        footers: Mapping[int, Mapping[str, Footer]] | None = None,
    ) -> None:
        self._options = feeds
        self.readings = readings
        self._tasks = tasks
        self._footers = footers or {}
        self._opened: dict[int, Feed] | None = None

    @property
    def sources(self) -> list[int]:
        """The numbers of the sources, in the order of the feeds."""
        return [options["source"] for options in self._options]

    def between(self, start: Position, end: Position) -> Brought:
        """The row groups between two positions, in portions of about equal rows, one for each task.

        Raises DamagedState if a log does not reach so far.
        """
        report, pieces = RouteReport(0), list[tuple[int, Piece]]()
        for source, feed in self.feeds.items():
            first, last = (_place(source, feed, position) for position in (start, end))
            behind = feed.behind(last)
            if behind is not None:
                report.lags[source] = Lag(*behind)
            brings, known = feed.is_beyond(last, first), feed.progress(last)
            if known is not None and (brings or known == ENDED):  # the end counts without rows, too
                report.progress[source] = known
            if not brings:
                continue
            for piece in feed.pieces(first, last):
                if piece.skipped is None:
                    pieces.append((source, piece))
                else:
                    report.skipped.append(Skipped(piece.told, piece.skipped))
        parts = fold(shared(pieces, self._tasks), self._tasks) if pieces else []
        return Brought([_portion(part) for part in parts], report)

    def after(self, start: Position) -> Sequence[Portion]:
        """The portions of a batch that begins at `start`, as far as files are known now."""
        end = {
            source: feed.advance(_place(source, feed, start)) for source, feed in self.feeds.items()
        }
        return self.between(start, end).portions

    def position(self, offset: Offset) -> Position:
        """The position that corresponds to an offset of the `joinengine` source."""
        return {source: offset[f"feed{number}"] for number, source in enumerate(self.sources)}

    @property
    def feeds(self) -> Mapping[int, Feed]:
        """Source -> its feed; opened on first use, when there are logs."""
        if self._opened is None:
            self._opened = {option["source"]: self._open(option) for option in self._options}
        return self._opened

    def check(self) -> None:
        """Raise InvalidRequest for a bad file that may not be skipped; logs nothing."""
        for feed in self.feeds.values():
            feed.check()

    def check_logs(self, position: Position) -> None:
        """Raise DamagedState if a log does not reach as far as a checkpoint has read."""
        for source, feed in self.feeds.items():
            feed.check_reaches(_place(source, feed, position))

    def take_over(self, generation: int) -> None:
        """Let the feeds log files for the driver of a generation; log the files that are there now.

        Raises InvalidRequest for a bad file that may not be skipped.
        """
        for feed in self.feeds.values():
            feed.take_over(generation)
            feed.discover()

    def _open(self, options: dict[str, Any]) -> Feed:
        return open_feed(options, self._footers.get(options["source"]))


def _place(source: int, feed: Feed, position: Position) -> Place:
    return position[source] if source in position else feed.begin()


def _portion(groups: Sequence[tuple[int, Piece]]) -> Portion:
    """The portion with these pieces; those that are read in one go stand together."""
    sources = dict.fromkeys(source for source, _ in groups)
    return Portion(
        tuple(
            (source, tuple(part))
            for source in sources
            for part in by_file([group for number, group in groups if number == source])
        )
    )
