"""Makes the process keep the memory of freed arrays, for later arrays.

Why: glibc returns the memory of a large array to the system as soon as it is freed, and the next
array faults its pages in again. The arrays of a chunk of pairs have two megabytes each; filling a
new one takes ten times as long as filling one in kept memory.

Cost: a process keeps at most KEPT_BYTES of unused memory.
"""

from __future__ import annotations

import ctypes

#: The memory of arrays larger than this is returned at once, as glibc does from 128 KB on.
LARGEST_BYTES = 32 << 20
KEPT_BYTES = 64 << 20
# The numbers of the two parameters in <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Make the allocator of this process keep memory; False: the allocator is not glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wanted = {_MMAP_THRESHOLD: LARGEST_BYTES, _TRIM_THRESHOLD: KEPT_BYTES}
    return all(mallopt(name, value) == 1 for name, value in wanted.items())
