"""Tables of TPC-H as changelogs: rows are inserted, some are updated later, and some are deleted.

Each row is inserted when it arrives in the plain stream (joinengine.lab.tpch.stream). Later, at a
random time, a part of the rows is updated: the old row goes, and a row with another value comes.
After that, a part is deleted. All changes of a row have its event time, and arrive in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from joinengine.lab.tpch.generate import Say, silent
from joinengine.lab.tpch.skew import uniform
from joinengine.lab.tpch.stream import (
    EPOCH_US,
    RecordedStream,
    StreamSpec,
    arrivals,
    default_interval_rows,
    recorded_once,
    write_about,
    write_table,
)
from joinengine.model.query import CHANGE

#: The parts of the rows that are updated once, and that are deleted.
UPDATED, DELETED = 0.4, 0.25


@dataclass(frozen=True)
class ChangelogSpec:
    """The changelogs of the tables of a plain stream.

    `updates`: table -> the number that an update adds 1 to. `left_out`: columns that no row has.
    """

    plain: StreamSpec
    updates: Mapping[str, str]
    left_out: frozenset[str] = frozenset()

    def record(self, say: Say = silent) -> RecordedStream:
        """The stream, written now unless it is in the cache."""
        name = f"changes-{UPDATED:g}-{DELETED:g}-{self.plain.name}"
        return recorded_once(name, lambda draft: self._write(draft, say))

    def _write(self, folder: Path, say: Say) -> None:
        plain = self.plain.record(say)
        numbers = arrivals(self.plain, plain.rows)
        changes = {table: self._changes(plain, table, numbers[table]) for table in plain.rows}
        rows = {table: changed.num_rows for table, (changed, _) in changes.items()}
        total = sum(rows.values())
        intervals = -(-total // (self.plain.interval_rows or default_interval_rows(total)))
        cuts = np.linspace(0, sum(plain.rows.values()), intervals + 1)[1:-1]
        folder.mkdir()
        for table, (changed, at) in changes.items():
            say(f"writing {table} as a changelog: {rows[table]:,} changes")
            bounds = [0, *np.searchsorted(at, cuts).tolist(), len(at)]
            stretches = (changed.slice(a, b - a) for a, b in pairwise(bounds))
            # A row that goes has the event time with which it came, so nothing is over.
            write_table(folder, table, stretches, [EPOCH_US - self.plain.disorder_us] * intervals)
        write_about(folder, rows, plain.span_us, {"plain": plain.folder.name})

    def _changes(
        self, plain: RecordedStream, table: str, numbers: NDArray[np.int64]
    ) -> tuple[pa.Table, NDArray[np.float64]]:
        """The changes of a table in their order, and (n,) when each comes, in arrival numbers."""
        files = sorted((plain.folder / table).glob("*.parquet"))
        rows = pa.concat_tables(map(pq.read_table, files))
        rows = rows.select([name for name in rows.column_names if name not in self.left_out])
        end, all_rows = sum(plain.rows.values()), np.arange(rows.num_rows)

        def drawn(what: str) -> NDArray[np.float64]:
            return uniform(self.plain.seed, f"{table}: {what}", all_rows)

        inserted = numbers.astype(float)
        updated = inserted + drawn("when updated") * (end - inserted)
        is_updated = drawn("updated") < UPDATED
        last = np.where(is_updated, updated, inserted)
        deleted = last + drawn("when deleted") * (end - last)
        some, gone = np.flatnonzero(is_updated), np.flatnonzero(drawn("deleted") < DELETED)
        which = np.concatenate([all_rows, some, some, gone])
        at = np.concatenate([inserted, updated[some], updated[some], deleted[gone]])
        signs = np.repeat([1, -1, 1, -1], [len(all_rows), len(some), len(some), len(gone)])
        is_new = np.zeros(len(which), bool)
        is_new[len(all_rows) + len(some) :] = True
        is_new &= is_updated[which]
        order = np.argsort(at, kind="stable")
        changed = rows.take(pa.array(which[order]))
        place = changed.schema.get_field_index(self.updates[table])
        value = changed.column(place)
        newer = pc.add(value, pa.scalar(1, value.type)).cast(value.type)
        value = pc.if_else(pa.array(is_new[order]), newer, value)
        changed = changed.set_column(place, changed.schema.field(place), value)
        changes = pa.array(signs[order].astype(np.int8))
        return changed.append_column(CHANGE, changes), at[order]
