"""How a query runs, apart from what it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from joinengine.balancing.costs import Load
from joinengine.driver.layout_fit import Naming
from joinengine.driver.trial import Trial
from joinengine.exchange.exchange import ExchangeKind
from joinengine.model.recovery import Durability, Recovery
from joinengine.state.wished import Relayout

#: Bytes of arrived tuples that an operator task may hold at a time.
MEMORY_PER_TASK = 512 << 20
#: More than this is useless: a quarter is held at once, and a column of text has 2 GiB at most.
MOST_MEMORY = 4 << 30
#: Bytes of an object store's files that an executor keeps on its own disk.
CACHE_BYTES = 10 << 30


class ShowKeys(StrEnum):
    """How keys appear to users who watch a query."""

    VALUE = "value"
    HASH = "hash"


class Tasks(StrEnum):
    """What carries out the steps of a batch: resident tasks, where possible, or jobs of Spark."""

    AUTO = "auto"
    RESIDENT = "resident"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a query runs, apart from what it computes."""

    memory_per_task: int = MEMORY_PER_TASK
    fsync: bool = False
    checksum: bool = False
    #: tuples that an instance may hold before its layout grows; None: never
    capacity: int | None = None
    #: moves are lazy: state stays under the layout version under which it was stored
    lazy: bool = False
    #: what planners balance; under lazy moves, always tuples
    load: Load = Load.WORK
    #: tasks report the hottest keys by value, not only by hash
    show_keys: bool = True
    #: the run ends by itself when there is no more data
    finite: bool = False
    #: batch -> wishes to grant before it
    schedule: Mapping[int, Sequence[Relayout]] = field(default_factory=dict)
    #: how predicates of service levels are read
    naming: Naming = field(default_factory=Naming)
    #: what replaces lost state
    recovery: Recovery = Recovery.REPLICAS
    #: which files a batch waits for before it is committed
    durability: Durability = Durability.BATCH
    #: number of executors on which tasks have fixed places, so that each is a failure domain; 0: no
    #: task has a fixed place
    executors: int = 0
    #: batches before which an executor is killed
    kills: frozenset[int] = frozenset()
    #: bytes of an object store's files that an executor keeps on its disk
    cache_bytes: int = CACHE_BYTES
    #: what carries routed tuples
    exchange: ExchangeKind = ExchangeKind.FILES
    #: whether tasks are resident
    tasks: Tasks = Tasks.AUTO
    #: seconds between two looks for new files while idle; None: it depends on where the files lie
    look_every_s: float | None = None
    #: where second copies of run files lie; None: below the checkpoint, if there are any
    store_location: str | None = None
    #: what the laboratory tries on the query, beside running it
    trial: Trial = field(default_factory=Trial)

    @property
    def held_bytes(self) -> int:
        """Bytes of arrived tuples that a task holds at a time."""
        return min(self.memory_per_task, MOST_MEMORY)

    @property
    def weighs(self) -> bool:
        """Whether planners balance work.

        Under lazy moves they balance tuples. Work would include that of older layouts, so each plan
        would change the basis of the next one.
        """
        return self.load is Load.WORK and not self.lazy

    @property
    def keeps_store(self) -> bool:
        """Whether the query keeps second copies of run files."""
        asked = self.trial.keeps_store or self.store_location is not None
        return asked or self.recovery is Recovery.STORE
