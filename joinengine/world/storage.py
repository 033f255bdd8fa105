"""Storage: the few verbs of a file system that the engine needs.

Why: "the manifest is the truth" needs a create that only one driver can win, a put that replaces, a
list and a delete. All other files may be incomplete at any moment, because a file that no manifest
names does not count. The name of every file begins with the generation of the driver for which it
was made (joinengine.state.fence).

Law: a reader sees a whole file or none; a damaged file is refused by name; a file of a newer driver
is never removed.
Scope: POSIX file systems are in joinengine.world.local, object stores in joinengine.world.remote.
"""

from __future__ import annotations

import re
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from joinengine.model.errors import DamagedState

_TAG = re.compile(r"g(\d+)-")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A sealed file: its name below the folder that it belongs to, its size and its CRC-32.

    `content`: that of an *inlined* file, which lies in no folder, but travels with its name.
    """

    name: str
    size_bytes: int
    crc32: int
    content: bytes | None = field(default=None, repr=False)


class Entry(NamedTuple):
    """A file or folder in a folder."""

    name: str
    is_folder: bool


@dataclass(slots=True)
class Fetched:
    """How many files, and bytes of them, a storage has fetched from afar since it was made."""

    files: int = 0
    size_bytes: int = 0


class Storage(Protocol):
    """The files below one folder; names may contain `/`, for folders below it."""

    __slots__ = ()

    @property
    @abstractmethod
    def folder(self) -> str:
        """The folder, as messages and other programs name it."""

    @property
    @abstractmethod
    def fetched(self) -> Fetched | None:
        """The files fetched from afar; None: files are near, or it cannot be known."""

    @abstractmethod
    def at(self, name: str) -> Storage:
        """The files below a folder of this one."""

    @abstractmethod
    def make(self, mode: int | None = None) -> None:
        """Make the folder; no error if it is there.

        `mode`: its permissions, set even if it exists, if the storage has permissions.
        """

    @abstractmethod
    def entries(self) -> list[Entry]:
        """The entries of the folder without drafts (`.`); empty if the folder is missing."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names in the folder without drafts (`.`); empty if the folder is missing."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether a file or a folder has the name."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> bool:
        """Create a file whole; False if the name exists, which leaves it as it is.

        If an error is raised, or the file system repeats requests, the outcome is unknown: a writer
        that must know it writes a nonce into the file, reads the file, and compares.
        """

    @abstractmethod
    def put(self, name: str, content: bytes | memoryview) -> None:
        """Write a file whole, and replace any that has the name."""

    @abstractmethod
    def move(self, name: str, to: str) -> None:
        """Rename a file, and replace any that has the new name. Raises FileNotFoundError."""

    @abstractmethod
    def copy(self, name: str, to: str) -> None:
        """Copy a file, and replace any that has the new name. Raises FileNotFoundError.

        The copy is incomplete until this returns, and shares nothing with the original.
        """

    @abstractmethod
    def delete(self, *names: str) -> None:
        """Remove files; no error if they are gone already."""

    @abstractmethod
    def delete_folder(self, name: str) -> None:
        """Remove a folder with all that is in it; no error if it is gone already."""

    @abstractmethod
    def output(self, name: str) -> Any:
        """A new Arrow output stream; the file is incomplete until the stream is closed."""

    @abstractmethod
    def map(self, name: str) -> pa.Buffer:
        """The content of a file, read on use if possible. Raises FileNotFoundError."""

    @abstractmethod
    def is_near(self, name: str) -> bool:
        """Whether `map` needs no request for the file; True does not mean that it exists."""

    @abstractmethod
    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """The bytes [start, end) of each range, without the rest. Raises FileNotFoundError."""

    @abstractmethod
    def forget(self, name: str) -> bool:
        """Drop the nearby copy of a file; False: there is none.

        After that, a file that differs from what was sealed is read again from the durable place.
        """

    @abstractmethod
    def seal(self, name: str) -> StoredFile:
        """Size and CRC of a file just written, as a later reader will see it; now it is durable."""


def tagged(generation: int, name: str) -> str:
    """The name of a file that a driver of `generation` has made.

    >>> tagged(3, "run-0.arrow")
    'g3-run-0.arrow'
    """
    return f"g{generation}-{name}"


def generation_of(name: str) -> int | None:
    """The generation in the name of a file; None: it has none.

    >>> generation_of("g3-run-0.arrow"), generation_of("part-0.parquet")
    (3, None)
    """
    match = _TAG.match(name)
    return int(match[1]) if match else None


def numbers(storage: Storage, suffix: str = "") -> list[int]:
    """The numbers, ascending, of the files whose names are a number and `suffix`.

    Other files, such as those that a backup program has left there, are ignored.
    """
    stems = (name.removesuffix(suffix) for name in storage.names() if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def verify(storage: Storage, stored: StoredFile, what: str) -> pa.Buffer:
    """The content of a file. Raises DamagedState unless it is byte for byte what was sealed.

    A damaged copy nearby is dropped, and the file is read again from the durable place. An inlined
    file brings its own content.
    """
    path = f"{storage.folder}/{stored.name}"
    damage: str | None = None
    for again in (False, True):
        if again and not storage.forget(stored.name):
            break
        try:
            inlined = stored.content
            content = storage.map(stored.name) if inlined is None else pa.py_buffer(inlined)
        except FileNotFoundError:
            raise DamagedState(f"{what} {path} is missing; restore it from a copy") from None
        damage = _damage(content, stored)
        if damage is None:
            return content
    raise DamagedState(f"{what} {path} {damage}; restore it from a copy")


def _damage(content: pa.Buffer, stored: StoredFile) -> str | None:
    """How the content differs from what was sealed; None: it does not differ."""
    if content.size != stored.size_bytes:
        return (
            f"has {content.size} bytes instead of {stored.size_bytes}, so it is truncated or was "
            "overwritten"
        )
    if zlib.crc32(content) != stored.crc32:
        return "does not match its CRC, so its bytes were altered"
    return None


def remove_unnamed(storage: Storage, named: Iterable[str], makers: range) -> int:
    """Remove files of drivers whose generation is among `makers`, except `named`; returns how many.

    A folder is removed as a whole, unless the name of a file in it is among `named`.
    Files of newer drivers stay even if `named` lacks them: the caller may have slept since it
    learned the names.
    """
    kept = {name.partition("/")[0] for name in named}
    files = list[str]()
    folders = list[str]()
    for name, is_folder in storage.entries():
        maker = generation_of(name)
        if maker is None or maker not in makers or name in kept:
            continue
        (folders if is_folder else files).append(name)
    storage.delete(*files)
    for name in folders:
        storage.delete_folder(name)
    return len(files) + len(folders)
