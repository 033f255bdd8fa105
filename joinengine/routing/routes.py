"""Deliveries, the output of all routers, and their flags."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Instances = NDArray[np.uint16]
Flags = NDArray[np.unsignedinteger]

#: The flags of a delivery: to store, to store as a backup, to probe. A tuple reaches an instance at
#: most once a batch. Each older live layout version has its own probe flag above PROBE
#: (`probe_flag`).
STORE = np.uint8(1)
BACKUP = np.uint8(2)
PROBE = np.uint8(4)
BOTH = STORE | PROBE
#: The flags that leave a copy of the tuple at the instance.
KEPT = STORE | BACKUP

#: Instances are numbered in 16 bits.
MAX_INSTANCES = 1 << 16


class Deliveries(NamedTuple):
    """n deliveries: row rows[i] of the batch goes to instances[i], with flags[i].

    A router gives them in ascending order of rows.
    """

    rows: NDArray[np.int64]
    instances: Instances
    flags: Flags


def probe_flag(slot: int) -> int:
    """The flag of probing in slot `slot`: one for each live layout version, the newest first.

    If a tuple probes several words, there is a slot for each version and word.

    >>> [probe_flag(slot) for slot in range(3)]
    [4, 8, 16]
    """
    return int(PROBE) << slot


def watch_flag(versions: int, probes: int) -> int:
    """The flag of a delivery to a watcher: above all probe flags.

    These number `versions` layout versions times `probes` words.
    """
    return probe_flag(versions * probes)


def storing(deliveries: Deliveries) -> Deliveries:
    """The deliveries that store, without their probes."""
    kept = only(deliveries, (deliveries.flags & KEPT) > 0)
    return kept._replace(flags=kept.flags & KEPT)


def only(deliveries: Deliveries, kept: NDArray[np.bool_]) -> Deliveries:
    """The deliveries for which `kept` is true."""
    rows, instances, flags = deliveries
    return Deliveries(rows[kept], instances[kept], flags[kept])
