"""Deliveries: the common currency of all layouts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Instances = NDArray[np.uint16]
Flags = NDArray[np.uint8]

#: What a delivered tuple does at the instance. A tuple reaches an instance at most once a batch.
STORE = np.uint8(1)
PROBE = np.uint8(2)
BOTH = np.uint8(3)

#: Instances are numbered in 16 bits.
MAX_INSTANCES = 1 << 16


class Deliveries(NamedTuple):
    """Row rows[i] of the batch goes to instances[i], to do flags[i]."""

    rows: NDArray[np.int64]
    instances: Instances
    flags: Flags


def storing(deliveries: Deliveries) -> Deliveries:
    """Only where tuples are stored."""
    kept = (deliveries.flags & STORE) > 0
    rows, instances, flags = deliveries
    return Deliveries(rows[kept], instances[kept], flags[kept])
