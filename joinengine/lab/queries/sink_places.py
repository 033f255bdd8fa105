"""Where a run of the command line delivers its results, and how they are read back.

The command line starts a sink by the name of its format, as a program does. The final content of a
folder or table can be compared only if it was empty before the run, or held only results of the
same checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from joinengine.api import options as given
from joinengine.api.lake_sinks import catalog_of
from joinengine.api.option_table import OPTIONS
from joinengine.lab.queries.folder_side import FolderSide
from joinengine.model.errors import InvalidRequest
from joinengine.model.query import CHANGE
from joinengine.results import delta
from joinengine.sources.sourcefiles import exists, find
from joinengine.spark.query.query_folders import check_folder
from joinengine.world.buckets import is_url


class SinkPlace(NamedTuple):
    """A sink by the name of its format, with its options."""

    format: str
    options: Mapping[str, str]

    @property
    def place(self) -> str | None:
        """The folder or table that holds the results; None: they are passed on or dropped."""
        return self.options.get("table" if self.format == "iceberg" else "path")


def check_sink(sink: SinkPlace) -> None:
    """Raise InvalidRequest for a sink that a start would refuse; needs no session of Spark.

    These are unknown options, invalid values, a folder that cannot be made, and a catalogue that
    does not answer.
    """
    given.check_names(sink.format, sink.options)
    for name in sink.options.keys() & OPTIONS.keys():
        given.value_of(sink.options, name)
    if sink.format == "iceberg":
        catalog_of(sink.options).checked(str(sink.place))
    elif sink.place is not None and not is_url(sink.place):
        check_folder(Path(sink.place), "--sink")


def check_comparable(sink: SinkPlace, *, continues: bool) -> None:
    """Raise InvalidRequest if DuckDB's results cannot be compared with what `sink` will hold.

    `continues`: the run goes on with a checkpoint, whose results may be there already.
    """
    if sink.format == "kafka":
        raise InvalidRequest(
            "validate: the messages of a topic are not read back; leave --validate out, or give "
            "--sink delta:FOLDER or parquet:FOLDER"
        )
    if sink.place is not None and not continues and _holds_rows(sink):
        raise InvalidRequest(
            f"validate: {sink.place} holds rows already, which DuckDB does not have; leave "
            "--validate out, or give another place in --sink"
        )


def delivered(sink: SinkPlace, schema: pa.Schema) -> pa.RecordBatchReader:
    """All rows that `sink` holds, with the columns of `schema`, the schema of the results.

    A table by key has no column of changes: each of its rows counts as +1.
    """
    is_net = "mergeKeys" in sink.options
    names = [name for name in schema.names if not (is_net and name == CHANGE)]
    batches = _rows(sink, schema, names)
    if not is_net:
        return batches
    once = [
        pa.record_batch(
            [*batch.columns, pa.array([1] * batch.num_rows, pa.int64())], [*names, CHANGE]
        )
        for batch in batches
    ]
    return pa.RecordBatchReader.from_batches(
        batches.schema.append(pa.field(CHANGE, pa.int64())), once
    )


def _rows(sink: SinkPlace, schema: pa.Schema, names: list[str]) -> pa.RecordBatchReader:
    place = str(sink.place)
    if sink.format == "delta":
        if (table := delta.loaded(place)) is not None:
            return table.to_pyarrow_dataset().scanner(columns=names).to_reader()
    elif sink.format == "iceberg":
        table = catalog_of(sink.options).checked(place)
        return table.scan(selected_fields=tuple(names)).to_arrow().select(names).to_reader()
    elif exists(place):
        files = FolderSide(place).tuples(None, schema, schema)
        return pa.RecordBatchReader.from_batches(schema, files)
    return pa.RecordBatchReader.from_batches(schema, ())  # no batch had results


def _holds_rows(sink: SinkPlace) -> bool:
    place = str(sink.place)
    if sink.format == "delta":
        table = delta.loaded(place, InvalidRequest)
        return table is not None and table.to_pyarrow_dataset().count_rows() > 0
    if sink.format == "iceberg":
        return bool(catalog_of(sink.options).checked(place).scan().count())
    return exists(place) and bool(find(place))
