"""`latest`: a changing table, given as a stream of the versions of its rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from joinengine.api import checks
from joinengine.api.column_checks import check_filter
from joinengine.model.arguments import check_names, check_text
from joinengine.model.columns import require_column
from joinengine.model.conditions import AsOf, Columns, Condition, Direction, Equi, Predicate
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.named import one_of
from joinengine.model.texts import quoted
from joinengine.sources.kafka_planning import are_offsets
from joinengine.spark.session import session
from joinengine.spark.sources.inputs import Source
from joinengine.spark.sources.own_streams import OwnStream


class At(StrEnum):
    """Which version a left row meets: the newest at its arrival, or the one valid at its time."""

    ARRIVAL = "arrival"
    EVENT = "event"


@dataclass(frozen=True, eq=False)
class Latest:
    """The right side of a join that meets one version of each key; made by `latest`."""

    stream: OwnStream
    key: tuple[str, ...]
    order_by: str | None
    deleted: str | None
    at: At
    until_us: int | None = None

    def over(self, sources: Mapping[int, Source]) -> Latest:
        """The same over another stream; `sources`: id of a source -> its replacement."""
        stream = sources.get(id(self.stream), self.stream)
        assert isinstance(stream, OwnStream)
        return replace(self, stream=stream)

    def gone(self, zone: str, *, exact: bool) -> Predicate | None:
        """The predicate `deleted`; None: no version is a deletion."""
        columns = self.stream.delivered
        return check_filter(self.deleted, Side.RIGHT, columns, zone, "latest: deleted", exact=exact)

    def meaning(self, on: Condition) -> AsOf:
        """The as-of condition that `on` means in a join with this table.

        Raises InvalidRequest for another kind of condition, or another key.
        """
        if self.at is At.EVENT:
            if not isinstance(on, AsOf):
                raise InvalidRequest(
                    f"latest: at='event' needs the time of left rows; write "
                    f"on=asof('l_ts', {self.order_by!r}, by=equi(..))"
                )
            if on.direction is not Direction.BACKWARD or on.times[1] != (self.order_by,):
                raise InvalidRequest(
                    f"latest: the version that is valid at a time is the one before it; write "
                    f"on=asof('l_ts', {self.order_by!r}, by=equi(..)), which looks backward"
                )
            by, meant = on.by, on
        elif isinstance(on, Equi):
            order = () if self.order_by is None else (self.order_by,)
            by, meant = on, AsOf(times=((), order), by=on)
        else:
            raise InvalidRequest(
                "latest: a row meets the newest version of its key; write on=equi('a', 'b'), or "
                "latest(.., at='event') with on=asof(..)"
            )
        if {*by.right} != {*self.key}:
            raise InvalidRequest(
                f"latest: its key is {', '.join(self.key)}, but on names the right columns "
                f"{', '.join(by.right)}; name all columns of the key, and no others"
            )
        return meant


def latest(
    stream: Source,
    *,
    key: Columns,
    order_by: str | None = None,
    deleted: str | None = None,
    at: str = "arrival",
    until: str | dt.date | Mapping[int, int] | None = None,
) -> Latest:
    """A changing table: of the rows of `stream` with one `key`, the newest counts.

    It is the right side of a StreamJoin (inner or left). Before the first batch with rows of the
    left side, joinengine reads the stream to the end that it has when the query starts.
    `order_by`: the column whose greatest value marks the newest version: a timestamp, a date or an
    integer. Of versions with equal values, and of all versions if it is None, the one read last is
    newest. `deleted`: a predicate. If it is true of the newest version, the key has no version.
    `at`: "arrival": a left row meets the version that was newest when its batch began. "event": it
    meets the one valid at its time, and waits for that as in an as-of join; `on` is then
    `asof(left_time, order_by, by=..)`.
    `until`: read no left row before a version has arrived whose `order_by`, a timestamp, is this
    time or later: ISO text or a datetime, in UTC if it has no zone. For a topic, it may also map
    partitions to offsets: read no left row before all versions below these offsets.

    Raises InvalidRequest if `stream` is not a `Stream`, or for arguments that do not fit.
    """
    if not isinstance(stream, OwnStream):
        checks.check_source(stream)
        raise InvalidRequest(
            "latest: expected a stream of parquet_stream or kafka_stream, of which joinengine "
            "knows how far it goes; found a DataFrame"
        )
    columns, exact = stream.delivered, session.case_sensitive(stream.spark)
    names = tuple(
        require_column(columns, name, "latest: key", exact=exact).name
        for name in check_names(key, "latest: key", "latest(customers, key='id')")
    )
    if not names:
        raise InvalidRequest("latest: no key is named; write for example key='id'")
    if order_by is not None:
        check_text(order_by, "latest: order_by", "order_by='changed_at'")
        field = require_column(columns, order_by, "latest: order_by", exact=exact)
        order_by = field.name
        _check_order(field)
    chosen = one_of(At, at, "latest: at")
    if chosen is At.EVENT and order_by is None:
        raise InvalidRequest("latest: at='event' needs order_by, the time of each version")
    if isinstance(until, Mapping):
        _check_offsets(until)
        made = Latest(stream.awaiting(dict(until)), names, order_by, deleted, chosen)
    else:
        until_us = None if until is None else _moment(until, order_by, columns)
        made = Latest(stream, names, order_by, deleted, chosen, until_us)
    made.gone(session.zone(stream.spark), exact=exact)
    return made


def _check_offsets(until: Mapping[Any, Any]) -> None:
    if not (until and are_offsets(until)):
        raise InvalidRequest(
            f"latest: until: expected offsets such as {{0: 1500, 1: 1480}}, or a time, found "
            f"{quoted(str(dict(until)))}"
        )


def _moment(until: Any, order_by: str | None, columns: pa.Schema) -> int:
    """The time that `until` names, in microseconds."""
    if order_by is None or not pa.types.is_timestamp(columns.field(order_by).type):
        raise InvalidRequest(
            "latest: until needs order_by, the time of each version; give the column of a timestamp"
        )
    with suppress(ValueError):
        moment = dt.datetime.fromisoformat(until) if isinstance(until, str) else until
        if isinstance(moment, dt.date) and not isinstance(moment, dt.datetime):
            moment = dt.datetime.combine(moment, dt.time())
        if isinstance(moment, dt.datetime):
            zoned = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
            return (zoned - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(microseconds=1)
    raise InvalidRequest(
        f"latest: until: expected a time such as '2026-03-01T12:00:00Z', found {quoted(str(until))}"
    )


def _check_order(field: pa.Field) -> None:
    kind = field.type
    whole = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    if not (whole or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        raise InvalidRequest(
            f"latest: order_by must be a timestamp, a date or an integer, but {field.name} is "
            f"{kind}"
        )
