"""The state of an operator between two batches, as three small values.

`Layouts`: the layouts under which its tuples are stored, and pending moves. `Clock`: how far event
time has come. `Shelves`: the runs that exist. All are frozen; each batch makes new ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from joinengine.balancing.costs import Costs
from joinengine.layouts import Chosen
from joinengine.layouts.copies import Refill
from joinengine.layouts.versions import VersionedRouter
from joinengine.routing.moves import Moves
from joinengine.state.run import Run
from joinengine.world.storage import StoredFile

#: The shelf of the tuples that an operator holds. Only the operator knows its other shelves.
STATE = "state"
#: The shelf of watched entries that are still open (outer, semi and anti joins).
PENDING = "pending"
#: `Run.ident` -> run.
Runs = Mapping[tuple[str, int], Run]


@dataclass(frozen=True, slots=True)
class Move:
    """A re-layout that the next batch carries out by moving word ranges.

    `before`: the layout under which the runs of the newest version still lie.
    """

    before: Chosen
    moves: Moves


@dataclass(frozen=True, slots=True)
class Rehome:
    """A re-layout that the next batch carries out by a re-homing; `before`: as in `Move`.

    `absent`: instances whose copies under `before` do not count, since some of these are lost.
    """

    before: Chosen
    absent: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layouts:
    """The layouts of one operator.

    `newest`: the layout of the next batch. `version`: its number. `older`: the layouts of earlier
    versions that have runs. `asked`: the layout that the last start of the query asked for.
    `sized_at`: the version since which the number of instances has not changed. `pending`: the
    moves that the next batch must make before `newest` holds. `history`: the files of the counts
    that the planner sees.
    """

    newest: Chosen
    asked: Chosen
    version: int = 0
    older: Mapping[int, Chosen] = field(default_factory=dict)
    sized_at: int = 0
    pending: Move | Rehome | Refill | None = None
    history: tuple[StoredFile, ...] = ()

    @property
    def live_versions(self) -> tuple[int, ...]:
        """The layout versions under which the next batch is routed, newest first."""
        if isinstance(self.pending, Rehome):
            return (self.version,)
        return (self.version, *sorted(self.older, reverse=True))

    @property
    def router(self) -> VersionedRouter:
        """The router of the next batch: that of all live versions."""
        older = (self.older[version].router for version in self.live_versions[1:])
        return VersionedRouter((self.newest.router, *older))

    @property
    def moves(self) -> Moves:
        """The word ranges that the next batch moves."""
        return self.pending.moves if isinstance(self.pending, Move) else Moves()


@dataclass(frozen=True, slots=True)
class SideClock:
    """Event time on one side.

    `newest`: the greatest event time seen (-inf: none yet, inf: the side has ended). `idle_since`:
    when the side last brought a tuple, in seconds since the epoch (inf: not yet). `ahead`: the
    limit of the side as it would be if no earlier operator delivered results a batch after their
    cause; and what it was before, the newest first, for as many batches as tuples may come late.
    """

    newest: float = -math.inf
    idle_since: float = math.inf
    ahead: tuple[float, ...] = (-math.inf,)


@dataclass(frozen=True, slots=True)
class Clock:
    """How far event time has come (us).

    `watermark`: of the next batch. `closed`: the watermark of the last batch. `held_back`: the
    limit of a side is beyond the one that was used, so a batch is due even without data.
    """

    sides: tuple[SideClock, ...] = (SideClock(), SideClock())
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
        """How many copies of tuples the operator holds."""
        return sum(run.live for run in self.state.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of the copies held."""
        return sum(run.live_bytes for run in self.state.values())

    @property
    def pending_bytes(self) -> int:
        """Bytes of what the other shelves hold: rows that wait for a match, and marks of others."""
        others = (runs for shelf, runs in self.runs.items() if shelf != STATE)
        return sum(run.live_bytes for runs in others for run in runs.values())

    @property
    def is_empty(self) -> bool:
        """Whether no shelf holds a run."""
        return not any(self.runs.values())

    def live_rows(self, shelf: str) -> int:
        """How many live rows one shelf has."""
        return sum(run.live for run in self.on(shelf).values())


@dataclass(frozen=True)
class OperatorState:
    """One operator between two batches.

    `watchers`: the number of watchers, which never changes; 0: no side is watched. `costs`: the
    cost of work, as fitted to the batches so far.
    """

    layouts: Layouts
    clock: Clock = Clock()
    shelves: Shelves = field(default_factory=Shelves)
    watchers: int = 0
    late_rows: int = 0
    costs: Costs = field(default_factory=Costs)

    def keeping(self, is_needed: Callable[[Run], bool]) -> tuple[OperatorState, int]:
        """The state with only the runs that are needed, and how many rows have expired."""
        held = self.shelves.state
        kept = {ident: run for ident, run in held.items() if is_needed(run)}
        gone = sum(run.live for ident, run in held.items() if ident not in kept)
        if not gone:
            return self, 0
        shelves = replace(self.shelves, runs={**self.shelves.runs, STATE: kept})
        return replace(self, shelves=shelves), gone

    def held_per_instance(self) -> list[int]:
        """(N,) copies that each of N instances holds, of those stored since there are N."""
        layouts = self.layouts
        held = [0] * layouts.newest.layout.instances
        for run in self.shelves.state.values():
            if run.version >= layouts.sized_at:
                held[run.instance] += run.live
        return held

    def held_under_any(self) -> list[int]:
        """How many copies each instance holds, under all layout versions."""
        runs = self.shelves.state.values()
        used = max((run.instance + 1 for run in runs), default=0)
        held = [0] * max(used, self.layouts.newest.layout.instances)
        for run in runs:
            held[run.instance] += run.live
        return held
