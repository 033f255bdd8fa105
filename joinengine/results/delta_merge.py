"""Applies changes to a Delta table by key: each batch becomes one commit of its net changes.

The driver reads the staged changes, adds them up by key (`joinengine.results.netting`), and lets
the package `deltalake` merge them. The package rewrites the files in which rows change, and the
commit also sets the token. The log refuses the commit if any writer has committed since the handle
was read. So the net was checked against the present table; after a refusal, the token is read
again.

Law: that of `joinengine.results.token_sinks`. A batch whose net is empty makes no commit: if it is
delivered twice, its net is empty again.
Cost: the changes of a commit in the memory of the driver. Each file of the table that holds a
changed key is read and rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from joinengine.model.errors import InvalidRequest
from joinengine.results.delta import DeltaTarget, library, loaded
from joinengine.results.netting import (
    DELETE,
    INSERT,
    OP,
    UPDATE,
    Bounds,
    KeyConflict,
    check_keys,
    net_by_key,
)
from joinengine.results.showings import Held
from joinengine.results.table_fit import reason_of
from joinengine.results.table_sinks import changes_of, key_conflict


@dataclass
class DeltaMergeTarget(DeltaTarget):
    """A Delta table to which one query applies changes.

    `schema`: of the table's rows, without the column of changes. `keys`: the key columns: no two
    rows of the table have equal keys. `shown`: whether errors show values of keys.
    """

    keys: tuple[str, ...] = ()
    shown: bool = True

    @override
    def commit(self, batches: Held) -> None:
        newest = batches[-1][0]
        try:
            changes = self._as_kept(changes_of(self, batches))
            net = net_by_key(changes, self.keys, self._rows, shown=self.shown)
        except KeyConflict as error:
            raise key_conflict(self, newest, error) from None
        if net.num_rows:
            self._merge(net, newest)

    def _as_kept(self, changes: pa.Table) -> pa.Table:
        """Changes as the table will hold them: empty text in a partition column becomes NULL."""
        for name in self._table.metadata().partition_columns:
            number, column = changes.schema.get_field_index(name), changes[name]
            if pa.types.is_string(column.type):
                kept = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
                changes = changes.set_column(number, name, kept)
        return changes

    def _rows(self, near: Bounds) -> pa.Table:
        """The rows of the table within bounds, from the files that may hold any.

        In a file that the package has merged, text has another Arrow type than in the table, so
        Arrow cannot filter while it reads.
        """
        dataset, within = self._table.to_pyarrow_dataset(), None
        for name, (low, high) in near.items():
            in_range = (pc.field(name) >= pc.scalar(low)) & (pc.field(name) <= pc.scalar(high))
            within = in_range if within is None else within & in_range
        pieces, names = [self.schema.empty_table()], self.schema.names
        for fragment in dataset.get_fragments(filter=within):
            for batch in fragment.to_batches(schema=dataset.schema, columns=names):
                rows = pa.Table.from_batches([batch]).cast(self.schema)
                pieces.append(rows if within is None else rows.filter(within))
        return pa.concat_tables(pieces)

    def _merge(self, net: pa.Table, newest: int) -> None:
        delta, names = library(), self.schema.names
        places = [f"c{i}" for i in range(len(names))]
        updates = dict(zip(map(_quoted, names), (f"net.{place}" for place in places), strict=True))
        # The package skips files by their bounds only for plain equality.
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
        merger = merger.when_matched_update(updates, f"net.{OP} = '{UPDATE}'")
        merger = merger.when_matched_delete(f"net.{OP} = '{DELETE}'")
        merger = merger.when_not_matched_insert(updates, f"net.{OP} = '{INSERT}'")
        with self._committing(newest):
            merger.execute()


def check_merge(
    place: str, schema: pa.Schema, keys: Sequence[str], partitions: Sequence[str] = ()
) -> None:
    """Raise InvalidRequest if changes cannot be applied by `keys` to the table at `place`.

    `partitions`: the partition columns of a new table. Refused are keys without order or equality;
    partitions by decimals, since the package writes negative ones so that the table cannot be read
    any more; and tables that only grow or whose rows the package cannot read.
    """
    check_keys(schema, keys)
    table = loaded(place, InvalidRequest)
    for name in partitions if table is None else table.metadata().partition_columns:
        if name in schema.names and pa.types.is_decimal(schema.field(name).type):
            raise InvalidRequest(
                f"mergeKeys: the table {place} has partitions by the decimal {name!r}, which "
                "deltalake cannot write if it is negative; choose another column, or cast it"
            )
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
    """A column name, quoted for the expressions of the package."""
    return '"' + name.replace('"', '""') + '"'
