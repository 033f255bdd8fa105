"""A Delta table as the target of a query's results, through the package `deltalake`.

The token is Delta's own *application transaction*: the log keeps the newest version (here batch) of
each application (here query). The log refuses a commit whose handle has not seen a newer version of
its application, but a fresh handle could commit a version again. So `token` reads with the handle
that `commit` then uses.

Law: that of `joinengine.results.token_sinks`. Commits of other writers are no conflict, since files
are only added. A file whose path is already in the log is not added twice.
Cost: a look reads two entries of the log, and those of other writers; a commit writes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.model.nested_types import holds, is_variant
from joinengine.results.delta_actions import add_action, footer, partition_values, statistics
from joinengine.results.folders import check_partitions
from joinengine.results.showings import Held
from joinengine.results.table_fit import check_columns, reason_of
from joinengine.results.table_sinks import (
    TableTarget,
    check_same,
    null_refused,
    outcome_unknown,
    partitions_changed,
    shown,
)
from joinengine.results.token_sinks import NOTHING, ShutOut
from joinengine.world.buckets import is_plain, is_url
from joinengine.world.local import LocalStorage
from joinengine.world.storage import Storage
from joinengine.world.world import World

#: The features of a table that a writer which only adds files fulfils; others are refused.
_SERVED = {
    *("appendOnly", "timestampNtz", "deletionVectors", "v2Checkpoint", "changeDataFeed"),
    *("vacuumProtocolCheck", "domainMetadata", "clustering", "invariants", "checkConstraints"),
    *("generatedColumns", "identityColumns", "columnMapping", "inCommitTimestamp"),
}
#: Properties of a column whose values the writer must make or check.
_MADE = ("delta.generationExpression", "delta.invariants", "delta.identity")


def library() -> Any:
    """The package `deltalake`. Raises InvalidRequest, with what to install, if it is missing."""
    try:
        import deltalake  # noqa: PLC0415 # an extra
    except ImportError:
        raise InvalidRequest(
            "delta: Delta tables need the package deltalake, which this Python lacks; run pip "
            "install 'joinengine[delta]'"
        ) from None
    return deltalake


@dataclass
class DeltaTarget(TableTarget):
    """The table at `place`, a folder or a URL; the first batch creates a missing table.

    `schema`: of the results. `partition_by`: the partition columns of a new table.
    """

    kind: ClassVar[str] = "delta"

    world: World
    place: str
    query: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    fsync: bool = False

    def __post_init__(self) -> None:
        self._table: Any = None
        self._seen: bytes | None = None
        self._identity: str | None = None

    @property
    @override
    def name(self) -> str:
        return self.place

    @property
    @override
    def files(self) -> Storage:
        return self.world.storage(self.place, fsync=self.fsync)

    @override
    def identity(self) -> str | None:
        table = loaded(self.place)
        return None if table is None else str(table.metadata().id)

    @override
    def make(self) -> str:
        """As in TableTarget. Raises InvalidRequest if the table does not take the results."""
        if loaded(self.place) is None:
            self.files.make()
            with _asking(self.place):
                library().DeltaTable.create(
                    self.place,
                    _delta_schema(self.schema),
                    mode="ignore",  # another driver may have created it
                    partition_by=list(self.partition_by),
                    storage_options=_options(self.place),
                )
            check_table(self.place, self.schema, self.partition_by, exact=True)
        identity = self.identity()
        assert identity is not None, self.place
        self._identity = self._identity or identity
        return identity

    @override
    def open(self, generation: int) -> None:
        """As in Target, with nothing to settle: a commit is one entry of the log."""
        self._table = None

    @override
    def token(self) -> int:
        """As in Target; reads with a handle that knows the newest entry of the log."""
        self._refresh()
        identity = None if self._table is None else str(self._table.metadata().id)
        check_same(self.name, self._identity, identity)
        _check_fit(self.place, self._table, _delta_schema(self.schema))  # it may have changed
        with _asking(self.place):
            version = self._table.transaction_version(self.query)
        return NOTHING if version is None else int(version)

    @override
    def commit(self, batches: Held) -> None:
        delta, table, newest = library(), self._table, batches[-1][0]
        required = [field.name for field in table.schema().fields if not field.nullable]
        partitions = table.metadata().partition_columns
        actions = list[Any]()
        for name, stored in shown(self, batches):
            facts = statistics(footer(self.files, name, stored.size_bytes), self.schema)
            for column in required:
                if facts["nullCount"].get(column, 0):
                    raise null_refused(self, column)
            if list(partition_values(stored.name, self.schema)) != partitions:
                raise partitions_changed(self, stored.name)
            actions.append(add_action(name, stored, facts, self.schema, self.world.now_s()))
        told_by = {"joinengineQuery": self.query, "joinengineBatch": str(newest)}
        transaction = delta.Transaction(app_id=self.query, version=newest)
        properties = delta.CommitProperties(told_by, app_transactions=[transaction])
        with self._committing(newest):
            table.create_write_transaction(
                *(actions, "append", table.schema(), partitions),
                commit_properties=properties,
            )

    @contextmanager
    def _committing(self, newest: int) -> Iterator[None]:
        """Raise the package's errors in a commit of batch `newest` as the engine's own."""
        try:
            yield
        except library().exceptions.CommitFailedError as error:
            raise ShutOut(
                f"delta: {self.name} refused batch {newest} because of a commit of another writer "
                f"({reason_of(error)}); nothing is lost: start the query again"
            ) from None
        except Exception as error:
            raise outcome_unknown(self, newest, reason_of(error)) from error

    @override
    def close(self) -> None:
        self._table = None

    def _refresh(self) -> None:
        """Read the new entries of the log, or the whole table if the log has been replaced.

        A handle does not notice that its table was created again: it would continue after the end
        of the new, shorter log.
        """
        with _asking(self.place):
            if self._table is not None and self._seen is not None and self._entry() == self._seen:
                self._table.update_incremental()
            else:
                self._table = loaded(self.place)
            self._seen = None if self._table is None else self._entry()

    def _entry(self) -> bytes | None:
        """The newest entry of the log that the handle knows; None: it is gone."""
        with suppress(FileNotFoundError):
            return self.files.at("_delta_log").get(f"{self._table.version():020}.json")
        return None


def loaded(place: str, kind: type[JoinEngineError] = JoinEngineError) -> Any:
    """The table at a folder or a URL, as it is now; None: there is none. Errors are of `kind`."""
    delta = library()
    with _asking(place, kind):
        if not is_url(place) and not LocalStorage(place).exists("_delta_log"):
            return None  # the library would create the folder
        with suppress(delta.exceptions.TableNotFoundError):
            return delta.DeltaTable(place, storage_options=_options(place))
    return None


def check_table(
    place: str, schema: pa.Schema, partition_by: Sequence[str], *, exact: bool
) -> tuple[str, ...]:
    """The partition columns of the table at `place`, or of the new table if it is missing.

    Raises InvalidRequest if the results do not fit the table.
    """
    asked = check_partitions(schema, partition_by, exact=exact)
    ours = _delta_schema(schema)
    table = loaded(place, InvalidRequest)
    partitions = asked if table is None else tuple(table.metadata().partition_columns)
    if table is None:
        _check_others(place)
    else:
        _check_fit(place, table, ours)
        if asked and asked != partitions:
            by = f"by {', '.join(partitions)}" if partitions else "by no column"
            raise InvalidRequest(
                f"partitionBy: the Delta table {place} is partitioned {by}; give the same columns, "
                "or leave partitionBy out"
            )
        check_partitions(schema, partitions, exact=True)
    for name in partitions:
        if pa.types.is_binary(schema.field(name).type):
            raise InvalidRequest(
                f"partitionBy: {name} is binary, which cannot name a partition of a Delta table; "
                "cast it to text"
            )
    return partitions


def _check_fit(place: str, table: Any, ours: Any) -> None:
    """Raise InvalidRequest if a table does not take results with the schema `ours`."""
    _check_features(place, table)
    columns = {field.name: (field.type, not field.nullable) for field in table.schema().fields}
    check_columns("delta", place, {field.name: field.type for field in ours.fields}, columns)


def _check_others(place: str) -> None:
    """Raise InvalidRequest if a new table would lie in a folder with Parquet files."""
    there = () if is_url(place) else LocalStorage(place).names()
    strange = next((name for name in there if name.endswith(".parquet")), None)
    if strange is not None:
        raise InvalidRequest(
            f"delta: {place} is no Delta table, but holds Parquet files such as {strange}, which "
            "would not belong to the table; use another folder, or convert this one to Delta"
        )


def _delta_schema(schema: pa.Schema) -> Any:
    """The schema of a Delta table with these columns. Raises InvalidRequest for other types."""
    delta = library()
    fields = list[Any]()
    for field in schema:
        kind = "a variant" if holds(field.type, is_variant) else field.type
        try:
            if holds(field.type, pa.types.is_null) or kind == "a variant":
                raise TypeError  # it would be a column without a type, or a struct
            fields += delta.Schema.from_arrow(pa.schema([field])).fields
        except Exception:  # the library has no narrower class
            raise InvalidRequest(
                f"delta: column {field.name} is {kind}, which Delta tables do not have; cast it"
            ) from None
    return delta.Schema(fields)


def _check_features(place: str, table: Any) -> None:
    """Raise InvalidRequest if a table demands more of its writers than adding files."""
    config, protocol = table.metadata().configuration, table.protocol()
    asked = [feature for feature in protocol.writer_features or () if feature not in _SERVED]
    asked += [name for name in config if name.startswith("delta.constraints.")]
    if config.get("delta.columnMapping.mode", "none") != "none":
        asked.append("columnMapping")
    if config.get("delta.enableInCommitTimestamps", "false") == "true":
        asked.append("inCommitTimestamp")
    fields = table.schema().fields
    asked += [f"{key} of column {field.name}" for field in fields for key in _made(field.metadata)]
    if asked:
        raise InvalidRequest(
            f"delta: the table {place} asks of its writers {', '.join(asked)}, which joinengine "
            "does not do; use another table, or write through Spark with foreachBatch"
        )


def _made(metadata: Mapping[str, Any]) -> list[str]:
    return [key for key in metadata if key.startswith(_MADE)]


def _options(place: str) -> dict[str, str]:
    """The options that the library does not read from the environment by itself."""
    return {"allow_http": "true"} if is_url(place) and is_plain() else {}


@contextmanager
def _asking(place: str, kind: type[JoinEngineError] = JoinEngineError) -> Iterator[None]:
    """Raise an error of the library in the block as one of the engine, in one sentence."""
    try:
        yield
    except JoinEngineError:
        raise
    except Exception as error:
        raise kind(_unread(place, error)) from error


def _unread(place: str, error: Exception) -> str:
    return (
        f"delta: the table {place} cannot be read or made ({reason_of(error)}); nothing is lost: "
        "mend the cause, and start the query again"
    )
