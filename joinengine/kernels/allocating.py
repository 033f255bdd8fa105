"""Memory that arrays have freed stays with the process, for the next ones.

Why: glibc gives a large array back to the system as soon as it is freed, and the next one faults
its pages in again. The arrays of a chunk of pairs have two megabytes each: to fill one that is new
takes ten times as long as to fill one that is not.

Cost: a process keeps at most KEPT_BYTES that it does not use.
"""

from __future__ import annotations

import ctypes

#: Larger arrays than this are given back at once, as glibc does from 128 KB on.
LARGEST_BYTES = 32 << 20
KEPT_BYTES = 64 << 20
# The numbers of the two parameters in <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Have the allocator of this process keep memory; False: it is another than glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wanted = {_MMAP_THRESHOLD: LARGEST_BYTES, _TRIM_THRESHOLD: KEPT_BYTES}
    return all(mallopt(name, value) == 1 for name, value in wanted.items())
