"""What a task hands over at its desk: the results of all its instances."""

from __future__ import annotations

import pyarrow as pa
import pytest

from joinengine.exchange.task_results import ResultColumns, Results
from joinengine.kernels.hashing import multiset_checksum
from joinengine.results.targets import Discard
from joinengine.wire.reports import OperatorReport
from joinengine.world.memory import MemoryWorld


@pytest.mark.parametrize("most_bytes", [1, 40, 1 << 20], ids=["each", "some", "all"])
def test_the_checksum_is_of_all_results_however_they_come(most_bytes):
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    pieces = [[pa.array([1, 2]), pa.array(["a", None])], [pa.array([3]), pa.array(["ccc"])]] * 2
    given = {"checksum": multiset_checksum, "most_bytes": most_bytes, "fsync": False}
    results = Results(Discard(), ResultColumns(schema), None, MemoryWorld(), **given)
    for piece in pieces:
        results.add(piece)
    report = OperatorReport(0)
    results.close(report)
    whole = [pa.concat_arrays(columns) for columns in zip(*pieces, strict=True)]
    assert (report.result_checksum, report.result_rows) == (multiset_checksum(whole), 6)
