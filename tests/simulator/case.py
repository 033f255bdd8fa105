"""What follows from a seed before anything runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from joinengine.api.columns import JOIN_TYPES
from joinengine.driver.relayout import Relayout
from joinengine.driver.settings import Settings
from joinengine.exchange.exchange import ExchangeKind
from joinengine.layouts import LAYOUTS, choose
from joinengine.model.keys import Side
from joinengine.model.recovery import Durability
from joinengine.model.windows import within
from tests.laws.cases import CHOICES

#: How likely each fault is at a step of a trial that has it.
RATES = {
    "killed": 0.004,
    "held": 0.01,
    "fails before": 0.004,
    "fails after": 0.004,
    "cut off": 0.002,
    "stale": 0.05,
    "clock": 0.002,
}
#: Layouts that a wish may ask for.
WISHED = ("hash", "mnrt", "mixed", "dynamic", "bi", "ftlb")
#: Seeds, modulo 7, whose queries upload their state behind.
DURABLE = (5, 6)


@dataclass(frozen=True)
class Case:
    """What follows from a seed before anything runs."""

    seed: int
    layout: str
    instances: int
    how: str
    window: object
    exchange: ExchangeKind
    tuples: tuple  # per side (key, value, time)
    schedule: dict
    lazy: bool
    faults: tuple  # the kinds
    most_faults: int
    ghosts: float
    manners: bool  # drivers look now and then whether a newer one was started
    executors: int = 0  # whose disks die with them; 0: all state is in the store at once

    @classmethod
    def of(cls, seed):
        rng = random.Random(f"case {seed}")
        kinds = rng.sample(list(RATES), rng.randint(1, len(RATES)))
        window, how = None, "inner"
        if rng.random() < 0.6:
            window = within("lt", "rt", lower="-40 us", upper="60 us", delay="30 us")
            how = rng.choice(["inner", "inner", *JOIN_TYPES])
        schedule = {}
        for _ in range(rng.choice([0, 0, 1, 2, 3])):
            wish = Relayout(
                choose(rng.choice(WISHED)) if rng.random() < 0.5 else None,
                rng.randint(2, 6) if rng.random() < 0.7 else None,
            )
            schedule[rng.randrange(1, 8)] = (wish,)
        plain = cls(
            seed=seed,
            layout=rng.choice(list(LAYOUTS)),
            instances=rng.choice([2, 3, 5]),
            how=how,
            window=window,
            exchange=rng.choice(list(ExchangeKind)),
            tuples=tuple(_tuples(rng, side) for side in Side),
            schedule=schedule,
            lazy=rng.random() < 0.3,
            faults=tuple(kinds),
            most_faults=rng.choice([2, 5, 10, 20]),
            ghosts=rng.choice([0.0, 0.1, 0.5]),
            manners=rng.random() < 0.6,
        )
        return plain._on_executors() if seed % 7 in DURABLE else plain

    def _on_executors(self):
        """The same under durability "replicas"."""
        rng = random.Random(f"executors {self.seed}")
        executors = rng.choice([2, 3])
        return replace(
            self,
            layout="ftlb",
            how="inner",
            lazy=False,
            instances=rng.choice([4, 5, 7]),
            executors=executors,
        )

    @property
    def choice(self):
        """The layout."""
        found = CHOICES[self.layout]
        return replace(found, domains=self.executors) if self.executors else found

    @property
    def settings(self):
        """How drivers run."""
        durability = Durability.REPLICAS if self.executors else Durability.BATCH
        return Settings(
            schedule=self.schedule,
            lazy=self.lazy,
            exchange=self.exchange,
            durability=durability,
        )


def _tuples(rng, side):
    """Event time rises with some disorder, less than the delay of the window."""
    hot = rng.choice([0.0, 0.3, 0.8])
    return [
        (
            0 if rng.random() < hot else rng.randrange(1, 12),
            1000 * side + number,
            10 * number + rng.randrange(25),
        )
        for number in range(rng.randrange(20, 60))
    ]
