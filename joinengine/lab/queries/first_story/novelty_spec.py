"""Novelty: the tuples that resemble no earlier tuple of their key.

Source: first story detection as in Zacheilas et al., DAIS 2016, listing 1 (the last 500 texts of a
key, threshold 0.2), after Petrović et al., NAACL 2010.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from joinengine.exchange.keying import Keying
from joinengine.model.aggregation import EventTime
from joinengine.model.conditions import Equi
from joinengine.model.keys import Side
from joinengine.model.query import Input

#: The output column: the greatest similarity to one of the tuples before.
SIMILARITY = "similarity"


@dataclass(frozen=True, slots=True)
class NoveltySpec:
    """Compare each tuple with the `history` tuples of its key that precede it by (time, u).

    `terms` is a column of lists of distinct integers; similarity is the cosine of two such sets.
    If a tuple's greatest similarity is at most `threshold`, it is a result, without its terms.
    """

    index: int
    key: str
    terms: str
    history: int
    threshold: float
    window: EventTime
    inputs: tuple[Input]
    schemas: tuple[pa.Schema]
    output_schema: pa.Schema
    instances: int

    @property
    def condition(self) -> Equi:
        """Layouts bring tuples with equal keys together."""
        return Equi((self.key,), (self.key,))

    @property
    def keying(self) -> Keying:
        """The one key column."""
        return Keying(((self.key,), (self.key,)))

    def keys(self, side: Side) -> tuple[str, ...]:
        """The columns by which tuples are routed."""
        return (self.key,)

    def times(self, side: Side) -> tuple[str, ...]:
        """The event time of tuples."""
        return self.window.times[0]

    def carried_schema(self, side: Side) -> pa.Schema:
        """All columns of the stream: tuples keep them until they are judged."""
        return self.schemas[0]
