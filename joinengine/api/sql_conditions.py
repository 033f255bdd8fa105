"""Turns ON, and what WHERE adds to it, into the arguments of a `StreamJoin`.

Each condition becomes the first of these that it can be: a key, a filter of one side, a window of
event time, a band, a predicate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa

from joinengine.api.joins import StreamJoin, schema_of_side
from joinengine.api.sql_bounds import Bound, BoundReader, Columns, Part, interval_us
from joinengine.api.sql_names import WINDOWS, Reader
from joinengine.api.sql_package import exp
from joinengine.api.sql_streams import Key, Pair
from joinengine.api.sql_text import bare, called, ticked
from joinengine.model.conditions import AsOf, Band, Equi, asof, band, theta
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Side
from joinengine.model.windows import Window, sliding, tumbling, within
from joinengine.spark.sources.inputs import Source

#: Join type -> the sides whose rows ON may drop before the join, since rows of these sides are no
#: results without a partner.
DROPPED = {
    "inner": PAIR,
    "left": (Side.RIGHT,),
    "right": (Side.LEFT,),
    "full": (),
    "left_semi": (Side.RIGHT,),
    "left_anti": (Side.RIGHT,),
}
_TOLERANCE = timedelta(microseconds=1)
_LONGEST_US = timedelta.max // _TOLERANCE


@dataclass(frozen=True)
class Node:
    """A side of a join: its source, the names of its columns, and what its rows must fulfil."""

    source: Source | StreamJoin
    names: dict[Key, str]
    filters: tuple[str, ...] = ()
    is_table: bool = False

    def kind(self, columns: Columns) -> pa.DataType:
        """The type of columns of one type."""
        return schema_of_side(self.source).field(self.names[columns[0]]).type

    def called(self, columns: Columns) -> list[str]:
        """The names of columns."""
        return [self.names[column] for column in columns]


@dataclass
class Distance:
    """The bounds of the distance of two columns, and the conditions that say so."""

    left: Columns
    right: Columns
    lower: Decimal | None = None
    upper: Decimal | None = None
    has_interval: bool = False
    parts: list[Part] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether no distance lies within the bounds."""
        return self.lower is not None and self.upper is not None and self.lower > self.upper

    def add(self, bound: Bound) -> None:
        """Take a bound into account."""
        self.has_interval |= bound.has_interval
        if bound.is_upper:
            self.upper = bound.limit if self.upper is None else min(self.upper, bound.limit)
        else:
            self.lower = bound.limit if self.lower is None else max(self.lower, bound.limit)

    @property
    def is_closed(self) -> bool:
        """Whether both bounds are known."""
        return self.lower is not None and self.upper is not None


