"""Roles: what admits tuples to a side of an operator and routes them, as route tasks are told.

An `Admission` is what an operator says of a side, the same in every batch; a `Role` is that in one
batch, with the watermark and the layouts of the batch.
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

    `serial`: its number among the tasks of all batches; those of different operators share theirs.
    """

    batch: int
    task: int
    serial: int

    @property
    def seed(self) -> int:
        """Where the draws of u start; the task's chunks count on from there."""
        return (self.batch << 32 | self.task << 12) % (1 << 64)


class Matchless(Enum):
    """Which tuples become results although they can have no partner."""

    #: inner and semi joins show none
    NONE = "none"
    #: one without an event time is in no window, so no window's end shows it
    TIMED = "timed"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Admission:
    """Which tuples enter a side of an operator, and with what; the same in every batch.

    `keying`: the hashes under which a tuple is stored and probes. `times`: the event-time columns;
    none if the operator ignores event time. `schema`: the columns with which a tuple travels.
    `windows_each`: the greatest number of windows that hold one tuple. `stays_put`: a tuple is
    delivered only to the instance that stores it, since no tuple probes. `passes_by`: tuples are
    not stored, so they are not delivered to backups. `ahead_us`: how far the event time of a tuple
    may be ahead of the clock of its batch; None: as far as it likes. `matchless`: which tuples that
    can match nothing are admitted all the same. `numbered`: the last column of the schema is the
    number of a tuple, in the order in which tuples are read; those of a watched side always are.
    `change`: the column that says how many rows a tuple stands for, which travels as a number.
    `u_of`: the columns whose values decide the u of a tuple, so that equal ones stay together;
    none: it is drawn.
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

    `watchers`: how many there are; 0: the side is not watched. If it is, the last column of the
    admission's schema is its number, and a tuple that cannot match but is shown travels too, to its
    watcher alone.
    `aside`: the folder for refused tuples; None: they are only counted. `fsync`: what is written
    there survives power loss. `generation`: that of the
    driver, in the names of files. `latest`: tuples with a later event time are ahead of time.
    `noted`: event-time columns of which only the newest value is reported, for a later operator;
    the operator itself ignores event time.
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
        """How many numbers instances and watchers have together; they share them."""
        return max(self.router.instances, self.watchers)

    @property
    def watch_flag(self) -> int:
        """The flag of a delivery to a watcher: the one above the flags of all probes."""
        return watch_flag(len(self.router.routers), self.admission.keying.probes)
