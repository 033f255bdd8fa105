"""Files of a checkpoint: where they are, and how they come into being.

Why: "the manifest is the truth" needs two primitives of the file system, a create that only one
driver can win and a rename that replaces. Everything else may be torn at any moment, because a file
that no manifest names does not exist.

Law: a reader sees a whole file or none; a damaged one is refused by name.
Scope: POSIX file systems, local or shared by all executors. `fsync` extends the guarantee from
killed processes to power loss.
"""

from __future__ import annotations

import mmap
import os
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from joinengine.model.errors import CheckpointMismatch, DamagedState


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folders of one query's state below Spark's checkpoint location."""

    root: Path

    @property
    def query(self) -> Path:
        """What this checkpoint is a checkpoint of."""
        return self.root / "query.json"

    @property
    def manifests(self) -> Path:
        """One manifest per batch; the newest counts."""
        return self.root / "manifest"

    @property
    def runs(self) -> Path:
        """Run files and statistics of all joins."""
        return self.root / "runs"

    @property
    def exchange(self) -> Path:
        """Blocks on their way from routes to joins; empty between batches."""
        return self.root / "exchange"

    @property
    def results(self) -> Path:
        """Results on their way to a sink that is not ours."""
        return self.root / "results"

    @property
    def sources(self) -> Path:
        """Which files and row groups each source offset means."""
        return self.root / "sources"

    @property
    def ticks(self) -> Path:
        """The driver's requests for a batch without data."""
        return self.root / "ticks.json"

    def create(self) -> None:
        """Make the folders that are missing."""
        for folder in (self.manifests, self.runs, self.exchange, self.results, self.sources):
            folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A sealed file: its name below the folder that it belongs to, its size and its CRC-32."""

    name: str
    size_bytes: int
    crc32: int


def create_exclusively(path: Path, content: bytes, *, fsync: bool = False) -> None:
    """Create `path` whole; only one of several writers succeeds.

    Raises CheckpointMismatch where `path` is there already.
    """
    draft = _draft(path, content, fsync)
    try:
        os.link(draft, path)  # atomic, and refuses to replace: rename would not
    except FileExistsError:
        raise CheckpointMismatch(
            f"{path} is there already: another driver runs on this checkpoint; stop one of the two"
        ) from None
    finally:
        draft.unlink()
    if fsync:
        sync_folder(path.parent)


def replace_atomically(path: Path, content: bytes, *, fsync: bool = False) -> None:
    """Write `path` whole, over what may be there."""
    os.replace(_draft(path, content, fsync), path)
    if fsync:
        sync_folder(path.parent)


def _draft(path: Path, content: bytes, fsync: bool) -> Path:
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    with draft.open("wb") as file:
        file.write(content)
        if fsync:
            file.flush()
            os.fsync(file.fileno())
    return draft


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def seal(path: Path, *, fsync: bool = False) -> StoredFile:
    """Size and CRC of a file just written, read back as a later reader will see it."""
    size = path.stat().st_size
    if fsync:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return StoredFile(path.name, size, file_crc(path))


def file_crc(path: Path) -> int:
    """CRC-32 of a whole file; some 4 GB/s."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return zlib.crc32(content)


def verify(path: Path, stored: StoredFile, what: str) -> None:
    """Raise DamagedState unless `path` is byte for byte what was sealed."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise DamagedState(f"{what} {path} is missing; restore it from a copy") from None
    if size != stored.size_bytes:
        raise DamagedState(
            f"{what} {path} has {size} bytes where {stored.size_bytes} were written: it is "
            f"truncated or overwritten; restore it from a copy"
        )
    if file_crc(path) != stored.crc32:
        raise DamagedState(
            f"{what} {path} does not match its CRC: its bytes were altered; restore it from a copy"
        )


def write_sealed(path: Path, content: bytes, *, fsync: bool = False) -> StoredFile:
    """A new file with `content`."""
    path.write_bytes(content)
    return seal(path, fsync=fsync)


def read_sealed(path: Path, stored: StoredFile, what: str) -> bytes:
    """The content of a sealed file. Raises DamagedState where it is not what was written."""
    verify(path, stored, what)
    return path.read_bytes()


def collect_garbage(folder: Path, keep: Iterable[str]) -> int:
    """Remove the files of `folder` that are not in `keep`; how many went."""
    kept, gone = set(keep), 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name not in kept and entry.is_file():
                Path(entry.path).unlink(missing_ok=True)
                gone += 1
    return gone
