"""The state of a task's instances, after the moves of the last plan.

Law: a tuple that moves is at only one instance: the old home excludes it from its runs, and the new
home seals it in a new run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.layouts.copies import Refill
from joinengine.layouts.versions import AnyRouter
from joinengine.model.keys import ALL_WORDS, Side
from joinengine.operators.rehoming import Rehoming, rehome
from joinengine.routing.moves import Drop, Moves, Pull
from joinengine.routing.routes import BACKUP, STORE
from joinengine.state.keeper import Keeper
from joinengine.state.operator_state import Layouts, OperatorState
from joinengine.state.run import OpenRun, Place, Run, Spread
from joinengine.state.upkeep import Shelf

if TYPE_CHECKING:
    from joinengine.operators.base import OperatorTask
    from joinengine.operators.desk import Desk

#: Charges the time of a block to a part of a task's work.
Timer = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the state of a task lies, and how it must move before the batch.

    `runs`: the spines of the hosted instances and of those that they pull from; all spines if there
    is a `rehoming`, or a `refill` of a hosted instance. `moves`: those of the hosted instances.
    `versions`: the live layout versions, newest first. `lost`: the instances whose state could not
    be read in an earlier try of the batch; the tuples of the batch were routed while these still
    had homes. `router`: that of the newest version; None: it is not needed. `routers`: if instances
    are lost, those of all live versions; None for a version without backups, which had nothing
    there. `missing`: instances that still lack copies after the batch, each with the first word
    that it lacks.
    """

    runs: Spread
    moves: Moves
    rehoming: Rehoming | None
    versions: tuple[int, ...]
    refill: Refill | None = None
    lost: tuple[int, ...] = ()
    router: AnyRouter | None = None
    missing: tuple[tuple[int, int], ...] = ()
    routers: tuple[AnyRouter | None, ...] = ()

    @classmethod
    def by_task(
        cls,
        state: OperatorState,
        hosted_by_task: Sequence[Sequence[int]],
        lost: tuple[int, ...] = (),
    ) -> list[Stored]:
        """For each task, the runs of its instances and of those that they pull from."""
        layouts = state.layouts
        spines, moves = Hosted.of(state.shelves.state.values()), _by_instance(layouts.moves)
        rehoming = Rehoming.of(layouts)
        refill = layouts.pending if isinstance(layouts.pending, Refill) else None
        missing = _missing(layouts, refill)
        router = layouts.newest.router if lost or missing or refill is not None else None
        routers = _with_backups(layouts) if lost else ()
        versions = layouts.live_versions
        every = spines.everywhere() if rehoming is not None or refill is not None else {}
        by_task = list[Stored]()
        for hosted in hosted_by_task:
            moves_here = Moves(
                tuple(pull for instance in hosted for pull in moves.get(instance, Moves()).pulls),
                tuple(drop for instance in hosted for drop in moves.get(instance, Moves()).drops),
            )
            if rehoming is not None or (refill is not None and refill.instance in hosted):
                runs = every
            else:
                runs = spines.at([*hosted, *(pull.source for pull in moves_here.pulls)])
            by_task.append(
                cls(runs, moves_here, rehoming, versions, refill, lost, router, missing, routers)
            )
        return by_task


def _by_instance(moves: Moves) -> dict[int, Moves]:
    """Instance -> its moves: what it pulls, and what it drops."""
    pulls, drops = defaultdict[int, list[Pull]](list), defaultdict[int, list[Drop]](list)
    for pull in moves.pulls:
        pulls[pull.target].append(pull)
    for drop in moves.drops:
        drops[drop.instance].append(drop)
    return {
        instance: Moves(tuple(pulls.get(instance, ())), tuple(drops.get(instance, ())))
        for instance in pulls.keys() | drops.keys()
    }


class Hosted(NamedTuple):
    """Spines by instance."""

    spines: Mapping[int, Spread]

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Hosted:
        """The spines of `runs`; the runs of a spine keep their order."""
        spines = defaultdict[int, dict[Place, list[Run]]](dict)
        for run in runs:
            spines[run.instance].setdefault((run.instance, run.side), []).append(run)
        return cls(
            {
                instance: {place: tuple(spine) for place, spine in sides.items()}
                for instance, sides in spines.items()
            }
        )

    def at(self, instances: Iterable[int]) -> dict[Place, tuple[Run, ...]]:
        """The spines of some instances."""
        spines = dict[Place, tuple[Run, ...]]()
        for instance in instances:
            spines.update(self.spines.get(instance, {}))
        return spines

    def everywhere(self) -> dict[Place, tuple[Run, ...]]:
        """All spines."""
        return self.at(self.spines)


def _with_backups(layouts: Layouts) -> tuple[AnyRouter | None, ...]:
    """The routers of the live versions, newest first; None in place of one without backups."""
    live = (layouts.newest, *(layouts.older[version] for version in layouts.live_versions[1:]))
    return tuple(
        None if versioned.layout.copied is None else versioned.router for versioned in live
    )


def _missing(layouts: Layouts, refill: Refill | None) -> tuple[tuple[int, int], ...]:
    """(instance, first word that it lacks) of instances that still lack copies after the batch."""
    copied = layouts.newest.layout.copied
    left = dict[int, int]() if copied is None else dict(copied.incomplete)
    if refill is not None:
        left[refill.instance] = refill.upper
    return tuple((instance, word) for instance, word in left.items() if word < ALL_WORDS)


