"""An Iceberg table as the target of a query's results, through the package `pyiceberg`.

The token is a property of the table, set in the commit that adds the files. It is not in the
summaries of snapshots, because maintenance may expire all snapshots of a query that is quiet for
long; each summary repeats it only for people.

Law: that of `joinengine.results.token_sinks`. A commit names the snapshot that it follows, so a
commit of a driver that has slept is refused. The package would retry and commit it after all, so
retries are off in our handle, and after each conflict the token is read again.
Cost: a commit writes a manifest, and rewrites the list of all manifests and the table's metadata.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import pyarrow as pa
from typing_extensions import override

from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.results.folders import IDENTITY, NOTHING, label
from joinengine.results.iceberg_catalog import Catalog, errors
from joinengine.results.showings import Held
from joinengine.results.table_fit import check_columns
from joinengine.results.table_sinks import (
    TableTarget,
    check_same,
    null_refused,
    outcome_unknown,
    partitions_changed,
    shown,
)
from joinengine.results.token_sinks import NOTHING as NO_BATCH
from joinengine.results.token_sinks import ShutOut
from joinengine.world.buckets import SCHEMES, is_url
from joinengine.world.storage import Storage, StoredFile
from joinengine.world.world import World

#: Seconds for which a catalogue that does not answer is asked again.
PATIENCE_S = 60.0
#: How often a commit is tried beside those of other writers, and seconds of pause after each try.
_TRIALS, _REST_S = 20, 0.05
#: Units of time by which a table may be partitioned.
_UNITS = ("year", "month", "day", "hour")
#: Transform with a parameter -> the column types for which it is supported.
_SIZED = {
    "bucket": ("int", "long", "date", "timestamp", "timestamptz", "string"),
    "truncate": ("int", "long", "string"),
}
#: Types that may partition a table, and whose values are unchanged in Parquet's statistics.
_PLAIN = ("boolean", "int", "long", "date", "timestamp", "timestamptz", "string", "decimal")
#: The place of the partition in a data file object of the package.
_PARTITION = 3
_MAPPING = "schema.name-mapping.default"
#: The field number before each field of a struct, which differs from table to table.
_NUMBER = re.compile(r"(?<=[< ])-?\d+: ")
_Answer = TypeVar("_Answer")


class PartitionColumn(NamedTuple):
    """A column that partitions a table, by whole values (`identity`) or by another transform."""

    column: str
    unit: str


@dataclass
class IcebergTarget(TableTarget):
    """The table named `table` in a catalogue. `schema`: of the results."""

    kind: ClassVar[str] = "iceberg"

    world: World
    catalog: Catalog
    table: str
    query: str
    schema: pa.Schema
    fsync: bool = False

    def __post_init__(self) -> None:
        self._found: Any = None  # the handle with which the token was read
        self._identity: str | None = None
        self._data: str | None = None
        self._generation = 0

    @property
    @override
    def name(self) -> str:
        return self.table

    @property
    @override
    def files(self) -> Storage:
        if self._data is None:
            self._data = data_location(self._asked(self._load))
        return self.world.storage(_folder(self._data), fsync=self.fsync)

    @override
    def identity(self) -> str | None:
        return str(self._asked(self._load).metadata.table_uuid)

    @override
    def make(self) -> str:
        """The identity of the table. It must exist: only the catalogue's owner creates tables."""
        self._identity = self._identity or self.identity()
        assert self._identity is not None
        return self._identity

    @override
    def open(self, generation: int) -> None:
        """Connect again; there is nothing to settle, as a commit is one change of the catalogue."""
        self._generation = generation
        self._found = None
        self.catalog.forget()

    @override
    def token(self) -> int:
        self._found = self._asked(self._load)
        check_same(self.name, self._identity, str(self._found.metadata.table_uuid))
        _check_fit(self.name, self._found, self.schema)  # it may have changed
        return int(self._found.metadata.properties.get(self._key, NO_BATCH))

    @override
    def commit(self, batches: Held) -> None:
        files, newest = shown(self, batches), batches[-1][0]
        for trial in range(1, _TRIALS + 1):
            try:
                with self._committing(newest):
                    self._add(files, newest)
                return
            except errors().CommitFailedException as error:
                self.world.sleep(_REST_S * trial)
                if self.token() >= batches[0][0] or trial == _TRIALS:
                    raise ShutOut(
                        f"iceberg: other writers of {self.name} have changed it before each of "
                        f"{trial} commits of batch {newest} ({self.catalog.reason(error)}); "
                        "nothing is lost: start the query again"
                    ) from None

    @override
    def close(self) -> None:
        self._found = None

    @property
    def _key(self) -> str:
        """The property of the table that holds the token."""
        return f"joinengine.batch.{self.query}"

    def _load(self) -> Any:
        return self.catalog.table(self.table)

    def _asked(self, question: Callable[[], _Answer]) -> _Answer:
        """The catalogue's answer; asks again for PATIENCE_S while it is away."""
        until_s, rest_s = self.world.now_s() + PATIENCE_S, 0.1
        while True:
            try:
                return question()
            except errors().NoSuchTableError:
                raise JoinEngineError(
                    f"iceberg: the table {self.name} is gone from {self.catalog}; restore it, or "
                    "start with a new checkpointLocation and another table"
                ) from None
            except Exception as error:
                if self.world.now_s() >= until_s:
                    raise JoinEngineError(
                        f"iceberg: {self.catalog} did not answer within {PATIENCE_S:.0f} s "
                        f"({self.catalog.reason(error)}); nothing is lost: start the query again "
                        "when it does"
                    ) from error
            self.catalog.forget()
            self.world.sleep(rest_s)
            rest_s = min(2 * rest_s, 2.0)

    def _add(self, files: list[tuple[str, StoredFile]], newest: int) -> None:
        """Commit files and token, unless the table has changed since the handle was made."""
        table, (transaction, update) = self._found, self._begun(newest)
        merged = table.metadata.properties.get("commit.manifest-merge.enabled", "false") == "true"
        metadata = transaction.table_metadata
        with update.merge_append() if merged else update.fast_append() as append:
            for name, stored in files:
                append.append_data_file(self._data_file(table, metadata, name, stored))
        transaction.commit_transaction()

    def _begun(self, newest: int) -> tuple[Any, Any]:
        """A transaction that sets the token, and the builder of its snapshot."""
        table = self._found
        table.metadata.properties["commit.retry.num-retries"] = "0"  # only in this handle
        transaction = _transaction(table)
        properties = {self._key: str(newest)}
        if transaction.table_metadata.name_mapping() is None:  # files have no field ids, only names
            properties[_MAPPING] = table.schema().name_mapping.model_dump_json()
        transaction.set_properties(properties)
        summary = {"joinengine.query": self.query, "joinengine.batch": str(newest)}
        return transaction, transaction.update_snapshot(snapshot_properties=summary)

    @contextmanager
    def _committing(self, newest: int) -> Iterator[None]:
        """Raise the package's errors in a commit of batch `newest` as the engine's own.

        Conflicts with other commits pass unchanged.
        """
        try:
            yield
        except (JoinEngineError, errors().CommitFailedException):
            raise
        except Exception as error:
            raise outcome_unknown(self, newest, self.catalog.reason(error)) from error

    def _data_file(self, table: Any, metadata: Any, name: str, stored: StoredFile) -> Any:
        """The table's entry for a file: its partition, its size and its statistics."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file  # noqa: PLC0415 # an extra

        place = f"{data_location(table)}/{name}"
        try:
            file = parquet_file_to_data_file(table.io, measuring(metadata), place)
        except (OverflowError, ValueError):  # perhaps a date beyond Python's range
            file = parquet_file_to_data_file(table.io, measuring(metadata, times=False), place)
        folders = stored.name.split("/")[1:-1]
        is_null = [folder.partition("=")[2] == NOTHING for folder in folders]
        values = _partition(table.spec(), file.partition, folders)
        if values is None or [value is None for value in values] != is_null:
            raise partitions_changed(self, stored.name)
        for column in table.schema().fields:
            if column.required and (file.null_value_counts or {}).get(column.field_id, 0):
                raise null_refused(self, column.name)
        file[_PARTITION] = type(file.partition)(*values)
        return file


def check_table(catalog: Catalog, name: str, schema: pa.Schema) -> list[PartitionColumn]:
    """The partition columns of a table.

    Raises InvalidRequest if the catalogue does not answer, or if the results do not fit the table.
    """
    table = catalog.checked(name)
    version = table.metadata.format_version
    if version > 2:
        raise InvalidRequest(
            f"iceberg: the table {name} has format version {version}; joinengine writes 1 and 2"
        )
    location = data_location(table)
    if not (is_url(location) or _folder(location).startswith("/")):
        raise InvalidRequest(
            f"iceberg: the table {name} lies at {location}; joinengine writes to folders and to "
            f"{', '.join(SCHEMES)}"
        )
    _check_fit(name, table, schema)
    return [_partition_column(name, table, partition) for partition in table.spec().fields]


def _check_fit(name: str, table: Any, schema: pa.Schema) -> None:
    """Raise InvalidRequest if the columns of a table do not take the results."""
    theirs = {
        field.name: (_NUMBER.sub("", str(field.field_type)), field.required)
        for field in table.schema().fields
    }
    check_columns("iceberg", name, _types(schema), theirs)


def _partition_column(name: str, table: Any, part: Any) -> PartitionColumn:
    column = table.schema().find_field(part.source_id)
    unit = str(part.transform)
    kind = str(column.field_type).partition("(")[0]
    served = {IDENTITY: _PLAIN, **dict.fromkeys(_UNITS, (kind,)), **_SIZED}
    is_served = kind in served.get(unit.partition("[")[0], ())
    if not is_served or column.name not in table.schema().column_names:
        raise InvalidRequest(
            f"iceberg: the table {name} is partitioned by {unit} of {column.name} ({kind}); "
            f"joinengine writes partitions by identity of {', '.join(_PLAIN)}, by "
            f"{', '.join(_UNITS)}, by bucket of {', '.join(_SIZED['bucket'])} and by truncate of "
            f"{', '.join(_SIZED['truncate'])}"
        )
    return PartitionColumn(column.name, unit)


def _types(schema: pa.Schema) -> dict[str, str]:
    """Column -> its Iceberg type, as text. Raises InvalidRequest for types that Iceberg lacks."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids  # noqa: PLC0415 # an extra

    types = dict[str, str]()
    for field in schema:
        try:
            (field_of,) = _pyarrow_to_schema_without_ids(pa.schema([field])).fields
        except Exception:  # the library has no narrower class
            raise InvalidRequest(
                f"iceberg: column {field.name} is {field.type}, which Iceberg tables do not have; "
                "cast it"
            ) from None
        types[field.name] = _NUMBER.sub("", str(field_of.field_type))
    return types


