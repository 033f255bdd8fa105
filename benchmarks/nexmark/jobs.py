"""The jobs of the systems: the rows of a stream as files, a query, and a place for its results.

Joinengine reads the generated Parquet files. The readers of the others, as they are installed, do
not know Parquet, so they get the same rows as CSV: one file for each table, in the order of event
time, with the columns that the query reads. A time is whole milliseconds. A column `id` is called
`number`, because that name is Pathway's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import duckdb

from joinengine.lab.queries import Options, find
from joinengine.lab.tpch.stream import RecordedStream

_TEXTS = set("name city state channel url extra itemName description bidExtra auctionExtra".split())
_TIMES = {"dateTime", "expires"}
_BID = "auction bidder price channel url dateTime extra"
_AUCTION = "number itemName description initialBid reserve dateTime expires seller category extra"


class Joined(NamedTuple):
    """A query of Nexmark. `tables`, `results`: names of columns between spaces.

    `sql`: the results by DuckDB, from tables of CSV. `ours`: from joinengine's own results, which
    have more columns. `scale`: so that a run takes some seconds.
    """

    scale: float
    tables: Mapping[str, str]
    results: str
    sql: str
    ours: str

    def of(self, table: str) -> list[str]:
        """The columns of a table."""
        return self.tables[table].split()


QUERIES: Mapping[str, Joined] = {
    "nexmark-q3": Joined(
        1.0,
        {"auction": "number seller category", "person": "number name city state"},
        "name city state number",
        "select p.name, city, state, a.number from auction a join person p on seller = p.number "
        "where category = 10 and state in ('OR', 'ID', 'CA')",
        "name, city, state, id_auction",
    ),
    "nexmark-q8": Joined(
        1.0,
        {"person": "number name dateTime", "auction": "seller dateTime"},
        "number name starttime",
        "select number, name, p.dateTime // 10000 * 10000 from person p semi join auction a "
        "on number = seller and p.dateTime // 10000 = a.dateTime // 10000",
        "id, name, epoch_ms(window_start)",
    ),
    "nexmark-q20": Joined(
        0.2,
        {"bid": _BID, "auction": _AUCTION},
        "auction bidder price channel url bidTime bidExtra itemName description initialBid reserve "
        "auctionTime expires seller category auctionExtra",
        "select b.*, a.* exclude (number) from bid b join auction a on auction = number "
        "where category = 10",
        "auction, bidder, price, channel, url, epoch_ms(dateTime_bid), extra_bid, itemName, "
        "description, initialBid, reserve, epoch_ms(dateTime_auction), epoch_ms(expires), seller, "
        "category, extra_auction",
    ),
}


class Job(NamedTuple):
    """A run of a system, as JSON has it; `tables` and `results`: column -> "int" or "text".

    `folder`: of the CSV files. `out`: for the results, a folder that is not there yet.
    """

    query: str
    scale: float
    folder: str
    out: str
    tables: dict[str, dict[str, str]]
    results: dict[str, str]


class Checksum(NamedTuple):
    """Equal for equal multisets of rows."""

    rows: int
    total: int


def options(query: str, size: float) -> Options:
    """The stream of a query; `size`: a part of its scale."""
    return Options(scale=QUERIES[query].scale * size)


def recorded(query: str, size: float) -> RecordedStream:
    """The generated files, written now unless they are in the cache."""
    return find(query).stream(options(query, size)).record()


def write_csv(query: str, stream: RecordedStream, folder: Path, *, header: bool) -> None:
    """The rows as CSV; `header`: with the names of the columns as the first line."""
    folder.mkdir(parents=True)
    for table in QUERIES[query].tables:
        columns = ", ".join(map(_read, QUERIES[query].of(table)))
        duckdb.sql(
            f"copy (select {columns} from read_parquet('{stream.files(table)}')) "
            f"to '{folder}/{table}.csv' (header {header})"
        )


def job(query: str, size: float, folder: Path, out: Path) -> Job:
    """The job of a query over CSV files."""
    definition = QUERIES[query]
    tables = {table: _kinds(definition.of(table)) for table in definition.tables}
    scale = definition.scale * size
    return Job(query, scale, str(folder), str(out), tables, _kinds(definition.results.split()))


def expected(query: str, folder: Path) -> Checksum:
    """The results by DuckDB, from CSV files without a header."""
    with duckdb.connect(":memory:") as db:
        for table in QUERIES[query].tables:
            db.execute(f"create view {table} as {_csv(f'{folder}/{table}.csv', query, table)}")
        return _checksum(db, query, QUERIES[query].sql)


def found_in(query: str, system: str, out: Path) -> Checksum:
    """The results that a system has written."""
    columns = _kinds(QUERIES[query].results.split())
    with duckdb.connect(":memory:") as db:
        match system:
            case "flink":
                files = f"read_csv('{out}/part-*', header=false, columns={_typed(columns)})"
            case "pathway":
                more = columns | {"time": "int", "diff": "int"}
                files = f"read_csv('{out}/*.csv', header=true, columns={_typed(more)})"
                if db.sql(f"select 1 from {files} where diff <> 1 limit 1").fetchall():
                    raise ValueError("Pathway has taken results back")
                files = f"(select * exclude (time, diff) from {files})"
            case _:
                files = f"(select {QUERIES[query].ours} from '{out}/*.parquet')"
        return _checksum(db, query, f"from {files}")


def _checksum(db: duckdb.DuckDBPyConnection, query: str, sql: str) -> Checksum:
    names = ", ".join(f"c{n}" for n in range(len(QUERIES[query].results.split())))
    hashed = names.replace(",", "::varchar,") + "::varchar"
    rows = db.sql(f"select count(*), sum(hash({hashed})) from ({sql}) t({names})").fetchall()
    return Checksum(rows[0][0], int(rows[0][1] or 0))


def _csv(path: str, query: str, table: str) -> str:
    columns = _typed(_kinds(QUERIES[query].of(table)))
    return f"from read_csv('{path}', header=false, columns={columns})"


def _typed(columns: Mapping[str, str]) -> str:
    types = {"int": "BIGINT", "text": "VARCHAR"}
    return "{" + ", ".join(f"'{name}': '{types[kind]}'" for name, kind in columns.items()) + "}"


def _kinds(columns: list[str]) -> dict[str, str]:
    return {name: "text" if name in _TEXTS else "int" for name in columns}


def _read(column: str) -> str:
    if column == "number":
        return "id as number"
    return f"epoch_ms({column}) as {column}" if column in _TIMES else column
