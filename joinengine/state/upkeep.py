"""The values that a keeper gets from its task, and the changes that it reports."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.probing import Ints
from joinengine.model.keys import Side
from joinengine.state.run import Run, RunsByIdent
from joinengine.state.run_file import Allowance, Page
from joinengine.world.storage import StoredFile


@dataclass(slots=True)
class Changes:
    """The changes of one task: runs that are new, have fewer live rows, or are gone."""

    runs: RunsByIdent = field(default_factory=dict)
    gone: set[tuple[str, int]] = field(default_factory=set)
    files: list[StoredFile] = field(default_factory=list)
    expired_rows: int = 0
    moved_rows: int = 0
    moved_bytes: int = 0
    #: lost copies that were copied again
    recovered_rows: int = 0

    def change(self, run: Run) -> None:
        """Note a run that is new or has fewer live rows."""
        if run.live:
            self.runs[run.ident] = run
        else:
            self.remove(run)

    def remove(self, run: Run) -> None:
        """Note that a run is gone."""
        self.runs.pop(run.ident, None)
        self.gone.add(run.ident)


class Shelf(Protocol):
    """One kind of tuples that a keeper keeps: their columns, and how long each is needed."""

    __slots__ = ()

    @property
    @abstractmethod
    def label(self) -> str:
        """The start of the names of its files."""

    @property
    @abstractmethod
    def span_us(self) -> int | None:
        """How long, in event time (us), a tuple is needed; None: for ever."""

    @abstractmethod
    def schema(self, side: Side) -> pa.Schema:
        """The columns of a side."""

    @abstractmethod
    def times(self, side: Side, columns: pa.RecordBatch) -> Ints | None:
        """(n,) the event time (us) of each tuple; None: they have none."""

    @abstractmethod
    def last_needed(self, side: Side, times: Ints) -> Ints:
        """(n,) the last watermark at which each tuple is needed."""

    @property
    def divides_sides(self) -> bool:
        """Whether each side has its own files: the tuples of one leave long before the other's."""
        return False

    def reduced(
        self, side: Side, page: Page, spines: Ints, watermark: float
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_]] | None:
        """The columns of a page, perhaps changed, and (n,) which tuples are needed; None: all are.

        A tuple may be dropped because of others on the page. The tuples are sorted by spine and
        word; `spines` (n,): the spine of each.
        """
        return None


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The facts of a task that its keeper needs.

    `generation`: of the driver. `merge_rows`: how many rows the keeper may merge. `gather_bytes`:
    the bytes of rows that may be copied at a time, when three copies of them are in memory.
    `nonce`: makes strings that no file name has had before. `apart`: each instance has its own run
    files, so that the instances of a task do not lose their state together. `allowance`: that of
    the task, for small files; None: there is none.
    """

    shelf: Shelf
    batch: int
    task: int
    generation: int
    version: int
    watermark: float
    merge_rows: int
    gather_bytes: int
    nonce: Callable[[], str]
    apart: bool = False
    allowance: Allowance | None = None
