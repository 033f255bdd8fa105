"""Totals: the work of the committed batches of a query, added up over all its starts.

Why: records of batches end with their driver, but monitoring needs counters that do not fall when a
query is started again. So the manifest of a batch holds the totals up to that batch: a batch counts
if and only if it is committed, whichever driver has committed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

#: The sums of one operator: name of a figure (`joinengine.driver.figures`) -> sum, and `busy_s`,
#: the seconds that tasks have worked. A missing figure is 0; a figure of a later version is kept.
OperatorTotals = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of a query. `operators`: by number; empty: no batch is counted yet."""

    batches: int = 0
    input_rows: int = 0
    output_rows: int = 0
    skipped_files: int = 0
    operators: tuple[OperatorTotals, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Totals:
        """The inverse of `to_json`: a figure that is not there is 0, an unknown one is left."""
        names = {field.name for field in fields(cls)} & plain.keys()
        return cls(
            **{name: plain[name] for name in names}
            | {"operators": tuple(plain.get("operators", ()))}
        )
