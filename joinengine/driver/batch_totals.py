"""How a batch counts towards the totals that its manifest holds.

Law: the totals are the sum over the committed batches. They are computed before the commit, from
the last manifest and the reports of the batch, and they are part of its manifest. So an interrupted
batch does not count, and a batch adopted from an older driver brings its totals along.
"""

from __future__ import annotations

from joinengine.driver.figures import FIGURES, SUMS
from joinengine.driver.records import BatchRecord, OperatorRecord
from joinengine.state.totals import OperatorTotals, Totals


def added(before: Totals, record: BatchRecord) -> Totals:
    """The totals once a batch is committed."""
    operators = before.operators or ({},) * len(record.joins)
    return Totals(
        batches=before.batches + 1,
        input_rows=before.input_rows + record.input_rows,
        output_rows=before.output_rows + record.output_rows,
        skipped_files=before.skipped_files + len(record.skipped),
        operators=tuple(map(_added, operators, record.joins)),
    )


def _added(before: OperatorTotals, entry: OperatorRecord) -> OperatorTotals:
    sums = {name: before.get(name, 0) + FIGURES[name].of(entry) for name in SUMS}
    return {**before, **sums, "busy_s": before.get("busy_s", 0.0) + sum(entry.work.busy_s)}
