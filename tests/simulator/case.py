"""What follows from a seed before anything runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from joinengine.api.column_checks import JOIN_TYPES
from joinengine.driver.settings import Settings
from joinengine.exchange.exchange import ExchangeKind
from joinengine.lab.emulation.emulating import Emulation
from joinengine.layouts import LAYOUTS, choose
from joinengine.model.keys import PAIR, Side
from joinengine.model.recovery import Durability, Recovery
from joinengine.state.wished import Relayout
from tests.harness import two_way
from tests.laws.cases import CHOICES, joined
from tests.simulator.programs import NEAR, Program
from tests.simulator.sources import cut
from tests.simulator.targets import TOKENS_FROM

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
#: Layouts under which aggregates are computed.
ADDING = [name for name, choice in LAYOUTS.items() if choice.serves_aggregates]
#: Seeds, modulo 7, whose queries upload their state behind.
DURABLE = (5, 6)
#: Seeds, modulo 3, whose checkpoint and results lie in an object store.
STORED = (2,)
#: Seeds, modulo 4, whose tuples come from files that are written meanwhile.
FROM_FILES = (3,)
#: Seeds, modulo 11, in which something follows the join.
FOLLOWED = {7: Program.CHAIN, 9: Program.AGGREGATE}
#: Seeds, modulo 8: the sides that Spark hands over in micro-batches.
HANDED = {0: (Side.RIGHT,), 2: PAIR, 3: (Side.RIGHT,), 4: (Side.LEFT,), 6: (Side.RIGHT,)}
#: Seeds, modulo 5, whose results become visible together, and modulo 6, that lose an instance.
HELD, LOSING = (4,), (4,)


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
    stored: bool = False
    inlined: bool = False  # small runs are in the manifest
    files: tuple | None = None  # per side those of the sources; None: tuples come of themselves
    tokens: float | None = None  # seconds from one commit at a target to the next; None: no target
    compact: tuple | None = None  # batches whose results are shown together, and bytes of a file
    losses: dict = field(default_factory=dict)
    recovery: Recovery = Recovery.REPLICAS
    program: Program = Program.JOIN
    then: str = "inner"  # the type of a chain's second join

    @classmethod
    def of(cls, seed):
        if seed >= TOKENS_FROM:
            rng = random.Random(f"tokens {seed}")
            every_s = rng.choice([0.0, 0.0, 0.3, 2.0])
            return replace(cls.of(seed - TOKENS_FROM), tokens=every_s, compact=None)
        rng = random.Random(f"case {seed}")
        kinds = rng.sample(list(RATES), rng.randint(1, len(RATES)))
        window, how = None, "inner"
        if rng.random() < 0.6:
            window = NEAR
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
            tuples=tuple(_tuples(rng, side) for side in PAIR),
            schedule=schedule,
            lazy=rng.random() < 0.3,
            faults=tuple(kinds),
            most_faults=rng.choice([2, 5, 10, 20]),
            ghosts=rng.choice([0.0, 0.1, 0.5]),
            manners=rng.random() < 0.6,
        )
        if seed % 7 in DURABLE:
            return plain._on_executors()._elsewhere()
        if seed % 11 in FOLLOWED:
            return plain._followed()._elsewhere()
        return plain._losing()._elsewhere()

    def _elsewhere(self):
        """The same with other places for state, tuples and results."""
        rng, found = random.Random(f"elsewhere {self.seed}"), self
        if self.seed % 3 in STORED:
            found = replace(found, stored=True, inlined=rng.random() < 0.3)
        if self.seed % 4 in FROM_FILES:
            found = replace(found, files=tuple(cut(side, rng) for side in self.tuples))
        if self.seed % 5 in HELD:
            found = replace(found, compact=(rng.choice([2, 3, 5]), rng.choice([3000, 1 << 20])))
        return found

    def _followed(self):
        """The same with a second operator, behind the join."""
        rng, program = random.Random(f"followed {self.seed}"), FOLLOWED[self.seed % 11]
        found = replace(
            self,
            program=program,
            window=NEAR,
            how=rng.choice(["inner", "left"]),
            then=rng.choice(["inner", "left", "left_semi", "left_anti"]),
        )
        if program is Program.CHAIN:
            is_one = {found.how, found.then} == {"inner"} and CHOICES[found.layout].meets_all
            return found._granting(lambda choice: choice.meets_all) if is_one else found
        layout = found.layout if LAYOUTS[found.layout].serves_aggregates else rng.choice(ADDING)
        found = found._granting(lambda choice: choice.serves_aggregates)
        return replace(found, layout=layout)

    def _granting(self, serves):
        """The same without wishes for layouts that do not serve its operators."""
        schedule = {
            batch: wishes
            for batch, wishes in self.schedule.items()
            if all(one.choice is None or serves(one.choice) for one in wishes)
        }
        return replace(self, schedule=schedule)

    def _losing(self):
        """The same with an instance that loses its state, or two."""
        if self.seed % 6 not in LOSING:
            return self
        rng = random.Random(f"losses {self.seed}")
        recovery = rng.choice(list(Recovery))
        batches = rng.sample(range(1, 7), 2 if recovery is Recovery.STORE else 1)
        losses = {batch: (rng.randrange(2),) for batch in batches}
        found = replace(self, losses=losses, recovery=recovery)
        if recovery is Recovery.STORE:
            return found
        # What cannot be read counts as lost, and two losses at once are one too many.
        faults = tuple({*self.faults, "killed"} - {"fails before", "cut off"})
        faults = tuple(kind for kind in RATES if kind in faults)
        return replace(found, layout="ftlb", how="inner", lazy=False, schedule={}, faults=faults)

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
    def handed(self):
        """The sides that Spark hands over; with it no batch can be computed again from them."""
        return () if self.executors else HANDED.get(self.seed % 8, ())

    @property
    def choice(self):
        """The layout."""
        found = CHOICES[self.layout]
        return replace(found, domains=self.executors) if self.executors else found

    def query(self):
        """The query, and the layouts of its operators."""
        if self.program is Program.JOIN:
            return two_way(self.window, self.instances, how=self.how), [self.choice]
        plan = self.program.plan(self.how, self.then, self.choice, self.instances)
        planned = plan._planned()
        return planned.query, list(planned.choices)

    def expected(self):
        """The results, by definition."""
        if self.program is Program.JOIN:
            return joined(*self.tuples, self.window, self.how)
        return self.program.expected(self.how, self.then, *self.tuples)

    @property
    def settings(self):
        """How drivers run."""
        durability = Durability.REPLICAS if self.executors else Durability.BATCH
        return Settings(
            schedule=self.schedule,
            lazy=self.lazy,
            exchange=self.exchange,
            durability=durability,
            recovery=self.recovery,
            trial=Emulation(losses=self.losses),
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
