"""What an operator is between two batches, as three small values.

`Layouts`: where its tuples are stored, by which rules, and what a re-layout still owes. `Clock`:
how far event time has come. `Shelves`: the runs that exist. Frozen; the next batch makes new ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from joinengine.layouts import Chosen
from joinengine.layouts.versions import VersionedRouter
from joinengine.routing.moves import Moves
from joinengine.state.run import Run
from joinengine.state.storage import StoredFile

#: The shelf of what an operator holds of its tuples; others are its own affair.
STATE = "state"
#: The shelf of tuples whose fate is still open (outer, semi and anti joins).
PENDING = "pending"
#: By (file, part): what stays the same while exclusions grow.
Runs = Mapping[tuple[str, int], Run]


@dataclass(frozen=True, slots=True)
class Move:
    """A re-layout that the next batch carries out by moving word ranges.

    `before` is the layout under which the runs of the newest version still lie.
    """

    before: Chosen
    moves: Moves


@dataclass(frozen=True, slots=True)
class Rehome:
    """A re-layout for which the next batch looks at every tuple; `before` as in `Move`."""

    before: Chosen


@dataclass(frozen=True)
class Layouts:
    """The layouts of one operator.

    `newest` is that of the next batch, `version` its number, `older` those of earlier versions that
    have runs. `asked` is what the user has last started the query with. Since version `sized_at`
    there have been as many instances as now. `pending` is what is still to be done to the state
    before the newest layout holds. `history` names the counts that the planner sees.
    """

    newest: Chosen
    asked: Chosen
    version: int = 0
    older: Mapping[int, Chosen] = field(default_factory=dict)
    sized_at: int = 0
    pending: Move | Rehome | None = None
    history: tuple[StoredFile, ...] = ()

    @property
    def live_versions(self) -> tuple[int, ...]:
        """The versions by whose rules the next batch is routed, newest first."""
        if isinstance(self.pending, Rehome):
            return (self.version,)
        return (self.version, *sorted(self.older, reverse=True))

    @property
    def router(self) -> VersionedRouter:
        """Where the tuples of the next batch go."""
        older = (self.older[version].router for version in self.live_versions[1:])
        return VersionedRouter((self.newest.router, *older))

    @property
    def moves(self) -> Moves:
        """The word ranges that the next batch moves."""
        return self.pending.moves if isinstance(self.pending, Move) else Moves()


@dataclass(frozen=True, slots=True)
class SideClock:
    """Event time on one side.

    `newest`: the greatest event time seen (-inf: none yet, inf: the side has ended); `idle_since`:
    when it last brought a tuple, in seconds since the epoch (inf: not yet). `ahead`: the limit of
    the side as it would be if no earlier operator delivered results a batch after their cause.
    """

    newest: float = -math.inf
    idle_since: float = math.inf
    ahead: float = -math.inf


@dataclass(frozen=True, slots=True)
class Clock:
    """How far event time has come.

    `watermark` is that of the next batch, `closed` that of the batch that is over. `held_back`: a
    side's limit lies beyond the one that was used, so a further batch is due though no data comes.
    """

    sides: tuple[SideClock, SideClock] = (SideClock(), SideClock())
    watermark: float = -math.inf
    closed: float = -math.inf
    held_back: bool = False


@dataclass(frozen=True)
class Shelves:
    """The runs of one operator, by shelf, and the files that they lie in."""

    runs: Mapping[str, Runs] = field(default_factory=dict)
    files: Mapping[str, StoredFile] = field(default_factory=dict)

    def on(self, shelf: str) -> Runs:
        """The runs of one shelf."""
        return self.runs.get(shelf, {})

    @property
    def state(self) -> Runs:
        """The runs of the tuples that the operator holds."""
        return self.on(STATE)

    @property
    def rows(self) -> int:
        """Copies held."""
        return sum(run.live for run in self.state.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of the copies held."""
        return sum(run.live_bytes for run in self.state.values())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held on any shelf."""
        return not any(self.runs.values())

    def live_rows(self, shelf: str) -> int:
        """Rows on one shelf."""
        return sum(run.live for run in self.on(shelf).values())


@dataclass(frozen=True)
class OperatorState:
    """One operator between two batches.

    `watchers`: how many watch, 0 where no side is watched; it never changes.
    """

    layouts: Layouts
    clock: Clock = Clock()
    shelves: Shelves = field(default_factory=Shelves)
    watchers: int = 0
    late_rows: int = 0

    def held_per_instance(self) -> list[int]:
        """(N,) copies that each instance holds and that were stored since there are N of them."""
        layouts = self.layouts
        held = [0] * layouts.newest.layout.instances
        for run in self.shelves.state.values():
            if run.version >= layouts.sized_at:
                held[run.instance] += run.live
        return held
