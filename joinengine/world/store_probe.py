"""The probe of an object store: whether exactly one of several writers creates a name.

Why: that one driver alone commits a batch rests on it, and there are stores that answer every
conditional request with success.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from joinengine.model.errors import InvalidRequest
from joinengine.world.storage import Storage
from joinengine.world.world import World

#: How many writers create one name at the same time.
WRITERS = 8


def check_exclusive(storage: Storage, world: World) -> None:
    """Raise InvalidRequest unless exactly one of `WRITERS` creates a name.

    Cost: two requests more than writers.
    """
    name = f"probe-{world.nonce()}"
    with ThreadPoolExecutor(WRITERS) as threads:
        won = list(threads.map(lambda n: storage.create(name, b"%d" % n), range(WRITERS)))
    seen = storage.get(name)
    storage.delete(name)
    if sum(won) != 1 or seen != b"%d" % won.index(True):
        raise InvalidRequest(
            f"{storage.folder}: {sum(won)} of {WRITERS} writers created the same file at the same "
            "time, and exactly one must succeed, or two drivers could commit the same batch; use "
            "a store with conditional writes (If-None-Match), such as S3, GCS or Azure"
        )
