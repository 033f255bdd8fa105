"""One join, into Parquet by joinengine and through `to_df` by Spark: python -m benchmarks.frames.

Both run over all available input, three times in turn after a first run of each. It prints medians
of seconds from start to end, and their ratio.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.by_clock import in_files
from joinengine import StreamJoin, equi, parquet_stream, session

ROWS, KEYS, FILES = 2_000_000, 1_000_000, 8


def folder(home, name, seed):
    rng = np.random.default_rng(seed)
    columns = {f"{name}_k": rng.integers(0, KEYS, ROWS), f"{name}_v": rng.random(ROWS)}
    in_files(pa.table(columns), home / name, FILES)
    return home / name


def main():
    spark = session()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        sides = [folder(home, name, seed) for seed, name in enumerate("ab")]
        left, right = (parquet_stream(spark, one, rows_per_interval=500_000) for one in sides)
        joined = StreamJoin(left, right, on=equi("a_k", "b_k"), layout="hash", instances=8)
        found = {"parquet": [], "to_df": []}
        for turn in range(4):
            at = home / str(turn)

            def parquet(at=at):
                writer = joined.writeStream.format("parquet").trigger(availableNow=True)
                writer = writer.option("checkpointLocation", at / "c")
                writer.start(at / "out").awaitTermination()

            def to_df(at=at):
                frame = joined.to_df(str(at / "d"))
                writer = frame.writeStream.trigger(availableNow=True)
                writer = writer.option("checkpointLocation", str(at / "e"))
                writer.start(str(at / "out2")).awaitTermination()

            for name, run in (("parquet", parquet), ("to_df", to_df)):
                begin = time.monotonic()
                run()
                found[name].append(time.monotonic() - begin)
            rows = [len(pq.read_table(at / out, columns=["a_k"])) for out in ("out", "out2")]
            assert rows[0] == rows[1] > ROWS, rows
    medians = {name: statistics.median(times[1:]) for name, times in found.items()}
    print(f"{rows[0]:,} results; seconds: {medians}")
    print(f"to_df takes {medians['to_df'] / medians['parquet']:.2f} times as long")
    spark.stop()


if __name__ == "__main__":
    main()
