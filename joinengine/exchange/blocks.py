"""Blocks: routed tuples on their way to the instances.

Writing a block admits, routes and groups tuples; how they then reach the instances is the
exchange's part (`joinengine.exchange.exchange`).

Law: each admitted tuple is delivered once to every instance that its router names; refused tuples
are counted by reason.
Cost per delivery: hash and u 10 ns, route 5 to 30 ns, one gather and one write per column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.exchange.exchange import Address, Exchange
from joinengine.exchange.roles import Origin, Role
from joinengine.kernels.bands import Bools
from joinengine.kernels.comparing import latest_time, no_time
from joinengine.kernels.hashing import Words, draw_u, make_words
from joinengine.kernels.probing import Ints
from joinengine.kernels.watch_numbers import number_tuples, watcher_of
from joinengine.layouts.versions import VersionedRouter, united
from joinengine.model.columns import name_beside
from joinengine.model.keys import Side
from joinengine.predicates.theta import passes
from joinengine.results.staging import ParquetFile
from joinengine.routing.routes import BACKUP, STORE, Deliveries, Flags, only, storing
from joinengine.state.run_file import WORD
from joinengine.wire.reports import Block, InputReport
from joinengine.world.storage import StoredFile, tagged
from joinengine.world.world import World

FLAGS = "__flags"
#: The column of a refused tuple that says why, if no column of the user has this name.
REASON = "reason"


class Refusal(StrEnum):
    """Why a tuple was refused: late, too far ahead of the clock, or without a key or event time."""

    LATE = "late"
    NULL = "null"
    AHEAD = "ahead"


class BlockWriter:
    """Admits and routes the tuples that one task brings to one role, and sends them."""

    def __init__(self, role: Role, exchange: Exchange, origin: Origin, world: World) -> None:
        self._role = role
        self._origin = origin
        self._timer_s = world.timer_s
        self._numbered = 0
        self._chunks = 0
        address = Address(role.operator, role.side, origin.task, role.instances)
        self._outbox = exchange.outbox(address)
        self.report = InputReport(role.operator, role.side)
        self._refused = RefusedWriter(role, world)
        #: seconds spent on gathering and writing, as opposed to deciding where tuples go
        self.write_s = 0.0

    def add(self, batch: pa.RecordBatch) -> None:
        """Route a batch of tuples that has the columns of the role's schema, and maybe others."""
        admitted, unusable = self._admit(batch)
        if not admitted.num_rows:
            return
        role = self._role
        usable = None if unusable is None else np.flatnonzero(~unusable)
        keyed = admitted if usable is None else admitted.take(pa.array(usable))
        hashes = role.keying.stored(role.side, keyed)
        u = draw_u(hashes, self._origin.seed + self._chunks)
        words = make_words(hashes, u)
        deliveries = self._route(keyed, words, u)
        if usable is not None:
            deliveries = deliveries._replace(rows=usable[deliveries.rows])
            words = np.zeros(admitted.num_rows, np.uint64)
            words[usable] = make_words(hashes, u)
        if role.watchers:
            admitted, deliveries = self._watched(admitted, deliveries)
        order, bounds = self._outbox.group(deliveries.instances)
        rows = deliveries.rows[order]
        start = self._timer_s()
        columns = admitted.select(role.schema.names).take(pa.array(rows)).columns
        found = [pa.array(words[rows]), pa.array(deliveries.flags[order]), *columns]
        self._outbox.put(pa.RecordBatch.from_arrays(found, schema=_schema(role, found)), bounds)
        self.write_s += self._timer_s() - start
        self._chunks += 1
        self.report.deliveries += len(rows)

    def _watched(
        self, admitted: pa.RecordBatch, deliveries: Deliveries
    ) -> tuple[pa.RecordBatch, Deliveries]:
        """Tuples with their numbers, each going to its watcher too."""
        role, n = self._role, admitted.num_rows
        numbers = number_tuples(n, self._numbered, role.windows_each, *self._origin)
        self._numbered += n
        flag = role.watch_flag
        watchers = watcher_of(numbers, role.windows_each, role.watchers)
        kind = np.min_scalar_type(flag)
        watched = Deliveries(np.arange(n), watchers, np.full(n, flag, kind))
        order = np.argsort(deliveries.rows, kind="stable")
        rows, targets, flags = deliveries
        ascending = Deliveries(rows[order], targets[order], flags[order])
        both = united([ascending, watched], n, role.instances)
        return admitted.append_column(role.schema.names[-1], pa.array(numbers)), both

    def _route(self, admitted: pa.RecordBatch, words: Words, u: Words) -> Deliveries:
        role = self._role
        if role.stays_put:
            return homes_alone(role.router, words)
        found = self._to_all(admitted, words, u)
        return only(found, found.flags != BACKUP) if role.passes_by else found

    def _to_all(self, admitted: pa.RecordBatch, words: Words, u: Words) -> Deliveries:
        """The deliveries to homes, to backups, and to whom is probed."""
        role = self._role
        if role.keying.is_plain:
            return role.router.route(role.side, words)
        probed = list[tuple[Words, Ints | None]]()
        for one in role.keying.probed(role.side, admitted):
            some = None if one.some is None else np.flatnonzero(one.some)
            all_words = make_words(one.hashes, u)
            probed.append((all_words if some is None else all_words[some], some))
        return role.router.route_apart(role.side, words, probed)

    def close(self) -> Block | None:
        """The block; None if no tuple was admitted."""
        self.report.refused = self._refused.close()
        return self._outbox.close()

    def _admit(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Bools | None]:
        """The admitted tuples, and (n,) which of them match nothing; None: each may match.

        Dropped are tuples that fail the filter and, counted, late ones and those that are ahead of
        time. A tuple matches nothing if
        its key or time is NULL or its value in a band NaN. Such tuples are counted; they are
        admitted if the side is watched, and dropped if not.
        """
        role, report = self._role, self.report
        report.rows += batch.num_rows
        times = self._seen(batch)
        if role.filter is not None and batch.num_rows:
            kept = passes(role.filter, batch)
            batch, times = batch.filter(pa.array(kept)), None if times is None else times[kept]
        nulls = self._matchless(batch)
        if nulls is not None and not role.watchers:
            report.null_rows += int(nulls.sum())
            self._refused.add(batch, nulls, Refusal.NULL)
            batch, times = batch.filter(pa.array(~nulls)), None if times is None else times[~nulls]
            nulls = None
        if times is not None:
            batch, nulls = self._on_time(batch, times, nulls)
        if nulls is not None:
            report.null_rows += int(nulls.sum())
        return batch, nulls

    def _seen(self, batch: pa.RecordBatch) -> Ints | None:
        """(n,) event times; None: there are none.

        All of them move the watermark, also those of tuples that are then refused: event time
        follows the tuples that a side brings, not those that can match. But those that are ahead
        of time do not: all that come after them would be late.
        """
        names, latest = self._role.times, self._role.latest
        if not names or not batch.num_rows:
            return None
        times, untimed = latest_time(batch, names), no_time(batch, names)
        able = times if untimed is None else times[~untimed]
        if latest < math.inf:
            able = able[able <= latest]
        if len(able):
            self.report.see_time(int(able.max()))
        return times

    def _matchless(self, batch: pa.RecordBatch) -> Bools | None:
        """(n,) which tuples match nothing, because a value is missing; None: there are none."""
        unkeyed = self._role.keying.unusable(self._role.side, batch)
        untimed = no_time(batch, self._role.times)
        nulls = untimed if unkeyed is None else unkeyed if untimed is None else untimed | unkeyed
        return nulls if nulls is not None and nulls.any() else None

    def _on_time(
        self, batch: pa.RecordBatch, times: Ints, nulls: Bools | None
    ) -> tuple[pa.RecordBatch, Bools | None]:
        """The tuples that are neither late nor ahead of time, and which of them match nothing.

        A tuple without an event time is neither.
        """
        role = self._role
        late, ahead = times < role.watermark, None
        refused = late
        if role.latest < math.inf:
            ahead = times > role.latest  # after the clock went back it may be late too
            late &= ~ahead
            refused = late | ahead
        if nulls is not None:
            untimed = no_time(batch, role.times)
            refused = refused & (True if untimed is None else ~untimed)
        if not refused.any():
            return batch, nulls
        self.report.late_rows += self._set_aside(batch, late & refused, Refusal.LATE)
        if ahead is not None:
            self.report.ahead_rows += self._set_aside(batch, ahead & refused, Refusal.AHEAD)
        return batch.filter(pa.array(~refused)), None if nulls is None else nulls[~refused]

    def _set_aside(self, batch: pa.RecordBatch, which: Bools, why: Refusal) -> int:
        """How many tuples are refused for this reason, which the side output gets."""
        count = int(which.sum())
        if count:
            self._refused.add(batch, which, why)
        return count


