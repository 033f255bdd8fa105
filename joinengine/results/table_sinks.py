"""Delivers results to tables whose log names their files (Delta, Iceberg), one commit at a time.

Tasks stage files below the folder of the table, where readers of the table do not look. A delivery
renames them into the table's folder, under names made from batch and query, and then one commit of
the driver adds them together with the token. So no byte is copied, a repeated delivery finds the
files, and files of lost attempts are removed from the staging folder.

Law: that of `joinengine.results.token_sinks`. A file is in the table's log or in staging, except
between the renames and the commit. The checkpoint notes which table it writes: a new table of the
same name has no token, and would get only the last batches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from joinengine.model.errors import CheckpointMismatch, JoinEngineError
from joinengine.model.query import CHANGE
from joinengine.results.file_lists import content_of, listed
from joinengine.results.merging import Merge, together
from joinengine.results.showings import Held, still_held
from joinengine.results.sinks import STAGING, show
from joinengine.results.staging import visible_name
from joinengine.results.targets import SinkTarget, ToParquet
from joinengine.results.token_sinks import NOTHING, OutcomeUnknown, Target, TokenSink
from joinengine.state.checkpoint import Checkpoint, read_note, write_note
from joinengine.world.storage import Storage, StoredFile, verify

#: The note of a checkpoint: the table that it writes.
NOTE = "table.json"


class TableTarget(Target):
    """A table to which one query adds files.

    `kind`: the format, as users name it. `query`: its id; `schema`: of its results.
    """

    kind: ClassVar[str]
    query: str
    schema: pa.Schema

    @property
    @abstractmethod
    def files(self) -> Storage:
        """The folder of its data files."""

    @abstractmethod
    def identity(self) -> str | None:
        """An id that tells the table from others of the same name; None: there is no table yet."""

    @abstractmethod
    def make(self) -> str:
        """Make the table if it is missing; its identity."""

    @override
    def may_hold(self) -> bool:
        """As in Target: True if the table exists."""
        if self.identity() is None:
            return False
        self.make()  # fixes the identity of the table
        return True


@dataclass
class TableSink(TokenSink):
    """A `TokenSink` whose results wait below the folder of the table.

    `merge`: merges the files of gathered batches up to the target size; None: no merging.
    """

    to: TableTarget
    fsync: bool = False
    merge: Merge | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._noted = _noted(self.checkpoint)
        self._is_made = False
        if self._noted is not None and self._noted[1] != self.to.identity():
            raise CheckpointMismatch(
                f"checkpoint {self.checkpoint.location} has delivered its results to another table "
                f"than {self.to.name}: to {self._noted[0]}, which may have been dropped and made "
                "anew since; use that table, or start with a new checkpointLocation"
            )

    @property
    @override
    def staging(self) -> Storage:
        return staging_of(self.to)

    @override
    def target(self, generation: int) -> SinkTarget:
        """Results wait below the table's folder; a missing table is created."""
        self._make()
        self.staging.make()
        return ToParquet(self.staging.folder, generation, self.cutting)

    @override
    def check_last(self, batch: int, files: Sequence[StoredFile]) -> None:
        if self._noted is None and not all(self._is_there(batch, file) for file in files):
            self._check_taken(files)

    @override
    def check_held(self, held: Held, checkpoint: Checkpoint) -> None:
        """Refuse held-back results that are neither staged here nor renamed already."""
        held = still_held(checkpoint, held)
        through, _ = self._marked(held) or (NOTHING, ())
        for batch, files in held:
            if batch > through and not all(self._is_there(batch, file) for file in files):
                super().check_held(held, checkpoint)

    @override
    def _deliver(self, batches: Held, generation: int) -> None:
        if self._noted is None:
            self._take_over(batches)
        self._make()
        super()._deliver(batches, generation)

    @override
    def _commit(self, batches: Held, generation: int) -> None:
        """Merge the files of several batches before the commit, exactly once.

        A mark says which merged files count. So the next driver commits the same files that a
        killed driver may have renamed into the table's folder, before later batches. All batches
        stay in the list, since the target looks at the first.
        """
        marked = self._marked(batches) or self._merged(batches, generation)
        if marked is None:
            self.to.commit(batches)
            return
        through, files = marked
        empty = tuple((batch, ()) for batch, _ in batches if batch < through)
        self.to.commit((*empty, (through, files)))
        storage = self.checkpoint.storage  # a driver that was killed here has left its mark
        mark = _mark(batches[0][0], through)
        storage.delete(*(n for n in storage.names() if n.startswith("merged-") and n <= mark))
        if through < batches[-1][0]:
            self._deliver_once(batches, generation)

    def _marked(self, batches: Held) -> tuple[int, tuple[StoredFile, ...]] | None:
        """The last of the first batches that a mark says are merged, and the merged files.

        None: there is no mark, or only one of a driver that was shut out before it renamed a file.
        """
        if len(batches) < 2:
            return None
        marks = self.checkpoint.storage
        there = set(marks.names())
        for through, _ in reversed(batches):
            mark = _mark(batches[0][0], through)
            if mark in there:
                files = tuple(listed(marks, mark))
                if files and all(self._is_there(through, file) for file in files):
                    return through, files
        return None

    def _is_there(self, batch: int, file: StoredFile) -> bool:
        """Whether a file is staged, or has become visible as one of `batch`."""
        visible = name_of(batch, self.to.query, file.name)
        return self.staging.exists(file.name) or self.to.files.exists(visible)

    def _merged(self, batches: Held, generation: int) -> tuple[int, tuple[StoredFile, ...]] | None:
        """Merge the files of batches, and mark it; as `_marked`. None: they are not merged."""
        staged = [file for _, files in batches for file in files]
        # A delivery without merging may have begun to rename them.
        if self.merge is None or len(batches) < 2 or not self.staging.exists(staged[0].name):
            return None
        merged = together(staged, self.staging, generation, self.cutting, self.fsync, self.merge)
        through = batches[-1][0]
        mark, marks = _mark(batches[0][0], through), self.checkpoint.storage
        marks.create(mark, content_of(mark, merged))
        self._check_alone(through, generation)  # else a newer driver may have removed it
        return through, tuple(listed(marks, mark))

    def _take_over(self, batches: Held) -> None:
        """Copy the results that were staged for the checkpoint's previous sink.

        That sink may have delivered these results already, since it delivers at least once.
        """
        before = self.checkpoint.results
        left = [file for _, files in batches for file in files]
        self._check_taken(left)
        for stored in left:
            self.staging.make()
            self.staging.put(stored.name, verify(before, stored, "result file"))

    def _check_taken(self, files: Sequence[StoredFile]) -> None:
        """Raise CheckpointMismatch if results of the previous sink cannot be taken over."""
        before = self.checkpoint.results
        for stored in files:
            if self.cutting.partition_by or not before.exists(stored.name):
                raise CheckpointMismatch(
                    f"checkpoint {self.checkpoint.location} made the results of its last batch for "
                    f"another sink, so {self.to.name} would lack them; go on with that sink, or "
                    "start with a new checkpointLocation"
                )

    def _make(self) -> None:
        """Create a missing table, and note the table's identity."""
        if self._is_made:
            return
        identity = self.to.make()
        if self._noted is None:
            write_note(self.checkpoint, NOTE, {"table": self.to.name, "id": identity})
            self._noted = self.to.name, identity
        check_same(self.to.name, self._noted[1], identity)
        self._is_made = True


