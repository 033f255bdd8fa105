"""The folders of one query's state, and the account of the query in them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joinengine.model.errors import DamagedState
from joinengine.world.buckets import is_url
from joinengine.world.local import PRIVATE, not_a_folder
from joinengine.world.storage import Storage
from joinengine.world.world import MACHINE, World

_FOLDERS = (
    *("manifest", "runs", "exchange", "results", "sources"),
    *("generations", "heartbeats", "boundary", "showings"),
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where one query's state lies, and the world in which its driver runs.

    `spark`: where Spark keeps its part, the logs of offsets and commits. `mode`: the permissions of
    the folders of the engine's part; None: the owner's only, when they are created.
    """

    world: World
    storage: Storage
    spark: str
    mode: int | None = None

    @classmethod
    def below(
        cls,
        location: object,
        state: str | None = None,
        *,
        fsync: bool = False,
        mode: int | None = None,
        world: World = MACHINE,
    ) -> Checkpoint:
        """The checkpoint of the query whose checkpoint location is `location`.

        `state`: where the engine's part lies, a path or a URL; None: at the checkpoint location.
        """
        place = str(location) if state is None else state
        return cls(world, world.storage(f"{place}/joinengine", fsync=fsync), str(location), mode)

    @property
    def location(self) -> str:
        """The location as users give it: the engine's part lies in its folder `joinengine`."""
        return self.storage.folder.rpartition("/")[0]

    @property
    def is_remote(self) -> bool:
        """Whether the engine's part lies in an object store."""
        return is_url(self.storage.folder)

    @property
    def manifests(self) -> Storage:
        """One manifest per batch; the newest counts."""
        return self.storage.at("manifest")

    @property
    def runs(self) -> Storage:
        """Run files and statistics of all operators."""
        return self.storage.at("runs")

    @property
    def store(self) -> Storage:
        """Second copies of run files, if the query keeps them."""
        return self.storage.at("store")

    @property
    def exchange(self) -> Storage:
        """Blocks on their way to operators; empty between batches."""
        return self.storage.at("exchange")

    @property
    def results(self) -> Storage:
        """Results on their way to a sink that takes whole batches, or messages."""
        return self.storage.at("results")

    @property
    def sources(self) -> Storage:
        """The source logs: the files and row groups behind each position."""
        return self.storage.at("sources")

    @property
    def generations(self) -> Storage:
        """A marker for each start of a driver; the greatest counts."""
        return self.storage.at("generations")

    @property
    def heartbeats(self) -> Storage:
        """The heartbeat of a running driver, which warns a second start."""
        return self.storage.at("heartbeats")

    @property
    def boundary(self) -> Storage:
        """Markers of batches; up to the greatest one, nothing can be committed any more."""
        return self.storage.at("boundary")

    @property
    def offered(self) -> Storage:
        """Results that another engine has not committed yet."""
        return self.storage.at("offered")

    @property
    def showings(self) -> Storage:
        """The showings: the files in which the results of several batches have become visible."""
        return self.storage.at("showings")

    @property
    def granted(self) -> int:
        """The permissions of folders that hold state: `mode`, by default only the owner's."""
        return PRIVATE if self.mode is None else self.mode

    def check_folders(self) -> None:
        """Raise DamagedState if a file is in place of a folder; a store has no folders."""
        if self.is_remote:
            return
        for name, is_folder in self.storage.entries():
            if name in (*_FOLDERS, "store") and not is_folder:
                raise not_a_folder(self.storage.at(name).folder)

    def create(self) -> None:
        """Make the folders that are missing, and give all of them their mode."""
        for folder in (self.storage, *map(self.storage.at, _FOLDERS)):
            folder.make(self.granted)

    def mend(self) -> None:
        """Make folders that are missing: copying tools may leave out empty ones."""
        names = set(self.storage.names())
        for name in _FOLDERS:
            if name not in names:
                self.storage.at(name).make(self.granted)


#: The account of the query that owns the checkpoint.
ACCOUNT = "query.json"
_PARTS = ("format", "id", "query")


def write_account(checkpoint: Checkpoint, account: Mapping[str, Any]) -> None:
    """Write the account of the query, with its CRC."""
    checkpoint.storage.put(ACCOUNT, sealed(account))


def create_account(checkpoint: Checkpoint, account: Mapping[str, Any]) -> bool:
    """Write the account of the first query; False: another one, with another id, was first."""
    checkpoint.storage.create(ACCOUNT, sealed(account))
    first = read_account(checkpoint)
    return first is not None and first["id"] == account["id"]


def read_account(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The account of the query that owns the checkpoint; None: no query owns it.

    Raises DamagedState if it is not what was written, or is gone although there are manifests.
    """
    path, storage = f"{checkpoint.storage.folder}/{ACCOUNT}", checkpoint.storage
    if not storage.exists(ACCOUNT):
        if checkpoint.manifests.names():
            raise DamagedState(f"{path} is missing; restore it from a copy")
        return None
    try:
        return unsealed(storage.get(ACCOUNT), *_PARTS)
    except ValueError:
        raise DamagedState(
            f"{path} does not match its CRC, so it is truncated or was altered; restore it from a "
            "copy"
        ) from None


def write_note(checkpoint: Checkpoint, name: str, note: Mapping[str, Any]) -> None:
    """Write what a sink notes to the file `name`, with its CRC."""
    checkpoint.storage.put(name, sealed(note))


def read_note(
    checkpoint: Checkpoint, name: str, names: str, *entries: str
) -> dict[str, Any] | None:
    """The entries of a sink's note in the file `name`; None: there is no such file.

    Raises DamagedState if it is not what was written. `names`: the place that the note names, in
    words.
    """
    try:
        return unsealed(checkpoint.storage.get(name), *entries)
    except FileNotFoundError:
        return None
    except ValueError:
        raise DamagedState(
            f"{checkpoint.storage.folder}/{name}, {names}, is truncated or was altered; restore it "
            "from a copy"
        ) from None


def sealed(values: Mapping[str, Any]) -> bytes:
    """The content of a file that holds plain values and their CRC-32, in whichever order."""
    return json.dumps({**values, "crc32": _crc_of(values)}, indent=1).encode()


def unsealed(content: bytes, *entries: str) -> dict[str, Any]:
    """The values in `content`. Raises ValueError if they are not those that were sealed.

    An older version wrote no CRC, and these `entries` alone.
    """
    try:
        values = dict(json.loads(content))
    except (TypeError, RecursionError):
        raise ValueError from None
    crc32 = values.pop("crc32", None)
    if not (values.keys() == set(entries) if crc32 is None else crc32 == _crc_of(values)):
        raise ValueError
    return values


def _crc_of(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())
