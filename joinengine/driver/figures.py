"""The table of figures: what a batch counts for each operator, with its unit and meaning.

Records of batches hold the figures. The totals of a manifest, `metrics()`, reports, progress, the
story of a page, Prometheus and docs/metrics.md are made from the table. To add a figure, add a line
here, a field in a group of `OperatorRecord`, and the code that fills it
(`joinengine.driver.recording`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joinengine.driver.records import OperatorRecord


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the table.

    `name`: the column and the key. `at`: where an `OperatorRecord` holds it. `more`: text in
    Markdown for docs/metrics.md alone. `lasts`: a figure of the state; over several batches the
    last value counts, whereas other figures are added up. `of_batch`: a batch adds it up over its
    operators. `spark`: the field of Spark's progress that holds it; None: a custom metric. `words`:
    what follows the number in the printed line of a batch, if the number is not 0; None: the line
    lacks the figure.
    """

    name: str
    at: str
    unit: str
    meaning: str
    more: str = ""
    lasts: bool = False
    of_batch: bool = True
    spark: str | None = None
    words: str | None = None

    def of(self, record: OperatorRecord) -> int:
        """The figure of one operator in one batch."""
        figure: int = attrgetter(self.at)(record)
        return figure


_LINES = (
    Figure(
        "output_rows", "output_rows", "rows", "rows that the operator has output", of_batch=False
    ),
    Figure(
        "replans",
        "replans",
        "re-plans",
        "how often a planner changed the layout; wishes and growth do not count",
        of_batch=False,
    ),
    Figure(
        "state_rows",
        "state.rows",
        "rows",
        "copies of rows in the state",
        lasts=True,
        spark="numRowsTotal",
    ),
    Figure(
        "state_bytes",
        "state.size_bytes",
        "bytes",
        "size of these copies on disk",
        ". Second copies of outer, semi and anti joins count in `pending_bytes`",
        lasts=True,
        spark="memoryUsedBytes",
    ),
    Figure(
        "moved_rows",
        "moved.rows",
        "rows",
        "copies that changed their home",
        ", before the batch",
        words="moved",
    ),
    Figure(
        "moved_bytes", "moved.size_bytes", "bytes", "size of the copies that changed their home"
    ),
    Figure(
        "switched_roles",
        "switched_roles",
        "keys",
        "keys whose home and backup changed roles (ftlb); their state does not move",
        ". The plan that follows the batch changes them",
    ),
    Figure(
        "lost_instances",
        "lost.count",
        "instances",
        "instances whose state could not be read",
        " ([fault-tolerance.md](fault-tolerance.md) says how they recovered)",
    ),
    Figure(
        "recovered_rows",
        "lost.recovered_rows",
        "rows",
        "lost copies that were restored",
        ": from other copies before the batch, or from the store during it",
    ),
    Figure(
        "unbacked_keys",
        "lost.unbacked_keys",
        "keys",
        "keys that have no second copy at present, because an instance was lost",
        lasts=True,
    ),
    Figure(
        "report_bytes_up",
        "told.up_bytes",
        "bytes",
        "size of the tasks' reports for planners",
        ": the counts of keys, and the rows that each instance stored, as numbers of 8 bytes. 0 "
        "if the layout counts no keys",
    ),
    Figure(
        "report_bytes_down",
        "told.down_bytes",
        "bytes",
        "size of the driver's requests for planners: the hashes of the keys that it asks for",
    ),
    Figure(
        "whole_reports",
        "told.whole",
        "operators",
        "operators whose tasks reported all keys that a plan may need",
        ". Layouts that [report in two stages](layouts.md#when-a-plan-is-taken) do so only after "
        "an imbalance; other layouts that count keys do so in every batch that is not small",
    ),
    Figure(
        "run_files",
        "reads.files",
        "files",
        "run files of earlier batches that tasks opened, where the state is in an object store",
        "; a file that two tasks opened counts twice. 0 if the state is in a folder",
    ),
    Figure("run_file_bytes", "reads.size_bytes", "bytes", "size of these run files"),
    Figure(
        "fetched_files",
        "reads.fetched_files",
        "files",
        "run files that executors downloaded, because they were not in their file caches",
        " ([file cache](glossary.md#file-cache)); the hit rate of the caches is 1 - "
        "`fetched_files` / `run_files`",
    ),
    Figure(
        "fetched_bytes",
        "reads.fetched_bytes",
        "bytes",
        "bytes that executors downloaded of these files",
    ),
    Figure(
        "routing_entries",
        "routing_entries",
        "keys",
        "entries of the routing tables: keys that are not whole at their base home",
        lasts=True,
    ),
    Figure("split_keys", "split_keys", "keys", "keys that several instances share", lasts=True),
    Figure(
        "probe_copies",
        "work.probe_copies",
        "rows",
        "rows sent to an instance only to probe: the price of split keys",
    ),
    Figure(
        "candidates",
        "work.candidates",
        "pairs",
        "pairs of rows that joins compared",
        ". Compare it with `output_rows`. Under a window it should be little more, unless a "
        "predicate or a band rejects many pairs. In a semi or anti join, each row of a hot key "
        "counts as one pair",
    ),
    Figure(
        "capped_pairs",
        "capped_pairs",
        "pairs",
        "pairs that max_pairs_per_key left out, so that no result contains them",
        words="left out by the cap",
    ),
    Figure(
        "expired_rows",
        "state.expired_rows",
        "rows",
        "copies that left the state, because no row on time can match them any more",
        spark="numRowsRemoved",
    ),
    Figure(
        "late_rows",
        "refused.late",
        "rows",
        "rows below the watermark, which are neither stored nor matched",
        spark="numRowsDroppedByWatermark",
        words="late",
    ),
    Figure(
        "ahead_rows",
        "refused.ahead",
        "rows",
        "rows further ahead of the driver's clock than max_ahead, which are neither stored nor "
        "matched, and do not move the watermark",
        words="ahead of time",
    ),
    Figure(
        "null_rows",
        "refused.null",
        "rows",
        "rows without a key or an event time",
        "; an inner join drops them, an outer join outputs them as unmatched",
        words="without a key or time",
    ),
    Figure(
        "unknown_change_rows",
        "refused.change",
        "rows",
        "rows of a changelog whose change is NULL, 0 or a word without a meaning, which are "
        "neither stored nor matched",
        words="of unknown change",
    ),
    Figure(
        "pending_rows",
        "state.pending_rows",
        "rows",
        "rows of outer, semi and anti joins that may still find a match",
        lasts=True,
        words="waiting",
    ),
    Figure(
        "pending_bytes",
        "state.pending_bytes",
        "bytes",
        "size on disk of these rows, which `state_bytes` leaves out",
        ", and of the marks of rows that have matched",
        lasts=True,
    ),
)
#: Name -> figure, in the order of the page.
FIGURES: Mapping[str, Figure] = {figure.name: figure for figure in _LINES}
#: Figures that are added up over batches. Of the others, the last value counts.
SUMS = tuple(figure.name for figure in _LINES if not figure.lasts)
#: Figures that a batch adds up over its operators.
OF_BATCH = tuple(figure.name for figure in _LINES if figure.of_batch)
