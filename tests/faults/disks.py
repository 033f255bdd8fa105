"""A program for tests: a query whose disk fills up, or is made read-only, and has room again.

It runs in a mount namespace of its own, as root there, and prints a JSON object: per story that is
asked for what the query said, and whether all results are there once it has gone on.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from joinengine import StreamJoin, equi, parquet_stream, session, within
from joinengine.model.errors import JoinEngineError

ROWS, FILES = 4_000, 4
DISK_BYTES, LEFT_BYTES = 64 << 20, 1 << 20
TIME = pa.timestamp("us", "UTC")


def write(folder, number, rows=ROWS):
    """A file of each side, whose tuples are too wide for what is left of the disk."""
    ids = np.arange(rows) + number * rows
    times = pa.array(1_700_000_000_000_000 + ids * 1_000, TIME)
    random = np.random.default_rng(number)
    wide = pa.array([random.bytes(150).hex() for _ in range(rows)])
    for side in "lr":
        named = {f"{side}k": pa.array(ids), f"{side}t": times, f"{side}v": wide}
        (folder / side).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(named), folder / side / f"{number}.parquet")


class Story:
    """A query with one of its folders on a small disk; `kind`: the format of its results."""

    def __init__(self, spark, home, small, kind="parquet"):
        self.spark, self.home, self.small, self.kind = spark, home, home / small, kind
        for name in ("in", "checkpoint", "out"):
            (home / name).mkdir(parents=True)
        mounted(self.small, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs")

    def run(self, files, **options):
        """Run over what is there, with so many files more; what the query said, None: nothing."""
        there = len(list((self.home / "in").glob("l/*")))
        for number in range(there, there + files):
            write(self.home / "in", number)
        sides = [
            parquet_stream(self.spark, self.home / "in" / side, rows_per_interval=ROWS)
            for side in "lr"
        ]
        window = within("lt", "rt", lower="0 s", upper="1 hour", delay="0 s")
        joined = StreamJoin(*sides, on=equi("lk", "rk"), within=window, instances=4)
        writer = joined.writeStream.format(self.kind).trigger(availableNow=True)
        try:
            query = writer.option("checkpointLocation", str(self.home / "checkpoint"))
            query = query.options(compression="none", **options).start(str(self.home / "out"))
            query.awaitTermination()
        except JoinEngineError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def whole(self):
        """Whether each pair is there once."""
        if self.kind == "delta":
            table = DeltaTable(self.home / "out").to_pyarrow_table(columns=["lk"])
        else:
            table = pq.read_table(self.home / "out", columns=["lk"])
        found = Counter(table["lk"].to_pylist())
        pairs = len(list((self.home / "in").glob("l/*"))) * ROWS
        return len(found) == pairs and set(found.values()) == {1}

    def shown(self):
        """How many rows are visible."""
        return pq.read_table(self.home / "out", columns=["lk"]).num_rows

    def used(self):
        """Bytes on the small disk."""
        return sum(path.stat().st_size for path in self.small.rglob("*") if path.is_file())


def mounted(target, *arguments):
    """Mount something."""
    subprocess.run(["mount", *arguments, str(target)], check=True)


def full(spark, home, small, kind="parquet"):
    """The disk fills up, twice, and then there is room."""
    story = Story(spark, home, small, kind)
    said = [story.run(1)]
    filler = story.small / ".filler"
    room = DISK_BYTES - story.used() - LEFT_BYTES
    filler.write_bytes(bytes(room))
    before = story.used()
    said += [story.run(1), story.run(0)]
    grown = story.used() - before
    filler.unlink()
    said.append(story.run(1))
    return {"said": said, "whole": story.whole(), "grown": grown}


def merging(spark, home, small):
    """There is room for the results of some batches, and not for the file that they become."""
    story = Story(spark, home, small)
    said = [story.run(1, compactEvery=9)]
    size = story.used()  # of the results of a batch
    filler = story.small / ".filler"
    filler.write_bytes(bytes(DISK_BYTES - size - int(4.5 * size)))
    before, shown = story.used(), story.shown()
    said += [story.run(3, compactEvery=9), story.run(0, compactEvery=9)]
    grown = (story.used() - before) / size
    assert story.shown() == shown
    filler.unlink()
    said.append(story.run(0, compactEvery=9))
    return {"said": said, "whole": story.whole(), "grown": grown}


def read_only(spark, home, small):
    """The disk is made read-only, and can be written again."""
    story = Story(spark, home, small)
    said = [story.run(1)]
    mounted(story.small, "-o", "remount,ro")
    said.append(story.run(1))
    mounted(story.small, "-o", "remount,rw")
    said.append(story.run(0))
    return {"said": said, "whole": story.whole()}


#: Name -> what happens, and where the small disk is.
STORIES = {
    "full checkpoint": (full, "checkpoint"),
    "full out": (full, "out"),
    "full table": (full, "out", "delta"),
    "merging": (merging, "out"),
    "read_only checkpoint": (read_only, "checkpoint"),
    "read_only out": (read_only, "out"),
}


def main():
    """Tell the stories that are asked for, one after the other."""
    home, names = Path(sys.argv[1]), sys.argv[2:]
    spark = session(master="local[2]")
    told = {}
    for name in names:
        story, *about = STORIES[name]
        told[name] = story(spark, home / name.replace(" ", "-"), *about)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
