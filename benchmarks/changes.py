"""Times joins of changes, beside a join of rows that stay, and DuckDB's batch join of the net rows.

    python -m benchmarks.changes [--rows N] [--hot PART]

A changelog of N orders, of which a fifth is changed once more (-1 for what was, +1 for what is), is
joined with a changelog of customers, which are changed as often; one customer has the part HOT of
the orders. `plain` reads the same rows as if all stayed. DuckDB joins the rows that are there in
the end. Spark has no stream join of changes. Printed are medians of seconds from `start()`, or of
the query; DuckDB's results are rows that are there, and ours are changes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import numpy as np
import pyarrow as pa

from benchmarks import by_clock
from joinengine import StreamJoin, equi, parquet_stream, session

FILES, CHANGED = 8, 0.2


def write(folder, name, keys):
    """Write a changelog: (n,) keys come with a value, which later changes for a part of them."""
    rng = np.random.default_rng(len(keys))
    n, values = len(keys), rng.random(len(keys))
    changed = rng.permutation(n)[: int(CHANGED * n)]
    # a row goes, and comes again, somewhere behind the place at which it came
    places = changed + rng.integers(1, n, len(changed))
    at = np.concatenate([np.arange(n), places, places + 0.5])
    rows = np.concatenate([np.arange(n), changed, changed])
    again = np.concatenate([values, values[changed], rng.random(len(changed))])
    signs = np.repeat([1, -1, 1], [n, len(changed), len(changed)])
    order = np.argsort(at, kind="stable")
    columns = {
        f"{name}_key": keys[rows],
        f"{name}_id": rows,
        f"{name}_value": again,
        "_change": signs,
    }
    table = pa.table({key: column[order] for key, column in columns.items()})
    by_clock.in_files(table, folder / name, FILES)
    return table.num_rows


def ours(spark, folder, sizes, layout, *, changes):
    """Seconds, and results."""
    sides = [
        parquet_stream(spark, str(folder / name), rows_per_interval=rows // 10, order="name")
        for name, rows in sizes.items()
    ]
    options = {"changes": "_change"} if changes else {"select": ["o_id", "o_value", "c_value"]}
    on = equi("o_key", "c_key")
    return by_clock.ours(StreamJoin(*sides, on=on, layout=layout, instances=8, **options))


def by_duckdb(folder):
    """Seconds and number of rows of a join of both changelogs' nets, on two threads."""
    net = (
        "(select {0}_key, {0}_id, {0}_value from '{1}/{0}/*.parquet' "
        "group by all having sum(_change) > 0)"
    )
    left, right = (net.format(name, folder) for name in "oc")
    query = f"select count(o_value + c_value) from {left} join {right} on o_key = c_key"
    return by_clock.duckdb_s(query)


@click.command()
@click.option("--rows", default=500_000, help="Orders; there is a tenth as many customers.")
@click.option("--hot", default=0.3, help="The part of the orders of one customer.")
def main(rows: int, hot: float) -> None:
    """Print the seconds of each."""
    spark, rng = session(master="local[2]"), np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as home:
        folder, customers = Path(home), rows // 10
        keys = np.where(rng.random(rows) < hot, 0, rng.integers(0, customers, rows))
        sizes = {"o": write(folder, "o", keys), "c": write(folder, "c", np.arange(customers))}
        ways = {
            f"{'changes' if changes else 'plain'}, {layout}": (
                lambda layout=layout, changes=changes: ours(
                    spark, folder, sizes, layout, changes=changes
                )
            )
            for changes in (True, False)
            for layout in ("hash", "auto")
        }
        ways["DuckDB, of the net"] = lambda: by_duckdb(folder)
        by_clock.beside(ways, sum(sizes.values()))
    spark.stop()


if __name__ == "__main__":
    main()