def _schema(role: Role, arrays: Sequence[pa.Array]) -> pa.Schema:
    """The columns of a block; the first two of `arrays` are words and flags."""
    return pa.schema(
        [pa.field(WORD, arrays[0].type), pa.field(FLAGS, arrays[1].type), *role.schema]
    )


def homes_alone(router: VersionedRouter, words: Words) -> Deliveries:
    """(n,) words -> one delivery each, to the instance where the newest layout stores it."""
    stored = storing(router.routers[0].route(Side.LEFT, words))
    _, first = np.unique(stored.rows, return_index=True)
    rows, instances, _ = stored
    return Deliveries(rows[first], instances[first], np.full(len(first), STORE))


class RefusedWriter:
    """Writes the refused tuples of one role, with the reason, to a staged file."""

    def __init__(self, role: Role, world: World) -> None:
        name = f"{refused_label(role.operator, role.side)}-{world.nonce()}.parquet"
        name = tagged(role.generation, name)
        self._file = None if role.aside is None else ParquetFile(world.storage(role.aside), name)

    def add(self, batch: pa.RecordBatch, which: Bools, why: Refusal) -> None:
        """Take the rows of `batch` for which `which` (n,) is true."""
        if self._file is None:
            return
        rows = batch.filter(pa.array(which))
        reason = name_beside(batch.schema.names, REASON)
        rows = rows.append_column(reason, pa.array([why.value] * rows.num_rows, pa.string()))
        self._file.add(rows)

    def close(self) -> StoredFile | None:
        """The file; None if no tuple was refused."""
        return None if self._file is None else self._file.close()


