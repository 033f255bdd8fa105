"""Deliveries: the common currency of all layouts, and the base functions under a routing table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words, key_hash

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


def base_home(words: Words, instances: int) -> Instances:
    """(n,) words -> (n,) base homes: key hash modulo the number of instances.

    The papers take the key itself modulo N; a mixed hash keeps patterns in the key numbers from
    becoming load.
    """
    return (key_hash(words) % np.uint64(instances)).astype(np.uint16)
