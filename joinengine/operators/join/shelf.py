"""The columns of the runs of a join's state, and how long each tuple is needed."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from joinengine.kernels.comparing import latest_time
from joinengine.kernels.probing import Ints
from joinengine.model.keys import Side
from joinengine.operators.join.spec import JoinSpec


@dataclass(frozen=True, slots=True)
class StateShelf:
    """The tuples of a join that wait for partners."""

    spec: JoinSpec

    @property
    def label(self) -> str:
        """The beginning of the names of its runs."""
        return f"run-{self.spec.index}"

    @property
    def span_us(self) -> int | None:
        """The span of the window; None: the full history."""
        return None if self.spec.window is None else self.spec.window.span_us

    def schema(self, side: Side) -> pa.Schema:
        """The columns with which a tuple of `side` waits for partners."""
        return self.spec.stored_schema(side)

    def times(self, side: Side, columns: pa.RecordBatch) -> Ints | None:
        """(n,) the event time of each row; None: there is none."""
        names = self.spec.times(side)
        return latest_time(columns, names) if names else None

    def last_needed(self, side: Side, times: Ints) -> Ints:
        """(n,) the last time at which a partner may come."""
        assert self.spec.window is not None
        return self.spec.window.last_partners(side, times)
