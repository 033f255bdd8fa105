"""The stream of the comparison: TPC-H orders, each followed by its lineitems within a bounded time.

Each order arrives at its place in the table; its lineitems follow within 5 % of the stream. So
the interval join finds every lineitem's order, and its state holds about 5 % of the stream. The
window can be widened without changing a row. Micro-batches are files: one per
side and batch.

A second stream has batches of a few rows, then batches without rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.lab.tpch.generate import Say, build_once, home, silent, tables
from joinengine.lab.tpch.skew import uniform
from joinengine.lab.tpch.stream import EPOCH_US, SPAN_US

#: Lineitems follow their order within this part of the stream.
PART = 0.05
#: Batches that are run and not counted where rates are measured.
WARM_BATCHES = 3
SIDES = {
    "orders": ("o_orderkey", "o_custkey", "o_totalprice", "o_orderdate"),
    "lineitem": ("l_orderkey", "l_suppkey", "l_linenumber", "l_extendedprice"),
}
#: Rows of a small batch: two orders, and their line items.
FEW = 10


@dataclass(frozen=True)
class PeerStream:
    """The files of both sides, in the order of their batches, and how many rows each batch has."""

    folder: Path
    batch_rows: tuple[int, ...]

    def side(self, table: str) -> Path:
        """The folder of one side."""
        return self.folder / table


def record(scale: float, batch_rows: tuple[int, ...], say: Say = silent) -> PeerStream:
    """The stream at a TPC-H scale, in batches of `batch_rows` rows, the last repeated."""
    label = "-".join(str(rows) for rows in dict.fromkeys(batch_rows))
    folder = home() / "peers" / f"sf{scale:g}-{len(batch_rows)}x{label}"
    build_once(folder, lambda draft: _write(draft, scale, batch_rows, say))
    return PeerStream(folder, tuple(json.loads((folder / "batches.json").read_text())))


def _write(folder: Path, scale: float, batch_rows: tuple[int, ...], say: Say) -> None:
    say(f"writing orders and lineitem at scale {scale:g} as a stream")
    files = tables(scale, SIDES, say)
    sides = {name: pq.read_table(str(files[name]), columns=list(SIDES[name])) for name in SIDES}
    keys = sides["orders"].column("o_orderkey").to_numpy()
    placed = np.arange(len(keys)) / len(keys) * (1 - PART)
    line_keys = sides["lineitem"].column("l_orderkey").to_numpy()
    after = uniform(7, "lineitem follows", np.arange(len(line_keys))) * PART
    times = {"orders": placed, "lineitem": placed[np.searchsorted(keys, line_keys)] + after}
    everyone = np.sort(np.concatenate(list(times.values())))
    cuts = np.minimum(_cuts(batch_rows, len(everyone)), len(everyone))
    edges = np.append(everyone[cuts[:-1]], np.inf)
    for name, table in sides.items():
        order = np.argsort(times[name], kind="stable")
        ordered = times[name][order]
        stamps = pa.array(
            EPOCH_US + (ordered * SPAN_US).astype(np.int64), pa.timestamp("us", "UTC")
        )
        rows = table.take(pa.array(order)).append_column(f"{name[0]}_ts", stamps)
        bounds = np.append(np.searchsorted(ordered, edges[:-1]), len(ordered))
        parts = [rows.slice(first, last - first) for first, last in pairwise(bounds)]
        progress = [EPOCH_US + int(min(e, 1.0) * SPAN_US) for e in edges[1:]]
        _write_side(folder, name, parts, progress)
    (folder / "batches.json").write_text(json.dumps(np.diff(cuts).tolist()))


def record_small(batches: int) -> PeerStream:
    """`batches` batches, the first half of FEW rows, the others of none; they are a second apart.

    Each order of a batch has four line items there.
    """
    folder = home() / "peers" / f"small-{batches}"
    sizes = (FEW,) * (batches // 2) + (0,) * (batches - batches // 2)
    build_once(folder, lambda draft: _write_small(draft, sizes))
    return PeerStream(folder, sizes)


def _write_small(folder: Path, sizes: tuple[int, ...]) -> None:
    begins = [EPOCH_US + batch * 1_000_000 for batch in range(len(sizes))]
    for name, each in (("orders", 1), ("lineitem", 4)):
        parts = []
        for batch, rows in enumerate(sizes):
            keys = np.repeat(np.arange(rows // 5) + batch * FEW, each)
            values = {column: keys for column in SIDES[name][1:]}
            times = pa.array(np.full(len(keys), begins[batch]), pa.timestamp("us", "UTC"))
            parts.append(pa.table({SIDES[name][0]: keys, **values, f"{name[0]}_ts": times}))
        _write_side(folder, name, parts, [begin + 1_000_000 for begin in begins])
    (folder / "batches.json").write_text(json.dumps(sizes))


def _write_side(folder: Path, name: str, parts: Sequence[pa.Table], progress: list[int]) -> None:
    """A file for each batch, and the index; `progress` as in `write_index`."""
    (folder / name).mkdir(parents=True)
    for batch, part in enumerate(parts):
        path = folder / name / f"{batch:05d}.parquet"
        # Four row groups, so that two cores share a file; Spark splits nothing this small.
        size = max(1, -(-part.num_rows // 4))
        pq.write_table(part, path, row_group_size=size, store_decimal_as_integer=True)
    write_index(folder, name, progress)


def write_index(folder: Path, name: str, progress: list[int]) -> None:
    """Let our own source read the files of one side batch by batch.

    `progress`: for each batch the event time, in microseconds, that no later tuple is before.
    """
    intervals = [
        [[f"{name}/{batch:05d}.parquet", group, rows.num_rows] for group, rows in enumerate(groups)]
        for batch in range(len(progress))
        for groups in [_row_groups(folder / name / f"{batch:05d}.parquet")]
    ]
    content = {"intervals": intervals, "progress": progress}
    (folder / f"{name}.json").write_text(json.dumps(content))


def _row_groups(path: Path) -> list[Any]:
    metadata = pq.read_metadata(str(path))
    return [metadata.row_group(i) for i in range(metadata.num_row_groups)]


def _cuts(batch_rows: tuple[int, ...], total: int) -> np.ndarray:
    ends = np.cumsum(batch_rows)
    more = np.arange(ends[-1], total, batch_rows[-1])[1:] if ends[-1] < total else []
    return np.unique(np.concatenate([[0], ends, more, [total]])).astype(np.int64)
