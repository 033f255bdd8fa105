"""A Delta table by key: each batch of changes becomes inserts, updates and deletes of one commit.

The driver reads the staged changes, adds them up by key (joinengine.results.netting), and lets the
package `deltalake` merge them: it writes the files anew in which rows change, and the commit also
sets the token. The commit is refused if anybody has committed since the handle was read, so the
table is still what the net was checked against; then the token is read again.

Law: that of joinengine.results.token_sinks. A batch whose net is empty makes no commit: its net is
empty again if it is delivered twice.
Cost: the changes of a commit in the memory of the driver; and each file of the table that holds a
key that changes is read and written anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.model.query import CHANGE
from joinengine.results.delta import DeltaTarget, library, loaded
from joinengine.results.netting import DELETE, INSERT, OP, UPDATE, KeyConflict, net_by_key
from joinengine.results.showings import Held
from joinengine.results.table_fit import reason_of
from joinengine.results.table_sinks import staging_of
from joinengine.world.storage import verify


@dataclass
class DeltaMergeTarget(DeltaTarget):
    """A Delta table to which one query applies changes.

    `schema`: of the table's rows, without the changes. `keys`: the columns that no two rows of the
    table share. `shown`: whether errors tell their values.
    """

    keys: tuple[str, ...] = ()
    shown: bool = True

    @override
    def commit(self, batches: Held) -> None:
        newest = batches[-1][0]
        try:
            net = net_by_key(self._changes(batches), self.keys, self._rows, shown=self.shown)
        except KeyConflict as error:
            raise JoinEngineError(
                f"delta: {self.name} does not take batch {newest}: {error}; nothing of it is there"
            ) from None
        if net.num_rows:
            self._merge(net, newest)

    def _changes(self, batches: Held) -> pa.Table:
        """The staged changes of batches."""
        staging, schema = staging_of(self), self.schema.append(pa.field(CHANGE, pa.int64()))
        contents = (verify(staging, one, "result file") for _, files in batches for one in files)
        return pa.concat_tables(
            [pq.read_table(pa.BufferReader(one)).cast(schema) for one in contents]
        )

    def _rows(self, near: Any) -> pa.Table:
        """The rows of the table that pass a filter."""
        return self._table.to_pyarrow_dataset().to_table(self.schema.names, filter=near)

    def _merge(self, net: pa.Table, newest: int) -> None:
        delta, names = library(), self.schema.names
        places = [f"c{i}" for i in range(len(names))]
        told = dict(zip(map(_quoted, names), (f"net.{one}" for one in places), strict=True))
        # Only for plain equality does the package pass over files by their bounds.
        equals = {key: "is not distinct from" if net[key].null_count else "=" for key in self.keys}
        same = " and ".join(
            f"(kept.{_quoted(key)} {equal} net.{places[names.index(key)]})"
            for key, equal in equals.items()
        )
        properties = delta.CommitProperties(
            {"joinengineQuery": self.query, "joinengineBatch": str(newest)},
            max_commit_retries=0,
            app_transactions=[delta.Transaction(app_id=self.query, version=newest)],
        )
        merger = self._table.merge(
            *(net.rename_columns([*places, OP]), same, "net", "kept"),
            commit_properties=properties,
        )
        merger = merger.when_matched_update(told, f"net.{OP} = '{UPDATE}'")
        merger = merger.when_matched_delete(f"net.{OP} = '{DELETE}'")
        merger = merger.when_not_matched_insert(told, f"net.{OP} = '{INSERT}'")
        with self._committing(newest):
            merger.execute()


def check_merge(place: str, schema: pa.Schema, keys: Sequence[str]) -> None:
    """Refuse to apply changes by `keys` to the table at `place`, if there is one.

    Raises InvalidRequest for a key that has no order or equality, and for tables that only grow or
    whose rows the package cannot read.
    """
    for key in keys:
        kind = schema.field(key).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise InvalidRequest(
                f"mergeKeys: {key} is {kind}, which cannot be a key; name other columns, or cast it"
            )
    table = loaded(place, InvalidRequest)
    if table is None:
        return
    if table.metadata().configuration.get("delta.appendOnly") == "true":
        raise InvalidRequest(
            f"mergeKeys: the table {place} is append-only, so no row may go; set delta.appendOnly "
            "to false, or leave mergeKeys out, which appends the changes"
        )
    try:
        table.to_pyarrow_dataset()
    except Exception as error:
        raise InvalidRequest(
            f"mergeKeys: the rows of the table {place} cannot be read ({reason_of(error)}); use "
            "another table"
        ) from None


def _quoted(name: str) -> str:
    """A column in the expressions of the package."""
    return '"' + name.replace('"', '""') + '"'
