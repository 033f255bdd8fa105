"""Streams of files for `simulate --stream`, and the command."""

from __future__ import annotations

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from joinengine.lab.cli import cli

ROWS = 4000
HOUR_US = 3_600_000_000


def table(hot=0.5, seed=0):
    """Tuples of two key columns and a time; user 0 has the part `hot`, some keys are NULL."""
    rng = np.random.default_rng(seed)
    users = np.where(rng.random(ROWS) < hot, 0, rng.integers(1, 500, ROWS))
    times = np.sort(rng.integers(0, 8 * HOUR_US, ROWS))
    return pa.table(
        {
            "n": pa.array(np.arange(ROWS)),
            "user": pa.array([f"user {u}" if u != 7 else None for u in users]),
            "kind": pa.array((users % 3).astype(np.int8)),
            "at": pa.array(times, pa.timestamp("us")),
        }
    )


def write(folder, kind, whole, parts=4):
    """The rows in `parts` files, of which the first by name is the last by age."""
    folder.mkdir(exist_ok=True)
    size = -(-whole.num_rows // parts)
    for number in range(parts):
        part = whole.slice(number * size, size)
        path = folder / f"{parts - number}.{kind}"
        if kind == "parquet":
            pq.write_table(part, path, row_group_size=300)
        elif kind == "csv":
            pa.csv.write_csv(part, path)
        else:
            rows = [json.dumps(row, default=str) for row in part.to_pylist()]
            path.write_text("\n".join(rows) + "\n")
        os.utime(path, ns=(number * 10**9, number * 10**9))
    (folder / "_SUCCESS").touch()
    (folder / ".hidden.parquet").write_text("no Parquet")


def simulate(*arguments):
    done = CliRunner().invoke(
        cli, ["simulate", *map(str, arguments)], catch_exceptions=False, env={"COLUMNS": "200"}
    )
    assert done.exit_code == 0, done.output
    return done.output
