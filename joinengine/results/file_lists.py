"""Lists of result files: which files count, in a small file of the checkpoint.

Law: a list that was truncated, altered or put in place of another one is refused by name. It holds
its own name and a CRC; an older version wrote neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from joinengine.model.errors import DamagedState
from joinengine.state.checkpoint import sealed, unsealed
from joinengine.world.storage import Storage, StoredFile


def content_of(name: str, files: Iterable[StoredFile]) -> bytes:
    """What the list `name` of these files holds."""
    rows = [(file.name, file.size_bytes, file.crc32) for file in files]
    return sealed({"name": name, "files": rows})


def listed(storage: Storage, name: str) -> list[StoredFile]:
    """The files of a list. Raises FileNotFoundError, and DamagedState if it is not what it was."""
    content = storage.get(name)
    try:
        if content.startswith(b"["):  # of an older version
            rows = json.loads(content)
            return [StoredFile(**r) if isinstance(r, dict) else StoredFile(*r) for r in rows]
        values = unsealed(content)
        if values["name"] == name:
            return [StoredFile(*row) for row in values["files"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise DamagedState(
        f"list {storage.folder}/{name} of result files is truncated or was altered; restore it "
        "from a copy"
    )
