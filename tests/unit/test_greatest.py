"""The top groups of a window: as many as were asked for, or all, if there are no more."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from joinengine import top
from joinengine.predicates.grouping import greatest


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_no_more_than_asked_for(count):
    grouping = SimpleNamespace(top=top(2, by="n"), groups=["word"])
    rows = [("a", 1, 60), ("b", 3, 60), ("c", 3, 60), ("d", 2, 60)][:count]
    schema = pa.schema([("word", pa.string()), ("n", pa.int64()), ("window_end", pa.int64())])
    table = pa.Table.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], schema
    )
    kept = greatest(grouping, table)
    assert kept.schema == table.schema
    found = sorted(zip(*kept.to_pydict().values(), strict=True))
    assert found == sorted(sorted(rows, key=lambda row: (-row[1], row[0]))[:2])
