"""Applies changes to an Iceberg table by key: each batch becomes one snapshot of its net changes.

The driver reads the staged changes and adds them up by key (`joinengine.results.netting`). Data
files with a row that goes are replaced by files with their other rows, and the rows that come are
added. The commit also sets the token. The catalogue refuses the commit if any writer has committed
since the handle was read. So the net was checked against the present table; after a refusal, the
token is read again.

Law: that of `joinengine.results.token_sinks`. A batch whose net is empty makes no commit: if it is
delivered twice, its net is empty again.
Cost: the changes of a commit, and one data file of the table at a time, in the memory of the
driver. Each data file that holds a changed key is read twice, and rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from joinengine.results.iceberg import IcebergTarget
from joinengine.results.iceberg_catalog import errors
from joinengine.results.netting import (
    DELETE,
    INSERT,
    OP,
    Bounds,
    KeyConflict,
    net_by_key,
    partners,
)
from joinengine.results.showings import Held
from joinengine.results.staging import Cutting, staged_files
from joinengine.results.table_sinks import changes_of, key_conflict, shown, staging_of
from joinengine.results.token_sinks import ShutOut
from joinengine.world.storage import StoredFile


@dataclass
class IcebergMergeTarget(IcebergTarget):
    """An Iceberg table to which one query applies changes.

    `schema`: of the changed rows. `keys`: the key columns: no two rows of the table have equal
    keys. `shown`: whether errors show values of keys. `cutting`: how data files are cut.
    """

    keys: tuple[str, ...] = ()
    shown: bool = True
    cutting: Cutting = field(default_factory=Cutting)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self._near: Bounds = {}  # of the changed keys, at the last read

    @override
    def commit(self, batches: Held) -> None:
        newest = batches[-1][0]
        changes = changes_of(self, batches)
        try:
            with self._committing(newest):
                net = net_by_key(changes, self.keys, self._rows, shown=self.shown)
                if net.num_rows:
                    self._merge(net, newest)
        except KeyConflict as error:
            raise key_conflict(self, newest, error) from None

    def _rows(self, near: Bounds) -> pa.Table:
        """The rows of the table within bounds."""
        self._near = near
        names = tuple(self.schema.names)
        return self._found.scan(_within(near), names).to_arrow().select(names)

    def _merge(self, net: pa.Table, newest: int) -> None:
        """Replace the files with rows that go, and add the rows that come."""
        replaced, files = self._written(net)
        there = shown(self, ((newest, files),))
        transaction, update = self._begun(newest)
        metadata = transaction.table_metadata
        with update.overwrite() if replaced else update.fast_append() as change:
            for old in replaced:
                change.delete_data_file(old)
            for name, stored in there:
                change.append_data_file(self._data_file(self._found, metadata, name, stored))
        try:
            transaction.commit_transaction()
        except errors().CommitFailedException as error:
            for name, _ in there:
                self.files.delete(name)
            raise ShutOut(
                f"iceberg: {self.name} refused batch {newest} because of a commit of another "
                f"writer ({self.catalog.reason(error)}); nothing is lost: start the query again"
            ) from None

    def _written(self, net: pa.Table) -> tuple[list[Any], tuple[StoredFile, ...]]:
        """The data files with rows that go, and new staged files that replace them.

        In columns of the table that the results lack, an updated row keeps its values.
        """
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 # an extra

        gone = net.filter(pc.not_equal(net[OP], INSERT))
        came = net.filter(pc.not_equal(net[OP], DELETE))
        whole = schema_to_pyarrow(self._found.schema(), include_field_ids=False)
        stem = f"g{self._generation}-{self.world.nonce()}"
        files, replaced = staged_files(staging_of(self), stem, self.cutting), list[Any]()
        others = [name for name in whole.names if name not in self.schema.names]
        taken = [whole.empty_table().select([*self.keys, *others])]
        for task in self._found.scan(_within(self._near)).plan_files() if gone.num_rows else ():
            rows = self._content(task).cast(whole)
            goes = partners(rows, gone, self.keys).is_valid()
            if pc.any(goes).as_py():
                replaced.append(task.file)
                _add(files, rows.filter(pc.invert(goes)))
                taken.append(rows.filter(goes).select(taken[0].column_names))
        old = pa.concat_tables(taken)
        before = partners(came, old, self.keys) if others else None
        columns = [
            old[column.name].take(before)
            if column.name in others
            else came[column.name].cast(column.type)
            for column in whole
        ]
        _add(files, pa.table(columns, schema=whole))
        return replaced, tuple(files.close())

    def _content(self, task: Any) -> pa.Table:
        """The rows of a data file, except those that position deletes have removed."""
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 # an extra
        from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415 # an extra

        table = self._found
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        return scan.to_table(tasks=[task])


def _add(files: Any, rows: pa.Table) -> None:
    for batch in rows.combine_chunks().to_batches():
        if batch.num_rows:
            files.add(batch)


def _within(near: Bounds) -> Any:
    """A filter of the package for rows within bounds."""
    from pyiceberg import expressions  # noqa: PLC0415 # an extra

    parts = [expressions.AlwaysTrue()]
    for name, bounds in near.items():
        try:
            values = [bound.as_py() for bound in bounds]
        except (OverflowError, ValueError):  # dates beyond Python's range
            continue
        low, high = (
            value if isinstance(value, int | str) else value.isoformat() for value in values
        )
        parts.append(expressions.GreaterThanOrEqual(name, low))
        parts.append(expressions.LessThanOrEqual(name, high))
    return reduce(expressions.And, parts)
