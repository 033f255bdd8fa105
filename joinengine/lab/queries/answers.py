"""Compares the results of a query with what DuckDB computes from the same tuples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from joinengine.api.queries import StreamQuery
from joinengine.kernels.hashing import multiset_checksum, net_checksum
from joinengine.lab.queries.named_query import Oracle
from joinengine.model.query import CHANGE
from joinengine.model.texts import counted, quoted
from joinengine.predicates.engine import furnish
from joinengine.reporting.run_report import checksum_text
from joinengine.sources.readings import conform
from joinengine.spark.session import session

if TYPE_CHECKING:
    import pyarrow.dataset as ds

#: SQL of the net of a changelog: its rows at the end, and how often each.
_NET = (
    f"select * exclude {CHANGE}, sum({CHANGE}) as {CHANGE} from {{}} "
    f"group by all having sum({CHANGE}) <> 0"
)


def oracle_checksum(schema: pa.Schema, oracle: str | Oracle, *, net: bool = False) -> str:
    """The checksum of DuckDB's results, with the columns of `schema`; `net`: of a changelog."""
    rows, total, checksum = 0, 0, net_checksum if net else multiset_checksum
    with _duckdb(oracle) as (db, sql):
        for batch in db.sql(sql).to_arrow_reader(1 << 17):
            rows += batch.num_rows
            named = batch.rename_columns(schema.names)
            total += checksum(conform(named, schema).columns)
    text = checksum_text(rows, total % (1 << 64))
    return net_text(text) if net else text


def difference(
    results: Any, joined: StreamQuery, oracle: str | Oracle, *, by_value: bool = False
) -> str | None:
    """In words, how rows differ from DuckDB's multiset, or its net; None: they do not.

    `results`: anything from which Arrow reads rows, with the columns of the results. `by_value`:
    whether the words contain an example row of each kind.
    """
    net = _NET if joined.query().operators[-1].is_changelog else "from {}"
    with _duckdb(oracle) as (db, sql):
        db.execute(f"create temp table expected as {net.format(f'({sql})')}")
        db.register("results", results)
        db.execute(f"create temp table found as {net.format('results')}")
        parts = list[str]()
        for says, rows, others in (
            ("missing", "expected", "found"),
            ("too many", "found", "expected"),
        ):
            rest = f"from {rows} except all from {others}"
            if examples := db.sql(f"{rest} limit 1").fetchall():
                ((count,),) = db.sql(f"select count(*) from ({rest})").fetchall()
                example = f", such as {quoted(examples[0])}" if by_value else ""
                parts.append(f"{counted(count, 'row')} {says}{example}")
    return "; ".join(parts) or None


def in_files(out: Path, schema: pa.Schema) -> ds.Dataset:
    """The visible results in a folder, opened by Arrow.

    DuckDB would take a path for a pattern, and refuse an empty column name.
    """
    import pyarrow.dataset as ds  # noqa: PLC0415  (loads pandas, which takes 0.2 s)

    files = sorted(map(str, out.glob("*.parquet")))
    return ds.dataset(files, schema=schema, format="parquet")


def net_text(text: str) -> str:
    """The checksum of a changelog without the number of changes, which depends on batches."""
    return f"net:{text.partition(':')[2]}"


def is_undecided(oracle: str | Oracle) -> bool:
    """Whether results that differ from DuckDB's may be right, too."""
    if isinstance(oracle, str) or not oracle.ties:
        return False
    with _duckdb(oracle) as (db, _):
        return bool(db.sql(oracle.ties).fetchall())


@contextmanager
def _duckdb(oracle: str | Oracle) -> Iterator[tuple[Any, str]]:
    """A connection that has the functions and the tables of `oracle`, and its SQL.

    Ctrl-C in the block raises KeyboardInterrupt, which DuckDB would turn into a RuntimeError.
    """
    sql, tables = (oracle, {}) if isinstance(oracle, str) else (oracle.sql, oracle.tables)
    with duckdb.connect(":memory:") as db:
        furnish(db, session.zone())
        for name, table in tables.items():
            db.register(name, table)
        try:
            yield db, sql
        except RuntimeError as error:
            if str(error) == "Query interrupted":
                raise KeyboardInterrupt from None
            raise
