"""Projections: from the columns of a source to those that are delivered, by filters and columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa

from joinengine.model.conditions import Predicate
from joinengine.model.skipped import Skipped
from joinengine.sources.places import Seen
from joinengine.sources.transforms import Step, named

#: In the metadata of a schema whose rows are no tuples: messages that have become none.
REFUSED = b"joinengine.refused"


def is_refused(batch: pa.RecordBatch) -> bool:
    """Whether a batch that a projection yields holds no tuples, but what the side output gets."""
    return REFUSED in (batch.schema.metadata or ())


@dataclass(frozen=True, slots=True)
class Projection(ABC):
    """The columns to deliver, and the steps to them.

    `whole`: the columns of the source, which `steps` may name; None: those of `schema`.
    """

    schema: pa.Schema
    steps: tuple[Step, ...] = ()
    whole: pa.Schema | None = None

    @abstractmethod
    def batches(
        self, groups: Any, skipped: list[Skipped] | None = None, seen: Seen | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The tuples of pieces that are read in one go.

        `skipped` gets what is left out, `seen` how far partitions have come. If `skipped` is given,
        messages that cannot be decoded may be among the batches (`is_refused`).
        """

    @property
    def columns(self) -> pa.Schema:
        """The columns of the source."""
        return self.schema if self.whole is None else self.whole

    @property
    def where(self) -> str | None:
        """The filters as one text; None: there are none."""
        texts = [step.text for step in self.steps if isinstance(step, Predicate)]
        return reduce(lambda whole, text: f"({whole}) and ({text})", texts) if texts else None

    @property
    def named(self) -> pa.Schema:
        """The columns that a further step may name."""
        return named(self.columns, self.steps)
