"""What the busiest operator of a report received, batch by batch, and how long it worked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def received_by_batch(report: dict[str, Any]) -> NDArray[np.float64]:
    """(batches, instances) tuples received at the busiest operator, in batches that brought any."""
    return _busiest(report)[0]


def joined_by_batch(report: dict[str, Any]) -> NDArray[np.float64]:
    """As `received_by_batch`, without what instances only keep as backups."""
    received, backed = _busiest(report)
    return received - backed


def busy_by_batch(report: dict[str, Any]) -> NDArray[np.float64]:
    """(batches, instances) seconds that the instances of the busiest operator have worked.

    No rows if the report does not have them, as of earlier versions.
    """
    joins = [join for join in report["joins"] if join.get("busy_s_by_batch")]
    rows = [np.array(join["busy_s_by_batch"], float) for join in joins]
    return max(rows, key=lambda busy: float(busy.sum()), default=np.zeros((0, 1)))


def _busiest(report: dict[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Twice (batches, instances) tuples of the busiest operator: received, and kept as backups."""
    joins = sorted(report["joins"], key=lambda join: sum(join["received_per_instance"]))
    rows = joins[-1]["received_by_batch"] if joins else []
    received, brought = np.array(rows, float), np.array([sum(row) > 0 for row in rows], bool)
    backed = joins[-1].get("backed_by_batch") if joins else None
    backed = np.array(backed, float) if backed else 0 * received
    return received[brought], backed[brought]
