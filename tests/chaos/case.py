"""What follows from the seed of a run before anything starts."""

from __future__ import annotations

import random
from dataclasses import dataclass

from joinengine.layouts import LAYOUTS
from tests.laws.cases import CHOICES

#: Seeds, modulo 3, whose state lies in an object store.
STORED = (1, 2)
#: Seeds, modulo 6, whose state is uploaded behind.
DURABLE = (2,)
#: Half the window of event time, and what may come late, in seconds.
REACH_S, DELAY_S = 3, 30
#: Tuples of each side in a batch.
ROWS = 1000


@dataclass(frozen=True)
class Case:
    """A query on a cluster, and where its state and results lie."""

    seed: int
    layout: str
    how: str
    instances: int
    exchange: str
    executors: int
    stored: bool
    durability: str

    @classmethod
    def of(cls, seed):
        rng = random.Random(f"chaos {seed}")
        durable = seed % 6 in DURABLE
        layout, how = rng.choice(list(LAYOUTS)), rng.choice(["inner", "left_outer", "full_outer"])
        return cls(
            seed=seed,
            layout="ftlb" if durable else layout,
            how="inner" if durable else how,
            instances=rng.choice([4, 5, 7]),
            exchange=rng.choice(["files", "shuffle"]),
            executors=3 if durable else 2,
            stored=seed % 3 in STORED,
            durability="replicas" if durable else "batch",
        )

    @property
    def choice(self):
        """The layout, with thresholds so low that it changes often."""
        return CHOICES[self.layout]

    def __str__(self):
        state = f"a store, durability {self.durability}" if self.stored else "a folder"
        return (
            f"{self.how} join, {self.layout} on {self.instances} instances, {self.executors} "
            f"executors, exchange {self.exchange}, state in {state}"
        )
