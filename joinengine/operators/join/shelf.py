"""The shelf of a join's state: the columns of its runs, and how long each tuple is needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from joinengine.kernels.cancelling import added_up, alike
from joinengine.kernels.comparing import latest_time
from joinengine.kernels.probing import Ints
from joinengine.model.keys import PAIR, Side
from joinengine.operators.join.join_spec import JoinSpec
from joinengine.state.run_file import Page
from joinengine.state.upkeep import Shelf

#: If one side stays so many times as long as the other, each has its own files. Up to so many times
#: the bytes of the state would lie on disk, for one more file of a task and batch.
UNEVEN = 4


@dataclass(frozen=True, slots=True)
class StateShelf(Shelf):
    """The tuples of a join that wait for partners."""

    spec: JoinSpec

    @property
    @override
    def label(self) -> str:
        return f"run-{self.spec.index}"

    @property
    @override
    def span_us(self) -> int | None:
        """The span of the window (us); None: the full history."""
        return None if self.spec.window is None else self.spec.window.span_us

    @property
    @override
    def divides_sides(self) -> bool:
        """Whether the window holds one side much longer than the other."""
        window = self.spec.window
        if window is None:
            return False
        shorter, longer = sorted(max(window.last_partners(side, 0), 0) for side in PAIR)
        late = max(delay or 0 for delay in window.delays_us)
        return longer + late > UNEVEN * (shorter + late)

    @override
    def schema(self, side: Side) -> pa.Schema:
        return self.spec.stored_schema(side)

    @override
    def times(self, side: Side, columns: pa.RecordBatch) -> Ints | None:
        names = self.spec.times(side)
        return latest_time(columns, names) if names else None

    @override
    def reduced(
        self, side: Side, page: Page, spines: Ints, watermark: float
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_]] | None:
        """Replaces equal rows by one with the sum of their changes: they have the same partners.

        Equal rows have the same word, so they always move together, and each copy of a key may add
        up other rows.
        """
        change, names = self.spec.change_of(side), self.spec.cancel_by(side)
        if change is None or not names:
            return None
        groups = alike(page.columns.select(names), spines, page.words)
        kept, sums = added_up(groups, page.columns.column(change).to_numpy())
        if kept.all():
            return None
        place = page.columns.schema.get_field_index(change)
        return page.columns.set_column(place, change, pa.array(sums)), kept

    @override
    def last_needed(self, side: Side, times: Ints) -> Ints:
        """(n,) the last event time (us) that a partner may have."""
        assert self.spec.window is not None
        return self.spec.window.last_partners(side, times)
