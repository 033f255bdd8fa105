"""Times as-of joins and joins with `latest`, beside the alternatives in DuckDB and Spark.

    python -m benchmarks.asof [--rows N] [--hot PART]

Payments meet the newest rate of their currency: N payments, and a tenth as many rates, of 5,000
currencies, of which one has the part HOT of both sides. joinengine reads both as streams, under
`hash` and `auto`, and under `mnrt`; results are counted. DuckDB joins all at once with ASOF JOIN.
Spark has no such join: its nearest is a batch query with a window function over the union of both
sides, which sorts each key on one core. Printed are medians of seconds from `start()`, or of the
query.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import numpy as np
import pyarrow as pa

from benchmarks import by_clock
from joinengine import StreamJoin, asof, equi, latest, parquet_stream, session

FILES, KEYS = 8, 5_000
SPAN_US = 3_600_000_000


def write(folder, name, rows, hot, seed):
    """Write a side, sorted by time, in files."""
    rng = np.random.default_rng(seed)
    keys = np.where(rng.random(rows) < hot, 0, rng.integers(0, KEYS, rows))
    times = np.sort(rng.choice(SPAN_US, rows, replace=False))
    table = pa.table(
        {
            f"{name}_key": pa.array(keys),
            f"{name}_value": pa.array(rng.random(rows)),
            f"{name}_ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
        }
    )
    by_clock.in_files(table, folder / name, FILES, row_group_size=1 << 17)


def ours(spark, folder, rows, layout, *, is_latest=False):
    """Seconds and number of results of joinengine; the last results wait for more rates."""
    payments, rates = (
        parquet_stream(spark, str(folder / name), rows_per_interval=rows // part, order="name")
        for name, part in (("p", 10), ("r", 100))
    )
    if is_latest:
        rates = latest(rates, key="r_key", order_by="r_ts")
    by = equi("p_key", "r_key")
    on = by if is_latest else asof("p_ts", "r_ts", by=by, delay="0 s")
    joined = StreamJoin(payments, rates, on=on, layout=layout, instances=8)
    return by_clock.ours(joined)


def by_duckdb(folder):
    """Seconds, and results, of an ASOF JOIN of all rows on two threads."""
    query = (
        f"select count(r_value) from '{folder}/p/*.parquet' "
        f"asof join '{folder}/r/*.parquet' on p_key = r_key and p_ts >= r_ts"
    )
    return by_clock.duckdb_s(query)


def by_spark(spark, folder):
    """Seconds, and results, of a batch query: the last rate before each payment of its key."""
    for name in "pr":
        spark.read.parquet(str(folder / name)).createOrReplaceTempView(name)
    query = """
        select count(rate) n from (
            select is_rate, last(r_value, true) over (partition by k order by at, is_rate desc) rate
            from (select p_key k, p_ts at, 0 is_rate, null r_value from p
                  union all select r_key, r_ts, 1, r_value from r))
        where is_rate = 0
        """
    return by_clock.timed(lambda: spark.sql(query).collect()[0].n)


@click.command()
@click.option("--rows", default=2_000_000, help="Payments; there are a tenth as many rates.")
@click.option("--hot", default=0.3, help="The part of one key, on both sides.")
def main(rows: int, hot: float) -> None:
    """Print the seconds of each."""
    spark = session(master="local[2]")
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        write(folder, "p", rows, hot, 1)
        write(folder, "r", rows // 10, hot, 2)
        ways = {
            "as-of, hash": lambda: ours(spark, folder, rows, "hash"),
            "as-of, auto": lambda: ours(spark, folder, rows, "auto"),
            "as-of, mnrt": lambda: ours(spark, folder, rows, "mnrt"),
            "latest, auto": lambda: ours(spark, folder, rows, "auto", is_latest=True),
            "DuckDB, ASOF JOIN": lambda: by_duckdb(folder),
            "Spark, window function": lambda: by_spark(spark, folder),
        }
        by_clock.beside(ways, rows + rows // 10)
    spark.stop()


if __name__ == "__main__":
    main()
