"""Times joins of several streams on one key, as one operator and as a chain of joins.

    python -m benchmarks.multiway [--rows N] [--hot PART]

Bids are joined with their bidders' persons (one each), auctions (three each) and badges (two each):
three or four streams in all, over the full history, on KEYS bidders. With a hot key, one bidder has
the part HOT of the bids and of the auctions. Both ways run under `hash` and `auto`; DuckDB joins
all at once. It prints medians of seconds from `start()`, or of the query, the rows of all streams
per second, and the number of results.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import numpy as np
import pyarrow as pa

from benchmarks import by_clock
from joinengine import StreamJoin, equi, parquet_stream, session

FILES, KEYS = 8, 50_000
#: Streams, and how many rows each has for each bidder; all other rows are bids.
EACH = {"person": 1, "auction": 3, "badge": 2}


def write(folder, rows, hot):
    """All streams, in files; the tuples of a key are spread over its stream."""
    rng = np.random.default_rng(1)
    keys = {"bid": rng.integers(0, KEYS, rows)}
    keys |= {name: rng.permutation(np.repeat(np.arange(KEYS), n)) for name, n in EACH.items()}
    keys["bid"][rng.random(rows) < hot] = 0
    for name, column in keys.items():
        values = rng.random(len(column))
        table = pa.table({f"{name}_key": column, f"{name}_value": values})
        by_clock.in_files(table, folder / name, FILES)


def ours(spark, folder, rows, sides, layout, *, multiway):
    """Seconds, and results."""
    names = ["bid", *EACH][:sides]
    streams = {
        name: parquet_stream(
            spark,
            str(folder / name),
            rows_per_interval=(rows if name == "bid" else KEYS * EACH[name]) // 10,
            order="name",
        )
        for name in names
    }
    joined = streams["bid"]
    for name in names[1:]:
        joined = StreamJoin(
            joined,
            streams[name],
            on=equi("bid_key", f"{name}_key"),
            layout=layout,
            instances=8,
            multiway=multiway,
        )
    return by_clock.ours(joined)


def by_duckdb(folder, sides):
    """Seconds, and results, of a join of all rows on two threads."""
    joins = " ".join(
        f"join '{folder}/{name}/*.parquet' on bid_key = {name}_key" for name in [*EACH][: sides - 1]
    )
    values = " + ".join(f"{name}_value" for name in ["bid", *EACH][:sides])
    query = f"select count({values}) from '{folder}/bid/*.parquet' {joins}"
    return by_clock.duckdb_s(query)


@click.command()
@click.option("--rows", default=1_000_000, help="Bids.")
@click.option("--hot", default=0.3, help="The part of the bids of one bidder, where one is hot.")
def main(rows: int, hot: float) -> None:
    """Print the seconds of each way."""
    spark = session(master="local[2]")
    with tempfile.TemporaryDirectory() as home:
        for part in (0.0, hot):
            write(Path(home) / str(part), rows, part)
        for sides in (3, 4):
            for part in (0.0, hot):
                compare(spark, Path(home) / str(part), rows, sides, "hot" if part else "uniform")
    spark.stop()


def compare(spark, folder, rows, sides, kind):
    """Print the medians of one kind of streams."""
    ways = {
        f"{'one operator' if multiway else 'a chain'}, {layout}": (
            lambda layout=layout, multiway=multiway: ours(
                spark, folder, rows, sides, layout, multiway=multiway
            )
        )
        for layout in ("hash", "auto")
        for multiway in (True, False)
    }
    ways["DuckDB"] = lambda: by_duckdb(folder, sides)
    each = rows + KEYS * sum([*EACH.values()][: sides - 1])
    by_clock.beside(ways, each, about=f"{sides} {kind:8}")


if __name__ == "__main__":
    main()
