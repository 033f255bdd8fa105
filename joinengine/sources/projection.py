"""Projections: turn the columns of a source into those of a stream, by filters and computation."""

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

#: The metadata key of a schema whose rows are refused messages, not tuples.
REFUSED = b"joinengine.refused"


def is_refused(batch: pa.RecordBatch) -> bool:
    """Whether a batch of a projection holds refused messages for the side output, not tuples."""
    return REFUSED in (batch.schema.metadata or ())


@dataclass(frozen=True, slots=True)
class Projection(ABC):
    """The columns of a stream (`schema`), and the steps that compute them.

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

        `skipped` gets skipped files and messages, `seen` how far partitions have come. If `skipped`
        is given, batches of refused messages may be among the batches (`is_refused`).
        """

    @property
    def columns(self) -> pa.Schema:
        """The columns of the source."""
        return self.schema if self.whole is None else self.whole

    @property
    def where(self) -> str | None:
        """All filters as one text; None: there are none."""
        texts = [step.text for step in self.steps if isinstance(step, Predicate)]
        return reduce(lambda whole, text: f"({whole}) and ({text})", texts) if texts else None

    @property
    def named(self) -> pa.Schema:
        """The columns that a further step may name."""
        return named(self.columns, self.steps)
