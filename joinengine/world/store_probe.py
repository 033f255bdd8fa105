"""The probe of an object store: whether exactly one of several writers creates a name.

Why: only thus does a single driver commit a batch, and some stores answer every conditional request
with success.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from joinengine.model.errors import InvalidRequest
from joinengine.world.storage import Storage
from joinengine.world.world import World

#: How many writers create one name at the same time.
WRITERS = 8
#: How many names are tried until a writer knows that it has created one: answers may get lost.
_TRIES = 3


def check_exclusive(storage: Storage, world: World) -> None:
    """Raise InvalidRequest unless exactly one of `WRITERS` creates a name, and its content stays.

    Cost: WRITERS + 2 requests, unless an answer is lost.
    """
    for _ in range(_TRIES):
        won, seen = _race(storage, f"probe-{world.nonce()}")
        if won:
            break
    if len(won) != 1 or seen != _content(won[0]):
        raise InvalidRequest(
            f"{storage.folder}: {len(won)} of {WRITERS} writers created the same file at the same "
            "time, and exactly one must succeed and its content stay, or two drivers could commit "
            "the same batch; use a store with conditional writes (If-None-Match), such as S3, GCS "
            "or Azure"
        )


def _race(storage: Storage, name: str) -> tuple[list[int], bytes]:
    """The writers that know they have created the file, and its content; removes the file."""
    with ThreadPoolExecutor(WRITERS) as threads:
        has_won = threads.map(lambda n: storage.create(name, _content(n)), range(WRITERS))
        won = [writer for writer, has in enumerate(has_won) if has]
    seen = storage.get(name)
    storage.delete(name)
    return won, seen


def _content(writer: int) -> bytes:
    return b"%d" % writer
