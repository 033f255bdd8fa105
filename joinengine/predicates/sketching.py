"""Heavy hitters by sketches: partial results that stay small however many groups there are.

A *frequent items* sketch keeps two bounds of the count of each heavy group; the bounds still hold
when sketches are merged. So a pane's partial result is one sketch, not one row for each group.

Law: low <= count <= high for every group, and high - low <= error x tuples of the window. A top
group is among the results if its count exceeds that.
Cost: one update per group, pane and instance; some 40 bytes for each of 0.75 / error x 3.5 groups.
Source: Misra and Gries 1982, in the form of Apache DataSketches (Anderson et al., IMC 2017).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa

from joinengine.model.aggregation import PANE, Grouping, Top
from joinengine.model.query import WINDOW_END, WINDOW_START

SKETCH = "__sketch"
#: The prefix of a group in a sketch, whose items are text: it tells a value from NULL.
_VALUE, _NULL = "=", "-"
_LARGEST = 26


def size_for(error: float) -> int:
    """The least size (as a power of two) of a sketch that keeps to `error`, a part of all tuples.

    >>> size_for(0.001)
    12
    """
    sizes = range(5, _LARGEST + 1)
    epsilon = datasketches.frequent_strings_sketch.get_epsilon_for_lg_size
    return next((size for size in sizes if epsilon(size) <= error), _LARGEST)


def sketch_schema() -> pa.Schema:
    """The columns of partial results that are sketches."""
    return pa.schema([(PANE, pa.int64()), (SKETCH, pa.binary())])


def bound_names(top: Top) -> tuple[str, str]:
    """The columns that bound the count.

    >>> bound_names(Top(10, "n", 0.001))
    ('n_low', 'n_high')
    """
    return f"{top.by}_low", f"{top.by}_high"


def sketch_counts(grouping: Grouping, counts: pa.Table) -> pa.Table:
    """Counts of groups and panes (what `grouping.add_tuples` gives) -> a sketch for each pane."""
    items = counts.column(0).cast(pa.string()).to_pylist()
    sketches = dict[int, Any]()
    panes, weights = counts.column(PANE).to_pylist(), counts.column("p0").to_pylist()
    for item, pane, weight in zip(items, panes, weights, strict=True):
        name = _NULL if item is None else _VALUE + item
        _of(sketches, pane, grouping).update(name, weight)
    return _table(sketches)


def add_sketches(grouping: Grouping, parts: pa.Table) -> pa.Table:
    """Sketches -> fewer of them: one for each pane."""
    merged = dict[int, Any]()
    rows = zip(parts.column(PANE).to_pylist(), parts.column(SKETCH).to_pylist(), strict=True)
    for pane, content in rows:
        _of(merged, pane, grouping).merge(_opened(content))
    return _table(merged)


def heaviest(
    grouping: Grouping, parts: pa.Table, window: tuple[int, int], schema: pa.Schema
) -> pa.Table:
    """The sketches of one window -> its top groups, with bounds."""
    whole = _empty(grouping)
    for content in parts.column(SKETCH).to_pylist():
        whole.merge(_opened(content))
    kind = datasketches.frequent_items_error_type.NO_FALSE_NEGATIVES
    assert grouping.top is not None
    items = sorted(whole.get_frequent_items(kind), key=lambda item: (-item[1], item[0]))
    items = items[: grouping.top.k]
    names = [None if name == _NULL else name.removeprefix(_VALUE) for name, *_ in items]
    columns: dict[str, Any] = {
        grouping.groups[0]: pa.array(names, pa.string()),
        grouping.top.by: pa.array([item[1] for item in items], pa.int64()),
    }
    for number, name in enumerate(bound_names(grouping.top), start=2):
        columns[name] = pa.array([item[number] for item in items], pa.int64())
    for name, time in zip((WINDOW_START, WINDOW_END), window, strict=True):
        columns[name] = pa.array(np.full(len(items), time)).cast(schema.field(name).type)
    return pa.table(columns).cast(schema)


def _of(sketches: dict[int, Any], pane: int, grouping: Grouping) -> Any:
    if pane not in sketches:
        sketches[pane] = _empty(grouping)
    return sketches[pane]


def _empty(grouping: Grouping) -> Any:
    assert grouping.top is not None
    assert grouping.top.error is not None
    return datasketches.frequent_strings_sketch(size_for(grouping.top.error))


def _opened(content: bytes) -> Any:
    return datasketches.frequent_strings_sketch.deserialize(content)


def _table(sketches: dict[int, Any]) -> pa.Table:
    rows: Iterable[tuple[int, Any]] = sorted(sketches.items())
    panes, contents = [], []
    for pane, sketch in rows:
        panes.append(pane)
        contents.append(sketch.serialize())
    return pa.table([pa.array(panes, pa.int64()), pa.array(contents, pa.binary())], sketch_schema())