def _mark(first: int, last: int) -> str:
    """The file that says by which files these batches are merged."""
    return f"merged-{first:08d}-{last:08d}.json"


def name_of(batch: int, query: str, staged: str) -> str:
    """The name of a staged file in the folder of its table, whose log knows its partition.

    >>> name_of(7, "q", "g1-x/day=1/2.parquet")
    'part-00000007-q-g1-x-2.parquet'
    """
    return visible_name(batch, query, staged).rpartition("/")[2]


def staging_of(target: TableTarget) -> Storage:
    """The folder in which results for a table wait."""
    return target.files.at(f"{STAGING}/{target.query}")


def changes_of(target: TableTarget, batches: Held) -> pa.Table:
    """The staged changes of batches; the files stay in staging."""
    staging, schema = staging_of(target), target.schema.append(pa.field(CHANGE, pa.int64()))
    contents = (verify(staging, file, "result file") for _, files in batches for file in files)
    return pa.concat_tables(
        [pq.read_table(pa.BufferReader(content)).cast(schema) for content in contents]
    )


def shown(target: TableTarget, batches: Held) -> list[tuple[str, StoredFile]]:
    """Rename the staged files of batches into the folder of the table: (name there, the file).

    Raises DamagedState if one is missing that no earlier delivery has renamed.
    """
    files_shown = list[tuple[str, StoredFile]]()
    for batch, files in batches:
        for stored in files:
            name = name_of(batch, target.query, stored.name)
            show(target.files, f"{STAGING}/{target.query}/{stored.name}", name, batch)
            files_shown.append((name, stored))
    return files_shown


def check_same(name: str, before: str | None, now: str | None) -> None:
    """Raise an error if a table was replaced by another one of the same name."""
    if before != now:
        raise JoinEngineError(
            f"table {name} was dropped or made anew while the query delivered to it; what it had "
            "is not delivered again. Restore the table, or start with a new checkpointLocation"
        )


def outcome_unknown(target: TableTarget, batch: int, reason: str) -> OutcomeUnknown:
    """The error for a commit whose outcome is unknown."""
    return OutcomeUnknown(
        f"{target.kind}: {target.name} did not take batch {batch} ({reason}); nothing is lost: "
        "mend the cause, and start the query again"
    )


def key_conflict(target: TableTarget, batch: int, reason: JoinEngineError) -> JoinEngineError:
    """The error for changes that a table by key cannot take."""
    return JoinEngineError(
        f"{target.kind}: {target.name} does not take batch {batch}: {reason}; nothing of it is "
        "there"
    )


def partitions_changed(target: TableTarget, staged: str) -> JoinEngineError:
    """The error for a staged file whose folders are not the partitions of the table."""
    return JoinEngineError(
        f"{target.kind}: the partitions of table {target.name} have changed since results were "
        f"written for batch {staged}, or a value cannot name one; give the table its former "
        "partitioning, and start the query again: nothing is lost"
    )


def null_refused(target: TableTarget, column: str) -> JoinEngineError:
    """The error for NULL in a column that must have values."""
    return JoinEngineError(
        f"column {column} of table {target.name} is NOT NULL, and a result has NULL there; allow "
        "NULL in the table, and start the query again: nothing is lost"
    )


def _noted(checkpoint: Checkpoint) -> tuple[str, str] | None:
    """The name and identity of the table that the checkpoint writes; None: none is noted yet."""
    note = read_note(checkpoint, NOTE, "which names the table of the results", "table", "id")
    return None if note is None else (str(note["table"]), str(note["id"]))
