"""The records of finished batches, from which metrics and reports are made.

`joinengine.driver.recording` computes them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from operator import add

import numpy as np

from joinengine.balancing.reasons import Reason
from joinengine.balancing.statistics import skew
from joinengine.driver.hot_keys import Heat
from joinengine.model.skipped import Skipped
from joinengine.state.manifest import Position
from joinengine.state.partitions import BySource
from joinengine.state.run import Reads
from joinengine.wire.reports import CappedKey


@dataclass(frozen=True, slots=True)
class Refused:
    """How many rows arrived at a side; of them late, without a key, ahead, or unknown changes."""

    rows: int = 0
    late: int = 0
    null: int = 0
    ahead: int = 0
    change: int = 0

    def __add__(self, other: Refused) -> Refused:
        """Both together."""
        return Refused(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class Busiest:
    """The instance that received most: a batch would wait for it if each had its own machine.

    `share`: its part of the deliveries to all instances. `busy_s`: seconds that tasks worked for
    it. `skew`: its deliveries divided by the mean.
    """

    instance: int
    share: float
    busy_s: float
    skew: float


@dataclass(slots=True)
class SideRecord:
    """One side of an operator in one batch.

    `homed`: copies stored in the batch; in a multiway join, the first right side has those of all.
    `held_rows`, `held_bytes`: copies in the state after the batch. `newest`: the greatest event
    time so far (us).
    """

    homed: int = 0
    held_rows: int = 0
    held_bytes: int = 0
    newest: float = -math.inf
    refused: Refused = Refused()


@dataclass(slots=True)
class Worked:
    """The work of instances in one batch, in tuples; lists are per instance.

    `backed`: how many of `stored` are backups. `busy_s`: seconds. `compared`: candidate pairs.
    `made`: results. `probe_copies`: deliveries that only probe.
    """

    received: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    backed: list[int] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    compared: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    probe_copies: int = 0

    @property
    def candidates(self) -> int:
        """Candidate pairs compared; in semi and anti joins of hot keys, tuples."""
        return sum(self.compared)

    @property
    def busiest(self) -> Busiest | None:
        """The instance that received most; None: no instance received anything."""
        received = np.array(self.received, float)
        if not received.any():
            return None
        instance, share = int(received.argmax()), float(received.max() / received.sum())
        busy_s = self.busy_s[instance] if instance < len(self.busy_s) else 0.0
        return Busiest(instance, share, busy_s, skew(received))


@dataclass(slots=True)
class StateRecord:
    """The state of an operator after one batch: copies, and `held` of them at each instance.

    `expired_rows`: copies that have expired. `pending_rows`: watched entries that are still open.
    `pending_bytes`: the size of these entries and of all marks.
    """

    rows: int = 0
    size_bytes: int = 0
    held: list[int] = field(default_factory=list)
    expired_rows: int = 0
    pending_rows: int = 0
    pending_bytes: int = 0


@dataclass(slots=True)
class Moved:
    """The state that changed its home before one batch.

    `from_rows`: rows of state before the move, 0 if the batch moved nothing. `seconds`: how long
    the slowest task took to place moved state.
    """

    from_rows: int = 0
    rows: int = 0
    size_bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Lost:
    """Instances whose state could not be read, and how many copies replaced lost ones.

    `unbacked_keys`: keys of which no other copy exists at present, because it was lost.
    """

    instances: list[int] = field(default_factory=list)
    recovered_rows: int = 0
    unbacked_keys: int = 0

    @property
    def count(self) -> int:
        """How many instances were found to have lost their state."""
        return len(self.instances)


@dataclass(slots=True)
class Told:
    """The size of what tasks reported of keys (`up_bytes`) and were asked for (`down_bytes`).

    `whole`: 1 if tasks were asked for whole reports, else 0.
    """

    up_bytes: int = 0
    down_bytes: int = 0
    whole: int = 0


@dataclass(slots=True)
class OperatorRecord:
    """One operator in one batch.

    `sided`: it has more than one side. `timed`: it has a window.
    """

    instances: int
    sided: bool = True
    timed: bool = False
    #: the layout that routed the batch
    layout: str = ""
    #: how many layouts routed the batch: the newest, and older ones under which state lives
    layout_versions: int = 1
    routing_entries: int = 0
    split_keys: int = 0
    sides: list[SideRecord] = field(default_factory=lambda: [SideRecord(), SideRecord()])
    work: Worked = field(default_factory=Worked)
    state: StateRecord = field(default_factory=StateRecord)
    moved: Moved = field(default_factory=Moved)
    lost: Lost = field(default_factory=Lost)
    told: Told = field(default_factory=Told)
    #: run files that tasks opened in an object store
    reads: Reads = field(default_factory=Reads)
    #: event time (us) for the next batch; only timed operators have one
    watermark: float = -math.inf
    output_rows: int = 0
    #: pairs that `max_pairs_per_key` left out, and the keys that lost most
    capped_pairs: int = 0
    capped: list[CappedKey] = field(default_factory=list)
    #: why the layout changes after the batch, or has changed before it (a loss, or a restart)
    reason: Reason | None = None
    #: the hottest keys of the batch
    heat: Heat = field(default_factory=Heat)

    @property
    def refused(self) -> Refused:
        """The rows that arrived at all sides, and how many of them were refused."""
        return sum((side.refused for side in self.sides), Refused())

    @property
    def replanned(self) -> bool:
        """Whether a planner has changed the layout."""
        return self.reason is not None and self.reason.cause.is_replan

    @property
    def replans(self) -> int:
        """1 if a planner has changed the layout, else 0."""
        return int(self.replanned)

    @property
    def switched_roles(self) -> int:
        """How many keys have a home and a backup that change roles after the batch."""
        return 0 if self.reason is None else self.reason.switched_roles


@dataclass(slots=True)
class BatchRecord:
    """One batch. `seconds`: the driver's wall time by step. `work_s`: the tasks' time by part.

    `started`: in seconds since the epoch.
    """

    batch: int
    started: float
    seconds: dict[str, float] = field(default_factory=dict)
    work_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    joins: list[OperatorRecord] = field(default_factory=list)
    input_rows: int = 0
    output_rows: int = 0
    checksum: int = 0
    #: how much longer the batch took until its commit because instances were lost
    recovery_s: float = 0.0
    #: what has run its tasks, in words
    tasks: str = ""
    left_at: list[tuple[float, int]] = field(default_factory=list)
    #: files of sources that were not read, with the reason
    skipped: list[Skipped] = field(default_factory=list)
    #: where it begins and ends in each source
    start: Position = field(default_factory=dict)
    end: Position = field(default_factory=dict)
    #: source -> its partitions after the batch, of sources that have any
    partitions: BySource = field(default_factory=dict)
    #: the number of Spark's micro-batch in it; None: there is none
    handed: int | None = None
    #: the whole trigger, with Spark's own logs; 0 until Spark has reported it
    trigger_s: float = 0.0

    @property
    def busiest(self) -> Busiest | None:
        """The busiest instance of the operator that received most; None: nothing was received."""
        largest = max(self.joins, key=lambda join: sum(join.work.received), default=None)
        return None if largest is None else largest.work.busiest

    @property
    def behind_rows(self) -> int | None:
        """How many messages wait in the sources; None: no source knows."""
        lags = [sum(progress.behind.values()) for progress in self.partitions.values()]
        return sum(lags) if lags else None

    @property
    def behind_s(self) -> float | None:
        """The age at most, at the start, of the oldest message that waits; None: unknown.

        If the age is unknown in some partitions, the others count, unless nothing waits in them.
        """
        lags = [
            progress.lag_s(number, self.started)
            for progress in self.partitions.values()
            for number in progress.behind
        ]
        oldest = max((lag for lag in lags if lag is not None), default=None)
        return None if not oldest and None in lags else oldest

    def latency_s(self, quantile: float) -> float | None:
        """Seconds from the start of the batch until `quantile` of its results left the tasks."""
        return latency_s([self], quantile)


def latency_s(records: Sequence[BatchRecord], quantile: float) -> float | None:
    """Seconds until `quantile` of all results left the tasks, each from the start of its batch.

    None: there are no results.
    """
    ordered = sorted(left for record in records for left in record.left_at)
    if not ordered:
        return None
    rows = np.cumsum([n for _, n in ordered])
    return ordered[int(np.searchsorted(rows, quantile * rows[-1]))][0]
