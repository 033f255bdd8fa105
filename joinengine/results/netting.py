"""The net of changes by key: which rows a table by key gets, and which go.

A table by key holds at most one row of each key. So of a batch at most one row of a key may be left
to come and one to go: both are an update. What goes must be there, as it is; of what comes nothing
may be there.

Inside, columns go by their places, c0, c1, .., and n is the number of a row, so names may be any.

Law: applied batch by batch, the table is the net of all changes; or an error names the key for
which it could not be.
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

#: What becomes of a row: the column of `net_by_key` behind the columns of the results.
OP = "op"
INSERT, UPDATE, DELETE = "insert", "update", "delete"
#: Types of which files of a table tell bounds, so that most of them are not read.
_BOUNDED = (pa.types.is_integer, pa.types.is_string, pa.types.is_date, pa.types.is_timestamp)
#: Column -> the least and the greatest value in it of all rows that are looked for.
Bounds = Mapping[str, tuple[pa.Scalar, pa.Scalar]]
#: The rows of a table within bounds, and perhaps others.
Rows = Callable[[Bounds], pa.Table]


class KeyConflict(JoinEngineError):
    """A table by key cannot take a batch, as two rows would have a key, or a row is missing."""


def net_by_key(
    changes: pa.Table, keys: Sequence[str], there: Rows, *, shown: bool = True
) -> pa.Table:
    """Changes, the last column the number of each row -> a row for each key that changes, and OP.

    `there`: reads the table. Raises KeyConflict, which names a key by its values if these are to be
    `shown`, if two rows of it would be there, or a row goes that is not there.
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
    """(n,) rows -> the number of the row of `others` that has its key; NULL: none has it.

    No two of `others` share a key. NULL is a key like others.
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
    """Raise InvalidRequest for a key that has no order or equality."""
    for key in keys:
        kind = schema.field(key).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise InvalidRequest(
                f"mergeKeys: {key} is {kind}, which cannot be a key; name other columns, or cast it"
            )


def _check_single(db: Any, by: Mapping[str, str], *, shown: bool) -> None:
    """Refuse a key of which the changes leave two rows to come, or two to go."""
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
    """Refuse a key whose rows in the table are others than those that the changes suppose."""
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
    """Between which values the keys lie that change, where bounds help and none is NULL."""
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
