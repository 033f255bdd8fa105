"""The jobs that the systems run, and the figures that each reports."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.peers.stream import PART
from joinengine.lab.tpch.stream import SPAN_US

#: A band join matches orders and line items with |l_orderkey - o_orderkey| <= REACH.
REACH = 1


class Job(NamedTuple):
    """Orders join lineitem within a part of the stream; all is as JSON has it.

    `folder`: of the stream. `is_band`: keys match that are near, not equal. `how`: "inner" or
    "full". `queries`: how often one session does it, one query after another. `partitions`: of the
    state of Spark's join.
    """

    folder: str
    part: float = PART
    is_band: bool = False
    how: str = "inner"
    queries: int = 1
    partitions: int = 8

    @property
    def upper_us(self) -> int:
        """How long after its order a line item may come, in microseconds."""
        return round(self.part * SPAN_US)


class Batch(NamedTuple):
    """Input rows of a batch, and the seconds of its whole trigger."""

    rows: int
    seconds: float


class Outcome(NamedTuple):
    """One query, in seconds by the clock.

    `start_s`: the call of `start()`. `first_s`: from its return to the end of the first batch.
    `whole_s`: from the call to the end of the query.
    `split`: where the time of the batches went after WARM_BATCHES, as parts of it.
    """

    start_s: float
    first_s: float
    whole_s: float
    batches: list[Batch]
    results: int
    split: dict[str, float]

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Outcome:
        """From the values of `_asdict`, as JSON has them."""
        return cls(**plain | {"batches": [Batch(*batch) for batch in plain["batches"]]})

    def after(self, warm: int) -> list[Batch]:
        """The batches with rows, without the first `warm`; of a query of one batch, this."""
        return [batch for batch in self.batches[warm:] or self.batches if batch.rows]
