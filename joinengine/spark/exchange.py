"""Blocks: routed tuples on their way to the instances.

Why files and not a Spark shuffle: a block is named by the report of the task attempt that won, so
every reader sees the same attempt even where a source is not repeatable; a chain of joins needs no
second pass over the sources; and no tuple crosses into the JVM and back (docs/decisions/0002).

Law: each tuple that is admitted is delivered once to every instance that its router names; the
others are counted by reason.
Cost per delivery: hash and u 10 ns, route 5 to 30 ns, one gather and one write per column.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.comparing import latest_time
from joinengine.kernels.hashing import Words, any_null, draw_u, make_words
from joinengine.kernels.keying import Keying
from joinengine.kernels.probing import Ints
from joinengine.kernels.scattering import group_rows
from joinengine.kernels.theta import passes
from joinengine.layouts.versions import VersionedRouter
from joinengine.model.conditions import Predicate
from joinengine.model.keys import Side
from joinengine.model.reports import Block, InputReport
from joinengine.routing.routes import Deliveries
from joinengine.state.run import WORD

FLAGS = "__flags"


@dataclass(frozen=True, slots=True)
class Role:
    """One side of one join, as the tuples that enter it need to know it."""

    join: int
    side: Side
    keying: Keying
    times: tuple[str, ...]
    watermark: float
    router: VersionedRouter
    schema: pa.Schema
    filter: Predicate | None = None


class BlockWriter:
    """Admits, routes and writes the tuples that one task brings to one role."""

    def __init__(self, role: Role, folder: Path, seed: int) -> None:
        self._role = role
        self._seed = seed
        self._path = folder / f"block-{role.join}-{role.side}-{uuid.uuid4().hex[:12]}.arrow"
        self._writer: Any = None
        self._bounds = list[NDArray[np.int64]]()
        self.report = InputReport(role.join, role.side)
        #: seconds spent on gathering and writing, as opposed to deciding where tuples go
        self.write_s = 0.0

    def add(self, batch: pa.RecordBatch) -> None:
        """Route a batch of tuples with the columns of the role's schema."""
        admitted = self._admit(batch)
        if not admitted.num_rows:
            return
        role = self._role
        hashes = role.keying.stored(role.side, admitted)
        u = draw_u(hashes, self._seed + len(self._bounds))
        words = make_words(hashes, u)
        deliveries = self._route(admitted, words, u)
        groups = group_rows(deliveries.instances, role.router.instances)
        rows = deliveries.rows[groups.order]
        start = time.perf_counter()
        columns = admitted.take(pa.array(rows)).columns
        self._write([pa.array(words[rows]), pa.array(deliveries.flags[groups.order]), *columns])
        self.write_s += time.perf_counter() - start
        self._bounds.append(groups.bounds)
        self.report.deliveries += len(rows)

    def _route(self, admitted: pa.RecordBatch, words: Words, u: Words) -> Deliveries:
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
        """The block, or None where nothing was admitted."""
        if self._writer is None:
            return None
        self._writer.close()
        self._sink.close()
        return Block(self._role.join, self._role.side, self._path.name, tuple(self._bounds))

    def _admit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Drop what the join does not want; drop and count NULL keys and times, and what is late.

        NaN in a band counts as NULL: it matches nothing.
        """
        role, report = self._role, self.report
        report.rows += batch.num_rows
        if role.filter is not None and batch.num_rows:
            batch = batch.filter(pa.array(passes(role.filter, batch)))
        untimed = any_null([batch.column(name) for name in role.times])
        unusable = role.keying.unusable(role.side, batch)
        nulls = untimed if unusable is None else unusable if untimed is None else untimed | unusable
        if nulls is not None and nulls.any():
            report.null_rows += int(nulls.sum())
            batch = batch.filter(pa.array(~nulls))
        if role.times and batch.num_rows:
            times = latest_time(batch, role.times)
            report.see_time(int(times.max()))
            if times.min() < role.watermark:
                late = times < role.watermark
                report.late_rows += int(late.sum())
                batch = batch.filter(pa.array(~late))
        return batch

    def _write(self, arrays: list[pa.Array]) -> None:
        if self._writer is None:
            word, flags = pa.field(WORD, arrays[0].type), pa.field(FLAGS, arrays[1].type)
            self._schema = pa.schema([word, flags, *self._role.schema])
            self._sink = pa.OSFile(str(self._path), "wb")
            self._writer = pa.ipc.new_file(self._sink, self._schema)
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))


class BlockReader:
    """Finds the tuples of one instance in the blocks of one side."""

    def __init__(self, folder: Path, blocks: list[Block]) -> None:
        self._folder = folder
        self._blocks = blocks
        self._open: dict[str, list[pa.RecordBatch]] = {}

    def slices(self, instance: int) -> list[pa.RecordBatch]:
        """The record batches' rows for `instance`, in memory map, without empty ones."""
        found = list[pa.RecordBatch]()
        for block in self._blocks:
            for chunk, bounds in enumerate(block.bounds):
                start, stop = int(bounds[instance]), int(bounds[instance + 1])
                if stop > start:
                    found.append(self._batches(block)[chunk].slice(start, stop - start))
        return found

    def _batches(self, block: Block) -> list[pa.RecordBatch]:
        if block.file not in self._open:
            reader = pa.ipc.open_file(pa.memory_map(str(self._folder / block.file)))
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            self._open[block.file] = batches
        return self._open[block.file]
