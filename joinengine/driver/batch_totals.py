"""How a batch counts towards the totals that its manifest holds.

Law: the totals are the sum over the committed batches. They follow from the last manifest and the
reports of the batch, before the commit; so a batch that is cut off leaves none, and one that is
adopted from an older driver brings its own.
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
