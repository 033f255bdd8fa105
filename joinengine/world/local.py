"""Storage in folders of a POSIX file system, local or shared by all executors.

Permissions: a file or folder grants nobody more than the folder in which it is made; the umask of
the process takes away more. So the mode of one folder, the engine's part of the checkpoint, decides
for all that is below it.

Law: a file is seen whole or not at all, by a link or a rename; a disk that is full, over its quota
or read-only is refused in one sentence, which names the file.
Cost: one additional open per file, for its mode: 5 us.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from typing_extensions import override

from joinengine.model.errors import CannotWrite, DamagedState, JoinEngineError
from joinengine.world.storage import Entry, Storage, StoredFile

#: The mode of folders that only their owner may use.
PRIVATE = 0o700
#: The names of drafts, and the age in seconds from which on no process writes one any more.
_DRAFT, _LEFT_S = re.compile(r"\..+\.[0-9a-f]{12}"), 86_400
#: Errors of a disk or of a process's limits -> what is wrong, and what helps.
_REFUSALS = {
    errno.ENOSPC: ("the disk is full", "make room on it"),
    errno.EDQUOT: ("the quota is used up", "make room or raise the quota"),
    errno.EFBIG: ("the file exceeds the size limit", "raise the limit (ulimit -f)"),
    errno.EROFS: ("the disk is read-only", "mount it for writing"),
    errno.EACCES: ("this user has no write permission", "grant it write permission"),
    errno.EPERM: ("this user has no write permission", "grant it write permission"),
    errno.EIO: ("the disk has failed", "check the disk"),
    errno.EMFILE: ("this process has too many files open", "raise the limit (ulimit -n)"),
    errno.ENFILE: ("the machine has too many files open", "raise the limit (sysctl fs.file-max)"),
}


#: The same of errors on reading that are no fault of the file.
_SHORT = (errno.EMFILE, errno.ENFILE)
_UNREAD = {
    **{number: _REFUSALS[number] for number in _SHORT},
    errno.EACCES: ("this user has no read permission", "grant it read permission"),
    errno.EPERM: ("this user has no read permission", "grant it read permission"),
}
#: What file systems without hard links answer; Linux and exFAT say that a link is not permitted.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def writing(path: str) -> Iterator[None]:
    """An error of the disk in the block becomes CannotWrite; `path`: the file or folder.

    A file in place of the folder of `path` becomes DamagedState, as does a folder that is gone.
    """
    try:
        yield
    except OSError as error:
        _check_above(path, error)
        folder = os.path.dirname(path)
        if isinstance(error, FileNotFoundError) and not os.path.isdir(folder):
            raise DamagedState(
                f"{folder} was removed or moved while the query ran; restore it from a copy, and "
                "start the query again"
            ) from None
        if error.errno not in _REFUSALS:
            raise
        raise refused(path, error.errno) from None


@contextmanager
def reading(path: str) -> Iterator[None]:
    """A folder in place of a file becomes DamagedState, as does a file in place of a parent.

    So does an error of a failed disk. An error that is no fault of the file, such as too many open
    files, becomes a JoinEngineError, which nothing takes for damage.
    """
    try:
        yield
    except OSError as error:
        _check_above(path, error)
        _check_readable(path, error)
        if os.path.isdir(path):
            raise DamagedState(
                f"{path} should be a file and is a folder; restore it from a copy"
            ) from None
        raise


def _check_above(path: str, error: OSError) -> None:
    """Raise DamagedState if a file is in place of a folder above `path`."""
    if isinstance(error, NotADirectoryError):
        above = os.path.dirname(path)
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            raise not_a_folder(above) from None


def not_a_folder(path: str) -> DamagedState:
    """The error for a file in place of a folder."""
    return DamagedState(f"{path} should be a folder and is a file; restore it from a copy")


def refused(path: str, number: int) -> CannotWrite:
    """The engine's error for an error of the disk, by its `errno`."""
    what, hint = _REFUSALS[number]
    return CannotWrite(
        f"{path} cannot be written: {what} ({os.strerror(number)}); nothing is lost: {hint}, and "
        "start the query again"
    )


def _check_readable(path: str, error: OSError) -> None:
    """Raise an error of the engine if a file or folder cannot be read, for a reason that helps."""
    if error.errno == errno.EIO:
        raise DamagedState(
            f"{path} cannot be read: the disk has failed ({os.strerror(errno.EIO)}); check the "
            "disk, or restore it from a copy"
        ) from None
    if error.errno in _UNREAD:
        raise _unread(path, error.errno) from None


def check_blame(path: str, error: BaseException) -> None:
    """Raise a JoinEngineError if `error`, met on reading a file, is that too many are open.

    Who leaves bad files out would leave whole ones out.
    """
    if isinstance(error, OSError) and error.errno in _SHORT:
        raise _unread(path, error.errno) from None


def _unread(path: str, number: int) -> JoinEngineError:
    """The error for a file that cannot be read, though it may be whole, by its `errno`."""
    what, hint = _UNREAD[number]
    return JoinEngineError(
        f"{path} cannot be read: {what} ({os.strerror(number)}); nothing is lost: {hint}, and "
        "start the query again"
    )


def _without_links(path: str, error: OSError) -> CannotWrite:
    return CannotWrite(
        f"{path} cannot be created: its file system has no hard links ({error.strerror}), by which "
        "one of several drivers wins; nothing is lost: use a folder on a file system with hard "
        "links"
    )


def make_folder(path: str, mode: int | None = None) -> None:
    """Make a folder and its parents; `mode`: set even if it exists; None: see the module's head."""
    with writing(path):
        if not os.path.isdir(path):
            above = os.path.dirname(path) or "."
            if not os.path.isdir(above):
                make_folder(above)
            granted = os.stat(above).st_mode & 0o777 if mode is None else mode
            with suppress(FileExistsError):
                os.mkdir(path, granted)
            if not os.path.isdir(path):
                raise not_a_folder(path)
        if mode is not None:
            os.chmod(path, mode)


