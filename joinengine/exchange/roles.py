"""Roles: the instructions by which a route task admits and routes the tuples of a side.

An `Admission` describes a side of an operator and is the same in every batch. A `Role` adds the
watermark and the layouts of one batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import pyarrow as pa

from joinengine.exchange.keying import Keying
from joinengine.layouts.versions import VersionedRouter
from joinengine.model.conditions import Predicate
from joinengine.model.keys import Side
from joinengine.routing.routes import watch_flag


class Origin(NamedTuple):
    """The task of a batch that brings tuples to a role.

    `serial`: its number among the tasks of all batches; tasks of different operators share serials.
    """

    batch: int
    task: int
    serial: int

    @property
    def seed(self) -> int:
        """The seed for u of the task's first chunk; each later chunk adds 1."""
        return (self.batch << 32 | self.task << 12) % (1 << 64)


class Matchless(Enum):
    """Which of the tuples that cannot have a partner become results."""

    #: none of them, as in inner and semi joins
    NONE = "none"
    #: those with an event time: without one, a tuple is in no window whose end would show it
    TIMED = "timed"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Admission:
    """Which tuples enter a side of an operator, and with what; the same in every batch.

    `keying`: the hashes under which a tuple is stored and probes. `times`: the event-time columns;
    empty if the operator ignores event time. `schema`: the columns with which a tuple travels.
    `windows_each`: the greatest number of windows that hold one tuple. `stays_put`: a tuple is
    delivered only to the instance that stores it, since no tuple probes. `passes_by`: tuples are
    not stored, so they are not delivered to backups. `ahead_us`: how far the event time of a tuple
    may be ahead of the clock of its batch; None: any distance. `matchless`: which of the tuples
    that match nothing are admitted. `numbered`: the last column of the schema is the number of a
    tuple, in the order of reading; this always holds for a watched side. `change`: the column that
    says how many rows a tuple stands for; it travels as a number. `u_of`: the columns whose values
    determine the u of a tuple, so that equal tuples stay together; empty: u is drawn.
    """

    keying: Keying
    times: tuple[str, ...]
    schema: pa.Schema
    filter: Predicate | None = None
    windows_each: int = 1
    stays_put: bool = False
    passes_by: bool = False
    ahead_us: int | None = None
    matchless: Matchless = Matchless.NONE
    numbered: bool = False
    change: str | None = None
    u_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Role:
    """One side of one operator in one batch: what admitting and routing its tuples needs.

    `watchers`: the number of watchers; 0: the side is not watched. On a watched side, the last
    column of the admission's schema is the tuple's number, and an admitted tuple that matches
    nothing travels only to its watcher. `aside`: the folder for refused tuples; None: they are only
    counted. `fsync`: files there survive power loss. `generation`: the driver's, for the names of
    files. `latest`: tuples with a later event time (us) are ahead of time. `noted`: event-time
    columns whose newest value is reported for a later operator, where this one ignores event time.
    """

    operator: int
    side: Side
    admission: Admission
    watermark: float
    router: VersionedRouter
    watchers: int = 0
    aside: str | None = None
    fsync: bool = False
    generation: int = 0
    latest: float = math.inf
    noted: tuple[str, ...] = ()

    @property
    def instances(self) -> int:
        """How many numbers instances and watchers share: the greater of the two counts."""
        return max(self.router.instances, self.watchers)

    @property
    def watch_flag(self) -> int:
        """The flag of a delivery to a watcher: the next flag above those of all probes."""
        return watch_flag(len(self.router.routers), self.admission.keying.probes)
