"""Sinks: how the results of a committed batch become visible.

Tasks stage result files; the manifest names those that count; a sink then delivers them.
Delivering a batch again changes nothing: the Parquet sink renames files, the other sinks are given
the batch number (joinengine.spark.sinks).

Law: before the manifest is written no result is visible; after it all results become visible, even
if the driver is killed in between. If a driver delivers a batch that another driver has delivered
since, nothing changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from joinengine.exchange.results import Discard, Target, ToParquet
from joinengine.model.errors import DamagedState
from joinengine.state.storage import Checkpoint, StoredFile, remove_unnamed, sync_folder

#: The staging folder in an output folder; readers skip names that begin with an underscore.
STAGING = "_joinengine"


class Sink(Protocol):
    """Where results go; `generation` is always that of the driver that calls."""

    def target(self, generation: int) -> Target:
        """Where tasks of the last operator put results."""

    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        """Make the staged results of a committed batch visible; repeating it changes nothing."""

    def clean(self, files: Sequence[StoredFile], generation: int) -> None:
        """Remove staged files of drivers up to `generation`, except `files`."""


class DiscardSink:
    """Results are made and dropped."""

    def target(self, generation: int) -> Target:
        """Nowhere."""
        return Discard()

    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        """Nothing to see."""

    def clean(self, files: Sequence[StoredFile], generation: int) -> None:
        """Nothing is staged."""


#: (checkpoint, id of the query) -> the sink of the query.
SinkFactory = Callable[[Checkpoint, str], Sink]


@dataclass
class ParquetSink:
    """A folder of Parquet files; exactly-once by renaming staged files after the commit.

    `query` keeps the staging of several queries into one folder apart.
    """

    folder: Path
    query: str
    fsync: bool = False

    @property
    def staging(self) -> Path:
        """Where tasks of the last operator write results."""
        return self.folder / STAGING / self.query

    def target(self, generation: int) -> Target:
        """Into the staging folder."""
        self.staging.mkdir(parents=True, exist_ok=True)
        return ToParquet(str(self.staging), generation, self.fsync)

    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        """Rename the staged files; a file without a staged copy must be visible already."""
        for stored in files:
            show(self.staging / stored.name, self.folder / f"part-{batch:08d}-{stored.name}", batch)
        if self.fsync and files:
            sync_folder(self.folder)

    def clean(self, files: Sequence[StoredFile], generation: int) -> None:
        """Remove staged files of attempts that were killed or lost."""
        remove_unnamed(self.staging, [stored.name for stored in files], generation)


@dataclass
class SideOutput:
    """Refused tuples as Parquet below `folder`, in one folder for each side of an operator.

    Each is there exactly once, as results of a `ParquetSink` are.
    """

    folder: Path
    query: str

    @property
    def staging(self) -> Path:
        """Where route tasks and operator tasks write refused tuples."""
        return self.folder / STAGING / self.query

    def deliver(self, batch: int, files: Sequence[StoredFile]) -> None:
        """Rename the staged files; a file without a staged copy must be visible already."""
        for stored in files:
            tag, _, rest = stored.name.partition("-")
            label, _, name = rest.rpartition("-")
            visible = self.folder / label / f"part-{batch:08d}-{tag}-{name}"
            visible.parent.mkdir(parents=True, exist_ok=True)
            show(self.staging / stored.name, visible, batch)

    def prepare(self) -> None:
        """Make the staging folder."""
        self.staging.mkdir(parents=True, exist_ok=True)

    def clean(self, files: Sequence[StoredFile], generation: int) -> None:
        """Remove staged files of attempts that were killed or lost."""
        remove_unnamed(self.staging, [stored.name for stored in files], generation)


def show(staged: Path, visible: Path, batch: int) -> None:
    """Rename a staged file, unless an earlier delivery has renamed it."""
    try:
        os.replace(staged, visible)
    except FileNotFoundError:
        if not visible.exists():
            raise DamagedState(
                f"result file {visible} of committed batch {batch} is missing, and so is its "
                f"staged copy; restore it from a copy"
            ) from None
