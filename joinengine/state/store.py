"""The store: keeps a second copy of every run file, for instances that lose their state.

Why: copies of keys cost a query twice the state and twice the tuples on their way. A store costs
only the writing of the copies, but a lost instance must wait until its state has been read again.

How: before a manifest is committed, each run file that it names has a copy in another place, under
the same name. If an instance has lost its state, its files are compared with what was sealed, and
damaged files are replaced by their copies. The copies are separate files, not links, since an
alteration would affect all links to a file. If no place is named, they lie below `store/` of the
checkpoint.

Law: a copy is used only if it is byte for byte what was sealed. A name always means one content, so
a copy that an earlier start has left is either right or refused, and never stale.
Cost: each run file is read once and written once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from joinengine.model.errors import DamagedState
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.operator_state import OperatorState
from joinengine.state.run import Run
from joinengine.world.storage import Storage, StoredFile, verify


@dataclass(frozen=True, slots=True)
class Fetched:
    """The state that was read again, by instance: live rows, bytes, and seconds that it took."""

    rows: Mapping[int, int]
    sizes: Mapping[int, int]
    seconds: Mapping[int, float]


class Store:
    """The second copies of the run files of a checkpoint; `copies`: where they lie."""

    #: a remark that the log adds to the seconds of a read
    note: ClassVar[str] = ""

    def __init__(self, checkpoint: Checkpoint, copies: Storage) -> None:
        self._world = checkpoint.world
        self._checkpoint = checkpoint
        self.copies = copies
        #: the files of the last states that have a copy
        self._kept = set[str]()

    def take_up(self, states: Iterable[OperatorState]) -> None:
        """Copy the files of a checkpoint that have no whole copy, at the start of a driver.

        A damaged file gets no copy: the batch that reads it reports the damage.
        """
        self.copies.make(self._checkpoint.granted)
        operator_states = list(states)
        for name, stored in _files(operator_states).items():
            if self._is_whole(stored):
                self._kept.add(name)
        self._copy(operator_states, checked=True)

    def keep(self, states: Iterable[OperatorState]) -> None:
        """Copy the new files of `states`, before the manifest that names them is created."""
        self._copy(list(states), checked=False)

    def fetch(self, state: OperatorState, instances: Collection[int]) -> Fetched:
        """Check the state of instances, and replace damaged files by their copies.

        Raises DamagedState, naming the file, if its copy is also damaged.
        """
        runs = [run for run in runs_of(state) if run.instance in instances]
        begun = self._world.timer_s()
        for name in sorted({run.file for run in runs}):
            self._mend(state.shelves.files[name])
        took_s = self._world.timer_s() - begun
        rows, sizes = (dict.fromkeys(sorted(instances), 0) for _ in range(2))
        for run in runs:
            rows[run.instance] += run.live
            sizes[run.instance] += run.size_bytes
        return Fetched(rows, sizes, dict.fromkeys(sizes, took_s))

    def _copy(self, states: list[OperatorState], *, checked: bool) -> set[str]:
        """Copy the files that have no copy; `checked`: except damaged ones. Returns their names.

        Inlined files need no copy.
        """
        files = _files(states)
        self._kept &= files.keys()
        copied = set[str]()
        for name, stored in files.items():
            if name in self._kept or (checked and self._damage_of(stored) is not None):
                continue
            if stored.content is not None:  # the manifest holds it
                continue
            self._hand(self._checkpoint.runs, self.copies, name)
            copied.add(name)
        self._kept |= copied
        return copied

    def _mend(self, stored: StoredFile) -> None:
        damage = self._damage_of(stored)
        if damage is None:
            return
        try:
            verify(self.copies, stored, "its copy in the store")
        except (DamagedState, OSError) as error:
            raise DamagedState(f"{damage}; and {error}") from None
        self._hand(self.copies, self._checkpoint.runs, stored.name)

    def _hand(self, source: Storage, target: Storage, name: str) -> None:
        """Copy a file to another place; within the checkpoint, its bytes bypass this process."""
        if self.copies.folder == self._checkpoint.store.folder:
            below = len(self._checkpoint.storage.folder) + 1
            paths = (f"{side.folder[below:]}/{name}" for side in (source, target))
            self._checkpoint.storage.copy(*paths)
        else:
            target.put(name, memoryview(source.map(name)))

    def _damage_of(self, stored: StoredFile) -> str | None:
        """The damage of a run file, in words; None: it is what was sealed."""
        try:
            verify(self._checkpoint.runs, stored, "run file")
        except (DamagedState, OSError) as error:
            return str(error)
        return None

    def _is_whole(self, stored: StoredFile) -> bool:
        """Whether a complete copy exists; its content is checked when it is needed."""
        try:
            return bool(self.copies.map(stored.name).size == stored.size_bytes)
        except OSError:
            return False


def _files(states: Iterable[OperatorState]) -> dict[str, StoredFile]:
    """The run files of all operators, by name."""
    return {name: stored for state in states for name, stored in state.shelves.files.items()}


def runs_of(state: OperatorState) -> Iterable[Run]:
    """The runs of an operator, on all shelves."""
    return chain.from_iterable(runs.values() for runs in state.shelves.runs.values())
