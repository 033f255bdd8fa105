"""Readings: read the tuples of Parquet files.

The columns of a stream come from the file, from the names of its folders, or are computed, and its
filters are applied, batch by batch as Arrow reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from typing_extensions import override

from joinengine.model.errors import UnreadableFile
from joinengine.model.skipped import Skipped
from joinengine.model.texts import in_a_line
from joinengine.sources.listing import OnBadFile, check_unchanged, unreadable
from joinengine.sources.places import Seen
from joinengine.sources.positions import RowGroup
from joinengine.sources.projection import Projection
from joinengine.sources.schemas import (
    as_text,
    cast,
    completed,
    from_text,
    partition_value,
    partition_values,
)
from joinengine.sources.sourcefiles import parquet
from joinengine.sources.transforms import needed, stepped, steps_from_json, steps_to_json
from joinengine.world.local import check_blame

_READ_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class Reading(Projection):
    """How the tuples of files are read.

    `root`: the names of folders below it hold values of columns; None: they hold none. `zone`: of
    instants there. `on_bad_file`: what happens if a file has changed since it was logged, or is
    damaged.
    """

    root: str | None = None
    zone: str = "UTC"
    on_bad_file: OnBadFile = OnBadFile.FAIL

    @override
    def batches(
        self,
        groups: Sequence[RowGroup],
        skipped: list[Skipped] | None = None,
        seen: Seen | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The tuples of row groups of one file.

        Raises DamagedState, with the file, if it has changed or cannot be read. If such files are
        skipped, it is noted in `skipped` instead, and the tuples read until then count.
        """
        try:
            yield from self._read(groups)
        except UnreadableFile as error:
            if skipped is None or self.on_bad_file is OnBadFile.FAIL:
                raise
            skipped.append(Skipped(groups[0].file, error.reason))

    def _read(self, groups: Sequence[RowGroup]) -> Iterator[pa.RecordBatch]:
        path = groups[0].file
        if groups[0].size >= 0:
            check_unchanged(path, groups[0].size, groups[0].modified_ns)
        asked = needed(self.columns, self.steps, self.schema)
        given = self._given(path, asked)
        try:
            with parquet(path) as file:
                inside = set(file.schema_arrow.names) - given.keys()
                numbers, names = [g.group for g in groups], [f.name for f in asked]
                names = [name for name in names if name in inside]
                for batch in file.iter_batches(_READ_ROWS, numbers, names, use_threads=False):
                    kept = stepped(completed(batch, asked, given), self.steps, self.columns)
                    if kept.num_rows:
                        yield conform(kept, self.schema)
        except (pa.ArrowException, OSError) as error:
            check_blame(f"source file {path}", error)
            raise unreadable(path, f"cannot be read ({in_a_line(error)})") from None

    def _given(self, path: str, needed: Sequence[pa.Field]) -> dict[str, pa.Scalar]:
        """Column -> its value in the names of the folders of a file."""
        values = {} if self.root is None else partition_values(path, self.root)
        return {
            field.name: partition_value(values[field.name], field.type, self.zone)
            for field in needed
            if field.name in values
        }


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema` in its order and types; a column of that type is not copied."""
    columns = [cast(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def reading_to_json(reading: Reading) -> str:
    """A reading without the columns that it delivers, as an option of the source."""
    return json.dumps(
        {
            "steps": steps_to_json(reading.steps),
            "columns": as_text(reading.columns),
            "root": reading.root,
            "zone": reading.zone,
            "on_bad_file": reading.on_bad_file,
        }
    )


def reading_from_json(schema: pa.Schema, content: str) -> Reading:
    """A reading that delivers the columns of `schema`, otherwise as the option says."""
    fields = json.loads(content)
    steps = steps_from_json(fields["steps"])
    bad = OnBadFile(fields["on_bad_file"])
    columns = from_text(fields["columns"])
    return Reading(schema, steps, columns, fields["root"], fields["zone"], bad)
