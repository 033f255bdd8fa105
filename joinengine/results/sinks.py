"""Sinks: make the results of a committed batch visible.

Tasks stage result files; the manifest names those that count; a sink then delivers them.
Delivering a batch again changes nothing: the Parquet sink renames files, and other sinks get the
batch number (`joinengine.spark.query.frame_sinks`).

Law: before the manifest is written, no result is visible; after that, all results become visible,
even if the driver is killed in between. If a driver delivers a batch that another driver has
delivered, nothing changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from typing_extensions import override

from joinengine.model.errors import CheckpointMismatch, DamagedState
from joinengine.model.skipped import Skipped
from joinengine.results.showings import Held, still_held
from joinengine.results.staging import PLAIN, Cutting, ParquetFile, visible_name
from joinengine.results.targets import Discard, SinkTarget, ToParquet
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.storage import Storage, StoredFile, remove_unnamed

#: The staging folder in an output folder; readers skip names that begin with an underscore.
STAGING = "_joinengine"
_SKIPPED = pa.schema([("file", pa.string()), ("reason", pa.string()), ("batch", pa.int64())])


#: The note of a sink that hands batches on: the last batch that it has handed on.
_HANDED_OVER = "handed-over"


class Sink(ABC):
    """Makes results visible; `generation` is always that of the calling driver.

    By default, a sink shows each batch by itself, and keeps nothing open.
    """

    @property
    def every(self) -> int:
        """The number of batches whose results become visible together."""
        return 1

    @property
    def due_s(self) -> float | None:
        """When held-back results are shown without new ones, in seconds since the epoch.

        None: they wait for new results.
        """
        return None

    @property
    @abstractmethod
    def staging(self) -> Storage | None:
        """The folder in which results wait for delivery; None: they do not wait."""

    def check_place(self) -> None:
        """Raise DamagedState if the place of the results is no longer the query's."""

    def begin(self, batch: int, generation: int) -> None:
        """Raise DamagedState if later batches than `batch`, the checkpoint's last, are delivered.

        Then the checkpoint is an older copy, or has lost manifests. A driver calls this after its
        takeover, before it delivers.
        """

    @abstractmethod
    def target(self, generation: int) -> SinkTarget:
        """The target into which tasks of the last operator put results."""

    @abstractmethod
    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        """Make the staged results of a committed batch visible; repeating it changes nothing."""

    def check_last(self, batch: int, files: Sequence[StoredFile]) -> None:
        """Raise the error of `deliver` if the results of the last batch wait for another sink.

        Changes nothing, so that a start is refused before it stops a running query. That query may
        be delivering these results: look for staged files first, and then for delivered ones.
        """

    def check_held(self, held: Held, checkpoint: Checkpoint) -> None:
        """Raise CheckpointMismatch if this sink cannot show the results that are held back.

        By default, a sink can show none: only a sink that holds results back can.
        """
        left = [batch for batch, files in still_held(checkpoint, held) if files]
        if left:
            raise CheckpointMismatch(
                f"checkpoint {checkpoint.location} holds back results of the batches {left[0]} to "
                f"{left[-1]}; start the query once with the format and the path that it had, and "
                "no transform, to show these results, and then with this sink"
            )

    def deliver_held(
        self, held: Held, checkpoint: Checkpoint, generation: int, *, whole: bool
    ) -> Held:
        """Show held-back results, if they are those of `every` batches, or `whole`.

        Returns the results that are still held back. Repeating it changes nothing.
        """
        self.check_held(held, checkpoint)
        return ()

    def clean(self, files: Sequence[StoredFile], makers: range) -> None:
        """Remove the staged files, except `files`, of drivers whose generation is among `makers`.

        They are results of delivered batches, and of attempts that were killed or lost.
        """
        if self.staging is not None:
            remove_unnamed(self.staging, [stored.name for stored in files], makers)

    def close(self) -> None:
        """At the end of the query, close what deliveries have opened. Raises no errors.

        Another delivery may follow.
        """


class AtLeastOnce(Sink):
    """A sink that hands each batch on to other software, and then notes the batch.

    A batch with a note is not handed on again, at any later start. If the driver is killed between
    the two, the batch is handed on again. `results`: the checkpoint's folder of waiting results.
    """

    results: Storage

    @property
    @override
    def staging(self) -> Storage:
        return self.results

    @abstractmethod
    def hand_over(self, batch: int, files: Sequence[StoredFile]) -> None:
        """Hand a batch on."""

    @override
    def check_last(self, batch: int, files: Sequence[StoredFile]) -> None:
        check_unless_handed_over(self.results, batch, files)

    @override
    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        if not is_handed_over(self.results, batch, files):
            self.hand_over(batch, files)
            note_handed_over(self.results, batch, files)


def is_handed_over(results: Storage, batch: int, files: Sequence[StoredFile]) -> bool:
    """Whether the note in the folder of waiting results is about this batch and these files.

    The number alone could belong to another batch, whose results would then be lost.
    """
    try:
        return results.get(_HANDED_OVER) == _note_of(batch, files)
    except FileNotFoundError:
        return False


def note_handed_over(results: Storage, batch: int, files: Sequence[StoredFile]) -> None:
    """Note that a batch was handed on."""
    results.put(_HANDED_OVER, _note_of(batch, files))


def _note_of(batch: int, files: Sequence[StoredFile]) -> bytes:
    return "\n".join([str(batch), *(file.name for file in files)]).encode()