def refused_label(join: int, side: Side) -> str:
    """The folder of one side of one operator in a side output.

    >>> refused_label(0, Side.LEFT)
    'join0-left'
    """
    return f"join{join}-{side.name.lower()}"


class Tuples(NamedTuple):
    """Tuples that arrived at an instance: (n,) words, (n,) flags, and their columns."""

    words: Words
    flags: Flags
    columns: pa.RecordBatch

    @classmethod
    def of(cls, pieces: Sequence[pa.RecordBatch]) -> Tuples:
        """The tuples of slices of blocks, in the order of the slices."""
        whole = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        words, flags = (whole.column(i).to_numpy(zero_copy_only=True) for i in range(2))
        own = pa.schema(list(whole.schema)[2:])  # by place: a name may be one of the first two
        return cls(words, flags, pa.RecordBatch.from_arrays(whole.columns[2:], schema=own))


class BlockReader:
    """Finds the tuples of instances in the blocks of one side."""

    def __init__(self, exchange: Exchange, blocks: Sequence[Block]) -> None:
        self._exchange = exchange
        self._blocks = blocks

    def slices(self, instance: int) -> list[pa.RecordBatch]:
        """The rows for `instance` of each record batch, without a copy or empty slices."""
        found = list[pa.RecordBatch]()
        for block in self._blocks:
            for chunk, bounds in enumerate(block.bounds):
                if instance + 1 >= len(bounds):  # an instance to which no tuple is routed any more
                    continue
                start, stop = int(bounds[instance]), int(bounds[instance + 1])
                if stop > start:
                    found.append(self._exchange.batches(block)[chunk].slice(start, stop - start))
        return found

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
        """The record batches, without a copy, each with its bounds: see Block."""
        for block in self._blocks:
            yield from zip(block.bounds, self._exchange.batches(block), strict=True)
