"""Totals: what the committed batches of a query have done, added up over all its starts.

Why: records of batches end with their driver, and what scrapes a query wants counters that do not
fall when it is started again. So the manifest of a batch holds the totals up to that batch: a batch
counts exactly if it is committed, whichever driver has committed it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class OperatorTotals:
    """The sums of one operator; names and units are those of its record, and `busy_s` in seconds.

    `replans`: how often its planner has changed the layout.
    """

    output_rows: int = 0
    late_rows: int = 0
    null_rows: int = 0
    ahead_rows: int = 0
    expired_rows: int = 0
    moved_rows: int = 0
    moved_bytes: int = 0
    probe_copies: int = 0
    candidates: int = 0
    replans: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of a query. `operators`: by number; none: no batch is counted yet."""

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
        operators = tuple(
            OperatorTotals(**_known(OperatorTotals, one)) for one in plain.get("operators", ())
        )
        return cls(**_known(cls, plain | {"operators": operators}))


def _known(kind: type[Totals | OperatorTotals], plain: dict[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in plain.items() if name in names}