def remove_left_drafts(folder: str) -> None:
    """Remove the drafts below a folder that are a day old: their writers have died."""
    for below, _, names in os.walk(folder):
        for draft in filter(_DRAFT.fullmatch, names):
            path = f"{below}/{draft}"
            with suppress(OSError):
                if os.stat(path).st_mtime < time.time() - _LEFT_S:
                    os.unlink(path)


@dataclass(frozen=True, slots=True)
class LocalStorage(Storage):
    """A folder of a POSIX file system."""

    folder: str = field()  # field(): else the protocol's property would be the default
    fsync: bool = False

    # Paths are plain strings here, for speed: a task opens some hundred files in a batch.

    def path(self, name: str) -> str:
        """The path of a file."""
        return f"{self.folder}/{name}"

    @property
    @override
    def fetched(self) -> None:
        """None: a file system may be remote, but does not say so."""
        return None

    @override
    def at(self, name: str) -> LocalStorage:
        return LocalStorage(self.path(name), self.fsync)

    @override
    def make(self, mode: int | None = None) -> None:
        """With its parents."""
        make_folder(self.folder, mode)

    @override
    def entries(self) -> list[Entry]:
        try:
            with os.scandir(self.folder) as listing:
                return [
                    Entry(entry.name, entry.is_dir()) for entry in listing if entry.name[0] != "."
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            _check_readable(self.folder, error)
            raise

    @override
    def names(self) -> list[str]:
        """In one request if they are few, so that a name that is there throughout is not missed."""
        try:
            return [name for name in os.listdir(self.folder) if name[0] != "."]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            _check_readable(self.folder, error)
            raise

    @override
    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    @override
    def get(self, name: str) -> bytes:
        path = self.path(name)
        with reading(path), open(path, "rb") as file:
            return file.read()

    @override
    def create(self, name: str, content: bytes) -> bool:
        """By a draft and a link, which is atomic and refuses to replace; a rename would not."""
        path = self.path(name)
        draft = self._draft(path, content)
        with writing(path):
            try:
                os.link(draft, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise _without_links(path, error) from None
                raise
            finally:
                os.unlink(draft)
            self._keep_names(path)
        return True

    @override
    def put(self, name: str, content: bytes | memoryview) -> None:
        """By a draft and a rename."""
        path = self.path(name)
        draft = self._draft(path, content)
        with writing(path):
            os.replace(draft, path)
            self._keep_names(path)

    @override
    def move(self, name: str, to: str) -> None:
        """Atomically; makes the folder of the new name."""
        target = self.path(to)
        with writing(target):
            make_folder(os.path.dirname(target))
            os.replace(self.path(name), target)
            self._keep_names(target)

    @override
    def copy(self, name: str, to: str) -> None:
        """To a new file: a process that has mapped the old one keeps it."""
        source, target = self.path(name), self.path(to)
        with writing(target):
            if os.path.exists(source):
                self.delete(to)
                _new_file(target)
            shutil.copyfile(source, target)
            if self.fsync:
                with open(target, "rb") as file:
                    os.fsync(file.fileno())
            self._keep_names(target)

    @override
    def delete(self, *names: str) -> None:
        for name in names:
            with writing(self.path(name)), suppress(FileNotFoundError):
                os.unlink(self.path(name))

    @override
    def delete_folder(self, name: str) -> None:
        """File by file, if it is not empty."""
        shutil.rmtree(self.path(name), ignore_errors=True)

    @override
    def output(self, name: str) -> Any:
        """Makes the folder if it is missing."""
        path = self.path(name)
        with writing(path):
            try:
                _new_file(path)
            except FileNotFoundError:
                make_folder(os.path.dirname(path))
                _new_file(path)
            return pa.OSFile(path, "wb")

    @override
    def map(self, name: str) -> pa.Buffer:
        """A memory map; its pages belong to the file cache."""
        path = self.path(name)
        with reading(path):
            if not os.stat(path).st_size:  # cannot be mapped
                return pa.py_buffer(b"")
            return pa.memory_map(path).read_buffer()

    @override
    def is_near(self, name: str) -> bool:
        return True

    @override
    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Parts of a memory map."""
        content = self.map(name)
        return [content.slice(start, end - start) for start, end in ranges]

    @override
    def forget(self, name: str) -> bool:
        """False: there is only one copy."""
        return False

    @override
    def seal(self, name: str) -> StoredFile:
        """Reads the file back; some 4 GB/s."""
        if self.fsync:
            with writing(self.path(name)), open(self.path(name), "rb") as file:
                os.fsync(file.fileno())
                self._keep_names(self.path(name))
        content = self.map(name)
        return StoredFile(name.rpartition("/")[2], content.size, zlib.crc32(content))

    def _draft(self, path: str, content: bytes | memoryview) -> str:
        folder, _, name = path.rpartition("/")
        draft = f"{folder}/.{name}.{uuid.uuid4().hex[:12]}"
        with writing(path):
            _new_file(draft)
            try:
                with open(draft, "wb") as file:
                    file.write(content)
                    if self.fsync:
                        file.flush()
                        os.fsync(file.fileno())
            except OSError:
                os.unlink(draft)
                raise
        return draft

    def _keep_names(self, path: str) -> None:
        """Make the names in the folder of `path` survive power loss."""
        if not self.fsync:
            return
        handle = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _new_file(path: str) -> None:
    """Make an empty file, with the permissions of its folder; it may exist already."""
    granted = os.stat(os.path.dirname(path)).st_mode & 0o666
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, granted))