def data_location(table: Any) -> str:
    """The folder of a table's data files, in the table's own form."""
    path = table.metadata.properties.get("write.data.path")
    return str(path or f"{table.location()}/data").rstrip("/")


def _folder(location: str) -> str:
    """A location in the form that the engine's storage takes."""
    return location.removeprefix("file://").removeprefix("file:")


def _transaction(table: Any) -> Any:
    """A transaction that applies its changes to the metadata once, not at every access.

    Otherwise, the library copies all metadata, with every snapshot, some 16 times in a commit.
    """
    from pyiceberg.table import Transaction  # noqa: PLC0415 # an extra

    class Remembering(Transaction):  # type: ignore[misc]
        """A transaction that keeps its metadata until its next change."""

        _kept: tuple[Any, Any] = (None, None)

        @property
        def table_metadata(self) -> Any:
            """The metadata with the changes so far."""
            if self._kept[0] is not self._updates:
                self._kept = self._updates, super().table_metadata
            return self._kept[1]

    return Remembering(table)


def _is_bucket(part: Any) -> bool:
    """Whether a partition is a bucket: its number does not follow from the bounds of a file."""
    return str(part.transform).startswith("bucket")


def _partition(spec: Any, measured: Any, folders: Sequence[str]) -> list[Any] | None:
    """The values of a partition: those `measured` from bounds, and buckets from names of folders.

    None: the folders belong to another partitioning.
    """
    if len(folders) != len(spec.fields):
        return None
    values, others = list[Any](), iter(measured[n] for n in range(len(measured)))
    for part, folder in zip(spec.fields, folders, strict=True):
        name, _, value = folder.partition("=")
        if not _is_bucket(part):
            values.append(next(others))
        elif name.endswith(label("", str(part.transform))):
            values.append(None if value == NOTHING else int(value))
        else:
            return None
    return values


