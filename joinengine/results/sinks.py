"""Sinks: how the results of a committed batch become visible.

Tasks stage result files; the manifest names those that count; a sink then delivers them.
Delivering a batch again changes nothing: the Parquet sink renames files, the other sinks are given
the batch number (joinengine.spark.query.frame_sinks).

Law: before the manifest is written no result is visible; after it all results become visible, even
if the driver is killed in between. If a driver delivers a batch that another driver has delivered
since, nothing changes.
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


#: The note of a sink that hands batches on: the last one.
_HANDED_OVER = "handed-over"


class Sink(ABC):
    """Where results go; `generation` is always that of the driver that calls.

    A sink that says nothing else shows each batch by itself, and keeps nothing open.
    """

    @property
    def every(self) -> int:
        """Of how many batches the results become visible together."""
        return 1

    @property
    def due_s(self) -> float | None:
        """When results that are held back are shown without new ones, in seconds since the epoch.

        None: they wait for new ones.
        """
        return None

    @property
    @abstractmethod
    def staging(self) -> Storage | None:
        """Where results wait until they are delivered; None: they do not wait."""

    def check_place(self) -> None:
        """Raise DamagedState if the place of the results is no longer the query's."""

    def begin(self, batch: int, generation: int) -> None:
        """Refuse to go on behind `batch`, the last of the checkpoint, if later ones are delivered.

        A driver asks when it has taken over, before it delivers. Raises DamagedState: the
        checkpoint is an older copy, or has lost manifests.
        """

    @abstractmethod
    def target(self, generation: int) -> SinkTarget:
        """Where tasks of the last operator put results."""

    @abstractmethod
    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        """Make the staged results of a committed batch visible; repeating it changes nothing."""

    def check_held(self, held: Held, checkpoint: Checkpoint) -> None:
        """Raise CheckpointMismatch if results are held back that this sink cannot show.

        Only a sink that holds results back can show them.
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
        """Show results that were held back, if they are those of `every` batches, or `whole`.

        Returns what is still held back; repeating it changes nothing.
        """
        self.check_held(held, checkpoint)
        return ()

    def clean(self, files: Sequence[StoredFile], makers: range) -> None:
        """Remove staged files of drivers whose generation is among `makers`, except `files`.

        They are results of delivered batches, and of attempts that were killed or lost.
        """
        if self.staging is not None:
            remove_unnamed(self.staging, [stored.name for stored in files], makers)

    def close(self) -> None:
        """Give back what deliveries have taken, when the query ends; one may follow. No errors."""


class AtLeastOnce(Sink):
    """A sink that hands each batch on to others, and then notes that.

    A batch whose note is there is not handed on again, whoever starts; it is if the driver is
    killed between the two. `results`: the folder of the checkpoint where results wait.
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
    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        if not is_handed_over(self.results, batch, files):
            self.hand_over(batch, files)
            note_handed_over(self.results, batch, files)


def is_handed_over(results: Storage, batch: int, files: Sequence[StoredFile]) -> bool:
    """Whether the note in the folder where results wait is of this batch and these files.

    A number alone could be that of another batch, and what it names would be lost.
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
    """Refuse a batch that was staged where another sink had it."""
    if any(not results.exists(stored.name) for stored in files):
        raise CheckpointMismatch(
            f"{results.folder} lacks results of the last batch, which were staged for the sink "
            "that the checkpoint had before; go on with that sink, or start with a new "
            "checkpointLocation"
        )


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

    `query` keeps the staging and the files of several queries into one folder apart. `marked`: a
    marker says that the folder is the query's; none of its results go there once that is gone.
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
        """Where route tasks and operator tasks write refused tuples."""
        return self.storage.at(f"{STAGING}/{self.query}")

    def deliver(self, batch: int, files: Sequence[StoredFile]) -> None:
        """Rename the staged files; a file without a staged copy must be visible already."""
        for stored in files:
            tag, _, rest = stored.name.partition("-")
            label, _, name = rest.rpartition("-")
            staged = f"{STAGING}/{self.query}/{stored.name}"
            show(self.storage, staged, f"{label}/part-{batch:08d}-{tag}-{name}", batch)

    def stage_skipped(self, name: str, batch: int, skipped: Sequence[Skipped]) -> StoredFile:
        """Stage the files that sources have skipped in a batch; visible in the folder `skipped`."""
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
    """The file in an output folder that says that the query has results there."""
    return f"{STAGING}/{query}.json"


def check_marker(output: Storage, query: str) -> None:
    """Refuse a folder that was deleted or emptied, or that another query has made its own."""
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
        if not output.exists(visible):
            raise DamagedState(
                f"result file {output.folder}/{visible} of committed batch {batch} is missing, "
                "and so is its staged copy; restore it from a copy, or go on with another sink if "
                "the batch was delivered there. If it was deleted on purpose, start with a new "
                "checkpointLocation"
            ) from None
