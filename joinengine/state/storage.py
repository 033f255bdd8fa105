"""Files of a checkpoint: where they lie, and how they are created.

Why: "the manifest is the truth" needs few verbs of the file system: a create that only one driver
can win, a put that replaces, a list, a delete. Everything else may be torn at any moment, because a
file that no manifest names does not exist. The name of every file begins with the generation of the
driver for which it was made (joinengine.state.fence).

Law: a reader sees a whole file or none; a damaged file is refused by name; a file of a newer driver
is never removed.
Scope: POSIX file systems, local or shared by all executors. `fsync` extends the guarantee from
killed processes to power loss.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from joinengine.model.errors import DamagedState

_TAG = re.compile(r"g(\d+)-")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folders of one query's state below Spark's checkpoint location."""

    root: Path

    @property
    def query(self) -> Path:
        """The account of the query that owns the checkpoint."""
        return self.root / "query.json"

    @property
    def manifests(self) -> Path:
        """One manifest per batch; the newest counts."""
        return self.root / "manifest"

    @property
    def runs(self) -> Path:
        """Run files and statistics of all operators."""
        return self.root / "runs"

    @property
    def exchange(self) -> Path:
        """Blocks on their way to operators; empty between batches."""
        return self.root / "exchange"

    @property
    def results(self) -> Path:
        """Results on their way to a sink that takes DataFrames."""
        return self.root / "results"

    @property
    def sources(self) -> Path:
        """The source logs: which files and row groups each offset means."""
        return self.root / "sources"

    @property
    def generations(self) -> Path:
        """A marker for each driver that was started; the greatest counts."""
        return self.root / "generations"

    @property
    def boundary(self) -> Path:
        """A marker for the batch up to which nothing can be committed any more."""
        return self.root / "boundary"

    @property
    def deliveries(self) -> Path:
        """Markers: which attempt to deliver a batch counts, if attempts differ in their files."""
        return self.root / "deliveries"

    @property
    def ticks(self) -> Path:
        """The drivers' requests for a batch without data."""
        return self.root / "ticks"

    def ticks_of(self, generation: int) -> Path:
        """The requests of one driver; an older driver that wakes up must not overwrite them."""
        return self.ticks / tagged(generation, "next.json")

    def create(self) -> None:
        """Make the folders that are missing."""
        for folder in (
            *(self.manifests, self.runs, self.exchange, self.results, self.sources),
            *(self.generations, self.boundary, self.deliveries, self.ticks),
        ):
            folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A sealed file: its name below the folder that it belongs to, its size and its CRC-32."""

    name: str
    size_bytes: int
    crc32: int


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


def create(path: Path, content: bytes, *, fsync: bool = False) -> bool:
    """Create `path` whole; False if it exists, which leaves it as it is.

    If an error is raised, or the file system repeats requests, the outcome is unknown: a writer
    that must know it writes a nonce into the file, reads the file, and compares.
    """
    draft = _draft(path, content, fsync)
    try:
        os.link(draft, path)  # atomic, and refuses to replace: rename would not
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    if fsync:
        sync_folder(path.parent)
    return True


def names_in(folder: Path) -> list[str]:
    """The names in `folder` without drafts; none if the folder is missing.

    A folder of few entries is read in one request, so a name that is there all the time is seen.
    """
    try:
        return [name for name in os.listdir(folder) if name[0] != "."]
    except FileNotFoundError:
        return []


def delete(path: Path) -> None:
    """Remove a file; no error if it is gone already."""
    path.unlink(missing_ok=True)


def put(path: Path, content: bytes, *, fsync: bool = False) -> None:
    """Write `path` whole, and replace the file that may be there."""
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
            f"{what} {path} has {size} bytes, {stored.size_bytes} were written: it is "
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
    """The content of a sealed file. Raises DamagedState if it is not what was written."""
    verify(path, stored, what)
    return path.read_bytes()


def remove_unnamed(folder: Path, named: Iterable[str], generation: int) -> int:
    """Remove files of drivers up to `generation`, except `named`; returns how many.

    Files of newer drivers stay even if `named` lacks them: the caller may have slept since it
    learned the names.
    """
    kept, gone = set(named), 0
    for name in names_in(folder):
        maker = generation_of(name)
        if maker is None or maker > generation or name in kept:
            continue
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            delete(path)
        gone += 1
    return gone
