"""Computes the net of changes by key: the rows that come to a table by key, and those that go.

A table by key holds at most one row of each key. So for each key, the net of a batch may have at
most one row that comes and one that goes; both together are an update. A row that goes must be in
the table, unchanged. For a row that comes, the table may have no other row of its key.

In SQL, columns are called c0, c1, .. by their places, and n is the sum of a row's changes, so that
users may use any names.

Law: if nets are applied batch by batch, the table is the net of all changes; otherwise an error
names a key that prevents it.
Cost: two hash aggregations over the changes, and three joins of them with the rows of the table
that may have their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.model.spelling import printed_lines

#: The last column of `net_by_key`: what happens to a row (insert, update or delete).
OP = "op"
INSERT, UPDATE, DELETE = "insert", "update", "delete"
#: Types for which files of a table have bounds, so that most files need not be read.
_BOUNDED = (pa.types.is_integer, pa.types.is_string, pa.types.is_date, pa.types.is_timestamp)
#: Column -> the least and the greatest value in it of the wanted rows.
Bounds = Mapping[str, tuple[pa.Scalar, pa.Scalar]]
#: Reads the rows of a table within bounds, and perhaps other rows.
Rows = Callable[[Bounds], pa.Table]


class KeyConflict(JoinEngineError):
    """A table by key cannot take a batch: two rows would have one key, or a row is missing."""


def net_by_key(
    changes: pa.Table, keys: Sequence[str], there: Rows, *, shown: bool = True
) -> pa.Table:
    """Changes, with the number of each row last -> one row for each changed key, with OP last.

    `there`: reads the table. Raises KeyConflict if the table would have two rows of a key, or lacks
    a row that goes. `shown`: the error has the values of the key.
    """
    schema = pa.schema(list(changes.schema)[:-1])
    columns = {name: f"c{i}" for i, name in enumerate(schema.names)}
    by, every = {key: columns[key] for key in keys}, ", ".join(columns.values())
    with duckdb.connect(config={"enable_external_access": "false"}) as db:
        db.execute("set timezone = 'UTC'")
        db.register("changes", changes.rename_columns([*columns.values(), "n"]))
        db.execute(
            f"create temp table net as select {every}, sum(n) as n from changes group by {every} "
            f"having sum(n) <> 0"
        )
        _check_single(db, by, shown=shown)
        has_some = bool(db.sql("from net limit 1").fetchall())
        rows_near = there(_near(db, by, schema)) if has_some else schema.empty_table()
        rows_near = rows_near.select(schema.names)
        db.register("found", rows_near.rename_columns([*columns.values()]))
        _check_table(db, by, every, shown=shown)
        both = f"count(*) over (partition by {', '.join(by.values())}) = 2"
        op = f"case when {both} then '{UPDATE}' when n > 0 then '{INSERT}' else '{DELETE}' end"
        made = db.sql(f"select {every}, {op} from net qualify n > 0 or not {both}")
        table = made.to_arrow_table().rename_columns([*schema.names, OP])
    return table.cast(schema.append(pa.field(OP, pa.string())))


def partners(rows: pa.Table, others: pa.Table, keys: Sequence[str]) -> pa.ChunkedArray:
    """(n,) rows -> (n,) number of the row in `others` with the same key; NULL: there is none.

    No two of `others` share a key. NULL counts as a key.
    """
    places = [f"k{n}" for n in range(len(keys))]
    same = " and ".join(f"rows.{place} is not distinct from others.{place}" for place in places)
    with duckdb.connect(config={"enable_external_access": "false"}) as db:
        db.execute("set timezone = 'UTC'")
        for name, table in (("rows", rows), ("others", others)):
            by_place = table.select(list(keys)).rename_columns(places)
            db.register(name, by_place.append_column("n", pa.array(np.arange(table.num_rows))))
        pairs = f"select others.n from rows left join others on {same} order by rows.n"
        return db.sql(pairs).to_arrow_table().column(0)


def check_keys(schema: pa.Schema, keys: Sequence[str]) -> None:
    """Raise InvalidRequest for a key column whose type has no order or equality."""
    for key in keys:
        kind = schema.field(key).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise InvalidRequest(
                f"mergeKeys: {key} is {kind}, which cannot be a key; name other columns, or cast it"
            )


def _check_single(db: Any, by: Mapping[str, str], *, shown: bool) -> None:
    """Raise KeyConflict if two rows of one key come, or two go."""
    keys = ", ".join(by.values())
    for sign, what in ((1, "are left of"), (-1, "are taken back of")):
        many = f"sum({sign} * n) filter ({sign} * n > 0)"
        doubled = db.sql(
            f"select {keys}, {many} as many from net group by {keys} having many > 1 "
            f"order by many desc limit 1"
        ).fetchall()
        for *values, count in doubled:
            raise KeyConflict(
                f"{count} rows {what} key {_text(by, values, shown=shown)}; name columns by "
                f"mergeKeys that no two results share"
            )


def _check_table(db: Any, by: Mapping[str, str], every: str, *, shown: bool) -> None:
    """Raise KeyConflict if the table lacks a row that goes, or has another row of a changed key."""
    keys = ", ".join(by.values())
    same = " and ".join(f"net.{name} is not distinct from found.{name}" for name in by.values())
    gone = f"select {every} from net where n < 0"
    for values in db.sql(f"select {keys} from ({gone} except from found) limit 1").fetchall():
        raise KeyConflict(
            f"the row of key {_text(by, values, shown=shown)} that is taken back is not there: it "
            f"goes before it comes, or somebody has changed the table; gather more batches by "
            f"commitEvery, or restore the table"
        )
    strange = db.sql(
        f"select {keys} from net semi join found on {same} group by {keys} "
        f"having not bool_or(n < 0) limit 1"
    ).fetchall()
    double = db.sql(
        f"select {keys} from found semi join net on {same} group by {keys} having count(*) > 1 "
        f"limit 1"
    ).fetchall()
    for values in strange or double:
        raise KeyConflict(
            f"another row of key {_text(by, values, shown=shown)} is there already; name columns "
            f"by mergeKeys that no two results share, or remove the row"
        )


def _text(by: Mapping[str, str], values: Sequence[object], *, shown: bool) -> str:
    if not shown:
        return f"({', '.join(by)})"
    pairs = (f"{name} = {value!r}" for name, value in zip(by, values, strict=False))
    return printed_lines(", ".join(pairs))


def _near(db: Any, by: Mapping[str, str], schema: pa.Schema) -> Bounds:
    """The bounds of the changed keys, for columns where bounds help and no value is NULL."""
    bounds = dict[str, tuple[pa.Scalar, pa.Scalar]]()
    for name, place in by.items():
        kind = schema.field(name).type
        if not any(is_bounded(kind) for is_bounded in _BOUNDED):
            continue
        ends = f"min({place}) as low, max({place}) as high, count(*) - count({place}) as nulls"
        low, high, nulls = db.sql(f"select {ends} from net").to_arrow_table().columns
        if nulls[0].as_py():
            continue
        bounds[name] = low[0].cast(kind), high[0].cast(kind)
    return bounds
