"""What watchers keep (`joinengine.operators.join.watchers`): its columns, and how long it stays.

Why: a tuple of a semi join is of no use to its watcher once it has been emitted, nor are its marks.
Under a window both go when the entry closes. Without a window it never closes, so merges leave out
what is not `needed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from joinengine.kernels.hashing import Words, fixed_width
from joinengine.kernels.probing import Ints
from joinengine.model.columns import name_beside
from joinengine.model.keys import Side
from joinengine.operators.join.join_spec import JoinSpec
from joinengine.state.run_file import Page
from joinengine.state.upkeep import Shelf

#: The last columns of an entry: its number and when it closes, if no column has these names.
ENTRY, CLOSES = "__entry", "__closes"


@dataclass(frozen=True, slots=True)
class WatchShelf(Shelf):
    """The runs of watchers: marks or, if `tuples`, entries with their tuples."""

    spec: JoinSpec
    label: str = field()  # no default: it would be the protocol's property
    tuples: bool
    #: (n,) numbers -> (n,) which entries or marks are needed until they close; None: all are
    needed: Callable[[Words], NDArray[np.bool_]] | None = None

    @property
    @override
    def span_us(self) -> int | None:
        """Entries live about as long as their tuples may find partners."""
        return None if self.spec.window is None else self.spec.window.span_us

    @override
    def schema(self, side: Side) -> pa.Schema:
        """The closing time; if `tuples`, after the tuple's columns and the entry's number."""
        if not self.tuples:
            return pa.schema([(CLOSES, pa.int64())])
        fields = list(self.spec.carried_schema(side))[:-1]
        names = [field.name for field in fields]
        entry_fields = [
            (name_beside(names, ENTRY), pa.uint64()),
            (name_beside(names, CLOSES), pa.int64()),
        ]
        return pa.schema([*fields, *(pa.field(name, kind) for name, kind in entry_fields)])

    @override
    def times(self, side: Side, columns: pa.RecordBatch) -> Ints:
        """(n,) when each entry closes."""
        return closing_of(columns)

    @override
    def last_needed(self, side: Side, times: Ints) -> Ints:
        """(n,) the closing times: an entry is needed until it closes."""
        return times

    @override
    def reduced(
        self, side: Side, page: Page, spines: Ints, watermark: float
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_]] | None:
        """Drops what a semi join has no use for any more; its words are numbers."""
        if self.needed is None:
            return None
        kept = self.needed(page.words)
        return None if kept.all() else (page.columns, kept)


def closing_of(columns: pa.RecordBatch) -> Ints:
    """(n,) when each entry or mark closes: the last column."""
    return fixed_width(columns.column(columns.num_columns - 1), np.dtype(np.int64))