@dataclass
class Conditions:
    """Sorts the conditions of one join into arguments of `StreamJoin`."""

    reader: Reader
    pair: Pair
    sides: tuple[Node, Node]
    delay: Any
    keys: list[tuple[Key, Key]] = field(default_factory=list)
    filters: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    windows: list[Window] = field(default_factory=list)
    distances: dict[tuple[Columns, Columns], Distance] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for side, node in zip(PAIR, self.sides, strict=True):
            self.filters[side].extend(node.filters)
        for node in self.pair.on:
            self._sort(node)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `StreamJoin` except sides, layout and `select`."""
        if self.pair.closest:
            return self._filters() | {"on": self._closest(), "how": self.pair.how}
        window = self._window()
        chosen = self._band(window)
        for distance in (window, chosen):
            if isinstance(distance, Distance):
                self._check_some(distance)
        on = self._on(chosen, window)
        where = " and ".join(self._left_over(chosen, window)) or None
        if on is None:
            if where is None:
                raise self._refusal(
                    "a join needs a condition; write JOIN .. ON with an equality, or put that into "
                    "WHERE"
                )
            on, where = theta(where), None
        how = {} if self.pair.how == "inner" else {"how": self.pair.how}
        timed = {} if window is None else {"within": self._within(window)}
        only = {} if where is None else {"where": where}
        return {"on": on, **timed, **how, **only, **self._filters()}

    def _refusal(self, said: str) -> InvalidRequest:
        return self.reader.text.refusal(self.pair.node, said)

    def side(self, columns: Sequence[Key]) -> Side | None:
        """The side to which columns belong; None: to both, or there are no columns."""
        sides = {side for side in PAIR for column in columns if column in self.sides[side].names}
        return sides.pop() if len(sides) == 1 else None

    @cached_property
    def _schemas(self) -> tuple[pa.Schema, pa.Schema]:
        return schema_of_side(self.sides[0].source), schema_of_side(self.sides[1].source)

    def _columns(self, node: Any) -> list[Key]:
        return [self.reader.keys[id(column)][0] for column in node.find_all(exp.Column)]

    def _sort(self, node: Any) -> None:
        """Put a condition where it belongs."""
        inner = bare(node)
        if isinstance(inner, exp.EQ) and self._is_key(inner):
            return
        side = self.side(self._columns(node))
        if side is not None and side in DROPPED[self.pair.how] and not self.pair.closest:
            alone = [pa.schema([]), pa.schema([])]
            alone[side] = self._schemas[side]
            name = self.sides[side].names.__getitem__
            self.filters[side].append(self.reader.checked(node, name, (alone[0], alone[1])))
            return
        self.reader.checked(node, self._name, self._schemas)
        reading = BoundReader(
            self.reader.key,
            lambda part: self.reader.spelled(part, self._name),
            self.side,
            lambda columns: self.sides[self.side(columns) or Side.LEFT].kind(columns),
        )
        for part in reading.parts(node):
            if not part.bounds:
                self.others.append(part.text)
            for bound in part.bounds:
                pair = bound.left, bound.right
                distance = self.distances.setdefault(pair, Distance(*pair))
                distance.add(bound)
                if part not in distance.parts:
                    distance.parts.append(part)

    def _name(self, key: Key) -> str:
        """A column as predicates over both sides call it."""
        side = self.side([key])
        if side is None:
            raise InvalidRequest(f"{key[1]} is not known before the join; filter the results")
        return f"{side.name.lower()}\0{self.sides[side].names[key]}"

    def _is_key(self, node: Any) -> bool:
        """Note an equality of both sides as a key or a window; whether it was one."""
        ends = [node.this, node.expression]
        sides = [self.side(self._columns(end)) for end in ends]
        if None in sides or sides[0] is sides[1]:
            return False
        left, right = ends if sides[0] is Side.LEFT else reversed(ends)
        if called(bare(left)) in WINDOWS and called(bare(right)) in WINDOWS:
            self.windows.append(self._same_window(node, bare(left), bare(right)))
            return True
        keys = self.reader.key(left), self.reader.key(right)
        if keys[0] is None or keys[1] is None:
            return False
        self.keys.append((keys[0], keys[1]))
        return True

    def _same_window(self, node: Any, left: Any, right: Any) -> Window:
        """The window of `TUMBLE(..) = TUMBLE(..)`, or of HOP."""
        (name, time, lengths), (other_name, other_time, other_lengths) = (
            window_of(self.reader, part) for part in (left, right)
        )
        if (name, lengths) != (other_name, other_lengths) or name == "session":
            raise self.reader.text.refusal(
                node, "both sides need the same TUMBLE(time, size) or HOP(time, slide, size)"
            )
        times = self.sides[0].names[time], self.sides[1].names[other_time]
        if name == "tumble":
            return tumbling(*times, lengths[0], delay=self.delay)
        slide, size = lengths
        return sliding(*times, size, slide, delay=self.delay)

    # What the conditions become

    def _filters(self) -> dict[str, str]:
        return {
            f"{side.name.lower()}_where": " and ".join(self.filters[side])
            for side in PAIR
            if self.filters[side]
        }

    def _window(self) -> Window | Distance | None:
        """The window: the one that is written, or the distance of the event times."""
        timed = [
            distance for distance in self.distances.values() if self._is_of_event_time(distance)
        ]
        if len(self.windows) + len(timed) > 1:
            raise self._refusal(
                "two conditions bound event time; say which columns are event time: "
                "stream.withWatermark(column, delay)"
            )
        return [*self.windows, *timed, None][0]

    def _is_of_event_time(self, distance: Distance) -> bool:
        """Whether a distance is a window.

        It is one if its streams name its columns as event time. If the streams name no event time,
        it is one if a bound is an INTERVAL.
        """
        sides = zip((distance.left, distance.right), self.sides, strict=True)
        if any(node.is_table for node in self.sides):
            return False
        if not all(pa.types.is_timestamp(node.kind(columns)) for columns, node in sides):
            return False
        inputs, streams = self.reader.inputs, self.reader.streams
        said = [
            (key[1], inputs.timed[streams[key[0]]]) for key in (*distance.left, *distance.right)
        ]
        if any(known and column not in known for column, known in said):
            return False
        return distance.has_interval or all(known for _, known in said)

    def _within(self, window: Window | Distance) -> Window:
        if not isinstance(window, Distance):
            return window
        lower, upper = (_duration(limit) for limit in (window.lower, window.upper))
        times = self.sides[0].called(window.left), self.sides[1].called(window.right)
        return within(*times, lower=lower, upper=upper, delay=self.delay)

    def _band(self, window: Window | Distance | None) -> Distance | None:
        """The distance that becomes the band, if any: a band finds pairs, so a closed one is best.

        Beside a key, an open band would find no fewer candidates than a predicate.
        """
        keyed = bool(self.keys or self.pair.using)
        distances = [
            distance
            for distance in self.distances.values()
            if distance is not window and len(distance.left) == len(distance.right) == 1
            if distance.is_closed or not (keyed or self._has_floats(distance))
        ]
        closed = [distance for distance in distances if distance.is_closed]
        if not distances and not keyed and isinstance(window, Distance):
            return window if len(window.left) == len(window.right) == 1 else None
        return [*closed, *distances, None][0]

    def _has_floats(self, distance: Distance) -> bool:
        """Whether a column of a distance has floats: in a band NaN matches nothing."""
        columns = zip(self.sides, (distance.left, distance.right), strict=True)
        return any(pa.types.is_floating(side.kind(named)) for side, named in columns)

    def _on(self, chosen: Distance | None, window: Window | Distance | None) -> Any:
        equal = self._equal()
        if chosen is None:
            return equal
        times = pa.types.is_temporal(self.sides[0].kind(chosen.left))
        limits = [
            None if limit is None else _duration(limit) if times else _number(limit)
            for limit in (chosen.lower, chosen.upper)
        ]
        ends = self.sides[0].called(chosen.left)[0], self.sides[1].called(chosen.right)[0]
        condition: Band = band(*ends, lower=limits[0], upper=limits[1])
        return condition if equal is None else replace(condition, equal=equal)

    def _equal(self) -> Equi | None:
        keys = [*self.pair.using.values()] or self.keys
        if not keys:
            return None
        lefts, rights = (tuple(self.sides[side].names[key[side]] for key in keys) for side in PAIR)
        return Equi(lefts, rights, using=bool(self.pair.using))

    def _left_over(
        self, chosen: Distance | None, window: Window | Distance | None
    ) -> Iterator[str]:
        """The conditions that are neither a key nor the window nor the band."""
        yield from self.others
        for distance in self.distances.values():
            if distance is not chosen and distance is not window:
                yield from (part.text for part in distance.parts)
        if self.pair.using:
            for left, right in self.keys:
                names = self.sides[0].names[left], self.sides[1].names[right]
                yield "left.{} = right.{}".format(*map(ticked, names))

    def _check_some(self, distance: Distance) -> None:
        """Refuse bounds that no distance lies within."""
        if distance.is_empty:
            ends = " and ".join(key[1] for key in (*distance.left, *distance.right))
            raise self._refusal(
                f"no distance of {ends} lies within the bounds; the lower one is above the upper "
                "one, so swap them"
            )

    # The closest row

    def _closest(self) -> Any:
        """The condition of an ASOF join: keys, and one comparison of event times."""
        distance = next(iter(self.distances.values()), None)
        keys = self._equal()
        if self.others or distance is None or len(self.distances) > 1 or keys is None:
            raise self._refusal(
                "ASOF JOIN takes equalities and one comparison of times; write ON f.k = w.k AND "
                "f.ts >= w.ts"
            )
        self._check_some(distance)
        lefts, rights = self.sides[0].called(distance.left), self.sides[1].called(distance.right)
        if len(lefts) > 1 or len(rights) > 1:
            raise self._refusal("ASOF JOIN compares one time of each side; name one column")
        return closest((lefts[0], rights[0]), keys, distance, self.delay)


def closest(times: tuple[str, str], by: Equi, distance: Distance, delay: Any) -> AsOf:
    """The as-of condition that takes the closest row of the right side.

    Right time - left time is at most 0 (`f.ts >= w.ts`: backward), or at least 0 (forward). Its
    other bound is the tolerance.
    """
    backward = distance.upper is not None and distance.upper in (0, -1)
    end, far = (distance.upper, distance.lower) if backward else (distance.lower, distance.upper)
    if end not in (0, -1, 1):
        raise InvalidRequest("ASOF JOIN compares times without an INTERVAL; write f.ts >= w.ts")
    return asof(
        *times,
        by=by,
        direction="backward" if backward else "forward",
        tolerance=None if far is None else _duration(abs(far)),
        strict=end != 0,
        delay=delay,
    )


def window_of(reader: Reader, node: Any) -> tuple[str, Key, list[timedelta]]:
    """The function, the time column and the lengths of TUMBLE, HOP or SESSION.

    Raises InvalidRequest for other arguments.
    """
    name, arguments = called(node), node.expressions
    key = reader.key(arguments[0]) if arguments else None
    lengths = [interval_us(bare(argument)) for argument in arguments[1:]]
    fit = all(length is not None and length <= _LONGEST_US for length in lengths)
    if len(arguments) != WINDOWS[name] or key is None or not fit:
        raise reader.text.refusal(
            node,
            "a window is TUMBLE(time, INTERVAL ..), HOP(time, slide, size) or SESSION(time, gap), "
            "of a column and of INTERVALs without months, none longer than a billion days",
        )
    return name, key, [timedelta(microseconds=length) for length in lengths if length is not None]


def _duration(limit: Decimal | None) -> timedelta | None:
    return None if limit is None else int(limit) * _TOLERANCE


def _number(limit: Decimal) -> int | Decimal:
    return int(limit) if limit == int(limit) else limit