def measuring(metadata: Any, *, times: bool = True) -> Any:
    """A table's metadata, changed so that the library measures files with it.

    Buckets are left out, since bounds say nothing about them. `times`: whether dates and instants
    get bounds. The bounds of partition columns are measured in full, since the values of partitions
    are read from them. All columns may be NULL: the library only looks at a file's schema, and
    `IcebergTarget._data_file` checks for NULL values.
    """
    names = [
        metadata.schema().find_column_name(field.source_id) for field in metadata.spec().fields
    ]
    schema, spec = metadata.schema(), metadata.spec()
    modes = dict.fromkeys(names, "full")
    if not times:
        kinds = {field.name: str(field.field_type) for field in schema.fields}
        modes |= {name: "counts" for name in kinds if kinds[name].startswith(("date", "timestamp"))}
    metrics = {f"write.metadata.metrics.column.{name}": mode for name, mode in modes.items()}
    parts = [field for field in spec.fields if not _is_bucket(field)]
    fields = tuple(field.model_copy(update={"required": False}) for field in schema.fields)
    return metadata.model_copy(
        update={
            "properties": {**metadata.properties, **metrics},
            "partition_specs": [type(spec)(*parts, spec_id=spec.spec_id)],
            "schemas": [type(schema)(*fields, schema_id=schema.schema_id)],
        }
    )