class Spines:
    """The spines of the hosted instances; a re-homing gathers at most `memory_bytes`."""

    def __init__(
        self,
        stored: Stored,
        keeper: Keeper,
        hosted: tuple[int, ...],
        memory_bytes: int,
        span_us: int | None,
        timed: Timer | None = None,
    ) -> None:
        """`timed`: charges the time of moves to the part "move"."""
        self._timed = timed or nullcontext
        self._stored = stored
        self._keeper = keeper
        #: the word ranges that each instance drops, and those that it pulls, by source
        self._drops = defaultdict[Place, list[tuple[int, int]]](list)
        self._pulls = defaultdict[Place, dict[int, list[tuple[int, int]]]](dict)
        for drop in stored.moves.drops:
            self._drops[drop.instance, drop.side].append((drop.lower, drop.upper))
        for pull in stored.moves.pulls:
            sources = self._pulls[pull.target, pull.side]
            sources.setdefault(pull.source, []).append((pull.lower, pull.upper))
        keeper.fetch(self._pulled(hosted))
        self._rehomed: dict[Place, list[OpenRun]] | None = None
        if stored.rehoming is not None:
            runs = (run for runs in stored.runs.values() for run in runs)
            self._rehomed = rehome(stored.rehoming, runs, keeper, hosted, memory_bytes, span_us)

    def _pulled(self, hosted: tuple[int, ...]) -> list[Run]:
        """The runs to pull from, as far as their files hold nothing else for this task."""
        if not self._pulls:
            return []
        runs, newest = self._stored.runs, self._stored.versions[0]
        own_files = {run.file for place in runs if place[0] in hosted for run in runs[place]}
        sources = {(source, side) for (_, side), pulls in self._pulls.items() for source in pulls}
        return [
            run
            for (source, side), spine in runs.items()
            if (source, side.routed) in sources
            for run in spine
            if run.version == newest and run.file not in own_files
        ]

    def at(self, instance: int, side: Side) -> list[OpenRun]:
        """The spine of one side, without the tuples that moved away, with those that moved in."""
        (spine,) = self.of_team([instance], side)
        return spine

    def of_team(self, team: Sequence[int], side: Side) -> list[list[OpenRun]]:
        """As `at`, for several instances, ascending."""
        if self._rehomed is not None:
            return [self._rehomed.get((instance, side), []) for instance in team]
        spines = self._own_of(team, side)
        runs, newest = self._stored.runs, self._stored.versions[0]
        pulls = [
            (
                instance,
                [run for run in runs.get((source, side), ()) if run.version == newest],
                ranges,
            )
            for instance in team
            for source, ranges in sorted(self._pulls.get((instance, side.routed), {}).items())
        ]
        refill = self._stored.refill
        with self._timed("move"):
            for run in self._keeper.pull_all(pulls):
                spines[run.run.instance].append(run)
            if refill is not None and refill.instance in spines:
                spines[refill.instance] += self._refilled(refill, side)
        return list(spines.values())

    def _own_of(self, team: Sequence[int], side: Side) -> dict[int, list[OpenRun]]:
        """Instance -> the runs that it had, without the tuples that moved away."""
        if self._drops or self._stored.refill is not None or len(self._stored.versions) > 1:
            return {instance: self._own(instance, side) for instance in team}
        runs = [self._stored.runs.get((instance, side), ()) for instance in team]
        opened = iter(self._keeper.open(chain.from_iterable(runs)))
        spines = zip(team, runs, strict=True)
        return {instance: [*islice(opened, len(runs))] for instance, runs in spines}

    def _own(self, instance: int, side: Side) -> list[OpenRun]:
        """The runs that an instance had, without the tuples that moved away."""
        drops = list(self._drops.get((instance, side.routed), ()))
        refill = self._stored.refill
        if refill is not None and refill.instance == instance:
            drops.append((refill.lower, refill.upper))  # the refill copies these words anew
        newest = self._stored.versions[0]
        runs = self._stored.runs.get((instance, side), ())
        spine = self._keeper.open((run for run in runs if run.version == newest), drops)
        return spine + self._keeper.open(run for run in runs if run.version != newest)

    def _refilled(self, refill: Refill, side: Side) -> Iterator[OpenRun]:
        """The copies that the instance of a refill had lost, copied again from the homes."""
        router, newest = self._stored.router, self._stored.versions[0]
        assert router is not None
        for (source, stored_side), runs in sorted(self._stored.runs.items()):
            if stored_side is not side or source == refill.instance:
                continue

            def backed(words: Words, source: int = source) -> NDArray[np.bool_]:
                copies = router.homes(side.routed, words, np.zeros(len(words), np.uint16))
                home = (copies.instances == source) & (copies.flags == STORE)
                backup = (copies.instances == refill.instance) & (copies.flags == BACKUP)
                n = len(words)
                at_home, at_backup = (
                    np.bincount(copies.rows[homes], minlength=n) for homes in (home, backup)
                )
                return (at_home > 0) & (at_backup > 0)

            for run in (run for run in runs if run.version == newest):
                words = refill.lower, refill.upper
                yield from self._keeper.recover(refill.instance, run, words, backed)


def spines_of(task: OperatorTask, keeper: Keeper, shelf: Shelf, desk: Desk) -> Spines:
    """The state of a task's instances on a shelf, after the moves of the last plan."""
    memory, hosted = task.memory_bytes // 4, task.header.hosted
    with desk.timed("move"):
        return Spines(task.stored, keeper, hosted, memory, shelf.span_us, desk.timed)