def check_staged(results: Storage, files: Sequence[StoredFile]) -> None:
    """Raise CheckpointMismatch if a batch was staged for another sink, in another folder."""
    if any(not results.exists(stored.name) for stored in files):
        raise CheckpointMismatch(
            f"{results.folder} lacks results of the last batch, which were staged for the sink "
            "that the checkpoint had before; go on with that sink, or start with a new "
            "checkpointLocation"
        )


def check_unless_handed_over(results: Storage, batch: int, files: Sequence[StoredFile]) -> None:
    """As `check_staged`, unless the batch was handed on."""
    try:
        check_staged(results, files)
    except CheckpointMismatch:
        if not is_handed_over(results, batch, files):
            raise


class DiscardSink(Sink):
    """Results are made and dropped."""

    staging = None

    @override
    def target(self, generation: int) -> SinkTarget:
        return Discard()

    @override
    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        pass


#: (checkpoint, id of the query) -> the sink of the query.
SinkFactory = Callable[[Checkpoint, str], Sink]


@dataclass
class ParquetSink(Sink):
    """A folder of Parquet files; exactly-once by renaming staged files after the commit.

    `query`: the id that separates the files of several queries in one folder. `marked`: a marker
    says that the folder is the query's; once the marker is gone, no more results go there.
    """

    storage: Storage
    query: str
    fsync: bool = False
    cutting: Cutting = PLAIN
    marked: bool = field(default=False, kw_only=True)

    @override
    def check_place(self) -> None:
        if self.marked:
            check_marker(self.storage, self.query)

    @property
    @override
    def staging(self) -> Storage:
        return self.storage.at(f"{STAGING}/{self.query}")

    @override
    def target(self, generation: int) -> SinkTarget:
        self.staging.make()
        return ToParquet(self.staging.folder, generation, self.cutting)

    @override
    def check_last(self, batch: int, files: Sequence[StoredFile]) -> None:
        for stored in files if self.marked else ():
            if not self.staging.exists(stored.name):
                check_shown(self.storage, visible_name(batch, self.query, stored.name), batch)

    @override
    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        """Rename the staged files; a file without a staged copy must be visible already."""
        for stored in files:
            staged = f"{STAGING}/{self.query}/{stored.name}"
            show(self.storage, staged, visible_name(batch, self.query, stored.name), batch)


@dataclass
class SideOutput:
    """Refused tuples as Parquet below `folder`, in one folder for each side of an operator.

    Each is there exactly once, as results of a `ParquetSink` are.
    """

    storage: Storage
    query: str

    @property
    def staging(self) -> Storage:
        """The folder into which tasks write refused tuples."""
        return self.storage.at(f"{STAGING}/{self.query}")

    def deliver(self, batch: int, files: Sequence[StoredFile]) -> None:
        """Rename the staged files; a file without a staged copy must be visible already."""
        for stored in files:
            tag, _, rest = stored.name.partition("-")
            label, _, name = rest.rpartition("-")
            staged = f"{STAGING}/{self.query}/{stored.name}"
            show(self.storage, staged, f"{label}/part-{batch:08d}-{tag}-{name}", batch)

    def stage_skipped(self, name: str, batch: int, skipped: Sequence[Skipped]) -> StoredFile:
        """Stage the list of the files that a batch has skipped, for the folder `skipped`."""
        columns = [*zip(*skipped, strict=True), [batch] * len(skipped)]
        rows = pa.RecordBatch.from_arrays(
            [pa.array(values, f.type) for values, f in zip(columns, _SKIPPED, strict=True)],
            schema=_SKIPPED,
        )
        file = ParquetFile(self.staging, name)
        file.add(rows)
        staged = file.close()
        assert staged is not None
        return staged

    def prepare(self) -> None:
        """Make the staging folder."""
        self.staging.make()

    def clean(self, files: Sequence[StoredFile], makers: range) -> None:
        """Remove staged files of attempts that were killed or lost."""
        remove_unnamed(self.staging, [stored.name for stored in files], makers)


def marker_of(query: str) -> str:
    """The name of a query's marker in an output folder."""
    return f"{STAGING}/{query}.json"


def check_marker(output: Storage, query: str) -> None:
    """Raise DamagedState if a folder was deleted or emptied, or belongs to another query now."""
    if not output.exists(marker_of(query)):
        raise DamagedState(
            f"{output.folder} no longer has the marker of this query: the folder was deleted or "
            "emptied, or a start with overwrite has made it another query's. No result has gone "
            "there since; restore the folder from a copy, or start with a new checkpointLocation "
            "and another folder"
        )


def show(output: Storage, staged: str, visible: str, batch: int) -> None:
    """Rename a staged file of `output`, unless an earlier delivery has renamed it."""
    try:
        output.move(staged, visible)
    except FileNotFoundError:
        check_shown(output, visible, batch)


def check_shown(output: Storage, visible: str, batch: int) -> None:
    """Raise DamagedState if a result file, which has no staged copy, was not renamed either."""
    if not output.exists(visible):
        raise DamagedState(
            f"result file {output.folder}/{visible} of committed batch {batch} is missing, "
            "and so is its staged copy; restore it from a copy, or go on with another sink if "
            "the batch was delivered there. If it was deleted on purpose, start with a new "
            "checkpointLocation"
        )
