"""Blocks: routed tuples on their way to the instances.

A block writer admits, routes and groups tuples. The exchange then carries them to the instances
(`joinengine.exchange.exchange`).

Law: each admitted tuple is delivered once to every instance that its router names; refused tuples
are counted by reason.
Cost per delivery: hash and u 10 ns, route 5 to 30 ns, one gather and one write per column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.exchange.admitting import Admitting
from joinengine.exchange.exchange import Address, Exchange
from joinengine.exchange.roles import Origin, Role
from joinengine.kernels.hashing import Words, draw_u, fixed_width, make_words, u_of_content
from joinengine.kernels.probing import Ints, sort_order
from joinengine.kernels.seating import Seats
from joinengine.kernels.watch_numbers import number_tuples, watcher_of
from joinengine.kernels.widths import fitting, widths_at
from joinengine.layouts.versions import VersionedRouter, united
from joinengine.model.keys import Side
from joinengine.routing.routes import BACKUP, STORE, Deliveries, Flags, only, storing
from joinengine.state.run_file import WORD
from joinengine.wire.reports import Block, InputReport
from joinengine.world.world import World

FLAGS = "__flags"
#: The most bytes of deliveries that are put into an outbox at once: a tuple may go to many
#: instances.
PUT_BYTES = 256 << 20
#: Tuples that are sorted together may take up 1/PIECE_PART of a task's memory: the tuples, their
#: sorted copy and their partners are in memory at the same time.
PIECE_PART = 4

#: Some rows of a block, and the seat of each.
Piece = tuple[pa.RecordBatch, Seats]


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
        self._admitting = Admitting(role, world)
        #: seconds spent on gathering and writing, as opposed to deciding where tuples go
        self.write_s = 0.0

    @property
    def report(self) -> InputReport:
        """How many tuples have arrived, how many were refused, and how many deliveries follow."""
        return self._admitting.report

    def add(self, batch: pa.RecordBatch) -> None:
        """Route a batch of tuples that has the columns of the role's schema, and maybe others."""
        admitted, unusable = self._admitting.admit(batch)
        if not admitted.num_rows:
            return
        role, keying = self._role, self._role.admission.keying
        usable = None if unusable is None else np.flatnonzero(~unusable)
        keyed = admitted if usable is None else admitted.take(pa.array(usable))
        hashes = keying.stored(role.side, keyed)
        if role.admission.u_of:
            u = u_of_content([keyed.column(name) for name in role.admission.u_of])
        else:
            u = draw_u(hashes, self._origin.seed + self._chunks)
        words = make_words(hashes, u)
        deliveries = self._route(keyed, words, u)
        if usable is not None:
            deliveries = deliveries._replace(rows=usable[deliveries.rows])
            words = np.zeros(admitted.num_rows, np.uint64)
            words[usable] = make_words(hashes, u)
        if role.watchers or role.admission.numbered:
            admitted = self._with_numbers(admitted)
        if role.watchers:
            deliveries = self._watched(admitted, deliveries)
        elif unusable is not None:
            deliveries = self._in_turn(deliveries, np.flatnonzero(unusable))
        start = self._timer_s()
        for part in _fitting(admitted, deliveries.rows):
            rows, instances, flags = deliveries
            some = Deliveries(rows[part], instances[part], flags[part])
            self._put(admitted, words, some)
        self.write_s += self._timer_s() - start
        self._chunks += 1
        self.report.deliveries += len(deliveries.rows)

    def _put(self, admitted: pa.RecordBatch, words: Words, deliveries: Deliveries) -> None:
        """Put one copy of a tuple into the outbox for each of its deliveries."""
        role = self._role
        order, bounds = self._outbox.group(deliveries.instances)
        rows = deliveries.rows[order]
        columns = admitted.select(role.admission.schema.names).take(pa.array(rows)).columns
        columns_sent = [pa.array(words[rows]), pa.array(deliveries.flags[order]), *columns]
        self._outbox.put(
            pa.RecordBatch.from_arrays(columns_sent, schema=_schema(role, columns_sent)), bounds
        )

    def _with_numbers(self, admitted: pa.RecordBatch) -> pa.RecordBatch:
        """The tuples with their numbers as the last column."""
        admission, n = self._role.admission, admitted.num_rows
        numbers = number_tuples(n, self._numbered, admission.windows_each, self._origin.serial)
        self._numbered += n
        return admitted.append_column(admission.schema.names[-1], pa.array(numbers))

    def _in_turn(self, deliveries: Deliveries, matchless: Ints) -> Deliveries:
        """The deliveries, plus one for each row of `matchless`, to all instances in turn."""
        turns = (matchless % self._role.router.instances).astype(deliveries.instances.dtype)
        flags = np.full(len(matchless), STORE, deliveries.flags.dtype)
        return Deliveries(
            np.concatenate([deliveries.rows, matchless]),
            np.concatenate([deliveries.instances, turns]),
            np.concatenate([deliveries.flags, flags]),
        )

    def _watched(self, admitted: pa.RecordBatch, deliveries: Deliveries) -> Deliveries:
        """The deliveries, plus one of each tuple to its watcher."""
        role, n = self._role, admitted.num_rows
        numbers = fixed_width(admitted.column(admitted.num_columns - 1), np.dtype(np.uint64))
        flag = role.watch_flag
        watchers = watcher_of(numbers, role.admission.windows_each, role.watchers)
        kind = np.min_scalar_type(flag)
        watched = Deliveries(np.arange(n), watchers, np.full(n, flag, kind))
        order = np.argsort(deliveries.rows, kind="stable")
        rows, targets, flags = deliveries
        ascending = Deliveries(rows[order], targets[order], flags[order])
        return united([ascending, watched], n, role.instances)

    def _route(self, admitted: pa.RecordBatch, words: Words, u: Words) -> Deliveries:
        role = self._role
        if role.admission.stays_put:
            return homes_alone(role.router, words)
        deliveries = self._to_all(admitted, words, u)
        return (
            only(deliveries, deliveries.flags != BACKUP) if role.admission.passes_by else deliveries
        )

    def _to_all(self, admitted: pa.RecordBatch, words: Words, u: Words) -> Deliveries:
        """The deliveries to homes, to backups, and to probed instances."""
        role, keying = self._role, self._role.admission.keying
        if keying.is_plain:
            return role.router.route(role.side.routed, words)
        probed = list[tuple[Words, Ints | None]]()
        for cells in keying.probed(role.side, admitted):
            some = None if cells.some is None else np.flatnonzero(cells.some)
            all_words = make_words(cells.hashes, u)
            probed.append((all_words if some is None else all_words[some], some))
        return role.router.route_apart(role.side.routed, words, probed)

    def close(self) -> Block | None:
        """The block; None if no tuple was admitted."""
        self._admitting.close()
        return self._outbox.close()


def _fitting(admitted: pa.RecordBatch, rows: Ints) -> Iterator[slice]:
    """(n,) row of each delivery -> consecutive slices of deliveries of about PUT_BYTES each."""
    most_copies = int(np.bincount(rows).max()) if len(rows) else 1
    if admitted.nbytes * most_copies <= PUT_BYTES:
        yield slice(0, len(rows))
        return
    columns = admitted.columns
    numbers = np.full(len(rows), 8 * len(columns))
    yield from fitting([*(widths_at(c, rows) for c in columns), numbers], len(rows), PUT_BYTES)


def _schema(role: Role, arrays: Sequence[pa.Array]) -> pa.Schema:
    """The columns of a block; the first two of `arrays` are words and flags."""
    own = role.admission.schema
    return pa.schema([pa.field(WORD, arrays[0].type), pa.field(FLAGS, arrays[1].type), *own])


def homes_alone(router: VersionedRouter, words: Words) -> Deliveries:
    """(n,) words -> n deliveries, each to one instance where the newest layout stores the tuple."""
    stored = storing(router.routers[0].route(Side.LEFT, words))
    _, first = np.unique(stored.rows, return_index=True)
    rows, instances, _ = stored
    return Deliveries(rows[first], instances[first], np.full(len(first), STORE))


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

    @classmethod
    def sorted(cls, pieces: Sequence[pa.RecordBatch]) -> Tuples:
        """The tuples of slices of blocks, in the order of their words."""
        words, flags, columns = cls.of(pieces)
        order = sort_order(words)
        return cls(words[order], flags[order], columns.take(pa.array(order)))


class BlockReader:
    """Finds the tuples of instances in the blocks of one side."""

    def __init__(self, exchange: Exchange, blocks: Sequence[Block]) -> None:
        self._exchange = exchange
        self._blocks = blocks

    def slices(self, instance: int) -> list[pa.RecordBatch]:
        """The rows for `instance` of each record batch, without a copy or empty slices."""
        pieces = list[pa.RecordBatch]()
        for block in self._blocks:
            for chunk, bounds in enumerate(block.bounds):
                if instance + 1 >= len(bounds):  # an instance to which no tuple is routed any more
                    continue
                start, stop = int(bounds[instance]), int(bounds[instance + 1])
                if stop > start:
                    pieces.append(self._exchange.batches(block)[chunk].slice(start, stop - start))
        return pieces

    def pieces(self, instance: int, most_bytes: int) -> Iterator[tuple[Tuples, bool]]:
        """The tuples for `instance` in pieces of about `most_bytes`, each sorted by word.

        The flag says whether a piece is the last.
        """
        packs = list(packed([(piece, None) for piece in self.slices(instance)], most_bytes))
        for number, pack in enumerate(packs, start=1):
            yield Tuples.sorted([piece for piece, _ in pack]), number == len(packs)

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
        """The record batches, without a copy, each with its bounds (see `Block`)."""
        for block in self._blocks:
            yield from zip(block.bounds, self._exchange.batches(block), strict=True)


def packed(pieces: Iterable[Piece], most_bytes: int) -> Iterator[list[Piece]]:
    """Groups pieces into packs of about `most_bytes`, at least one row; cuts larger pieces."""
    pack, left = list[Piece](), most_bytes
    for piece, seats in pieces:
        width, start = max(piece.nbytes / piece.num_rows, 1.0), 0
        while start < piece.num_rows:
            part = piece.slice(start, max(int(left / width), 1))
            stop = start + part.num_rows
            pack.append((part, None if seats is None else seats[start:stop]))
            left -= int(part.num_rows * width)
            start = stop
            if left < width:
                yield pack
                pack, left = [], most_bytes
    if pack:
        yield pack
