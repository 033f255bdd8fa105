"""The join task: the work of one batch at a set of instances.

An instance works in this order (the pairing rule, docs/decisions/0001): it places state that moved
in; left tuples probe right state of earlier batches; left tuples are stored; right tuples probe
left state, including that of this batch; right tuples are stored. Runs are merged last, when no
tuple probes them any more. If one side is a table, the table goes first, and the stream is not
stored, since no later tuple could match it.

Instances with few tuples form teams: each step is then done once for all instances of the team
(`joinengine.operators.join.teams`).

Law: any matching pair is produced exactly once, by the later tuple, at the single home of the
earlier tuple.
Cost: per tuple one sort and one gather; per distinct key one binary search per run; per pair one
comparison and one gather.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from joinengine.kernels.hashing import Words
from joinengine.kernels.seating import Seats, group_seated, row_bounds, seated_order
from joinengine.model.keys import PAIR, Side
from joinengine.operators.base import OperatorTask
from joinengine.operators.desk import MERGE_ROWS, Desk
from joinengine.operators.hot import texts_in, texts_of_team
from joinengine.operators.join.candidate_pairs import Prober, Runs
from joinengine.operators.join.join_spec import JoinSpec
from joinengine.operators.join.matching import Matcher
from joinengine.operators.join.shelf import StateShelf
from joinengine.operators.join.teams import Arrivals, SortedTuples
from joinengine.operators.join.watchers import Watchers
from joinengine.operators.level_keys import named_in
from joinengine.operators.spines import Spines
from joinengine.operators.unbacked import unbacked_keys
from joinengine.routing.routes import KEPT, STORE
from joinengine.routing.table import TableRouter
from joinengine.state.gathering import Sheet, sheets_of
from joinengine.state.run import OpenRun
from joinengine.state.run_file import Page
from joinengine.wire.reports import InstanceReport

#: A task may merge this many rows for each that arrives, if these are more than MERGE_ROWS.
MERGE_PER_ROW = 8


def join_arrived(spec: JoinSpec, task: OperatorTask, desk: Desk) -> None:
    """Carry out a join task.

    Tuples are stored under the newest live layout version. A tuple probes the i-th version if it
    has the flag of that version.
    """
    worker = _Worker(spec, task, desk)
    teams = worker.teams()
    # The merge allowance of a task goes to the first teams, so each batch starts with another team.
    turn = task.header.batch % max(len(teams), 1)
    for team in teams[turn:] + teams[:turn]:
        worker.join_team(team)
    worker.close()


def _arriving(task: OperatorTask) -> int:
    """How many tuples are on their way to the hosted instances."""
    bounds = [b for side in task.blocks for block in side for b in block.bounds]
    # After a shrink, an instance may remain only as a watcher: blocks of an unwatched side have no
    # slice for it.
    hosted = np.array(task.header.hosted)
    hosted_there = [(b, hosted[hosted + 1 < len(b)]) for b in bounds]
    return sum(int((b[instances + 1] - b[instances]).sum()) for b, instances in hosted_there)


@dataclass(slots=True)
class _Kept:
    """What a team has of one side: runs of earlier batches, and runs of this batch, by seat.

    `homed`: the words, with their seats, of tuples that arrived to be stored, without backups.
    """

    before: Runs
    fresh: Runs
    homed: list[tuple[Words, Seats]] = field(default_factory=list)


class _Worker:
    def __init__(self, spec: JoinSpec, task: OperatorTask, desk: Desk) -> None:
        self._spec = spec
        self._task = task
        self._desk = desk
        self._timed = desk.timed
        self._keying = spec.keying
        merge_rows = max(MERGE_ROWS, MERGE_PER_ROW * _arriving(task))
        version = task.stored.versions[0]
        self._keeper = desk.keeper(StateShelf(spec), version=version, merge_rows=merge_rows)
        self._watchers: Watchers | None = None
        if spec.watched:
            self._watchers = Watchers(desk, spec, task, merge_rows)
        self._arrivals = Arrivals(spec, task, desk, self._watchers)
        marker = None if self._watchers is None else self._watchers.marker
        matcher = Matcher(spec, desk.results, marker, self._timed, max(task.memory_bytes // 8, 1))
        self._prober = Prober(spec, task, matcher, self._timed)
        table = spec.table
        self._sides = PAIR if table is None else (table, table.other)
        window = spec.window
        span = None if window is None else window.span_us
        with self._timed("move"):
            memory = task.memory_bytes // 4
            hosted, timed = task.header.hosted, self._timed
            self._spines = Spines(task.stored, self._keeper, hosted, memory, span, timed)

    def teams(self) -> list[tuple[int, ...]]:
        """The hosted instances in teams.

        Teams have one instance each if keys have copies, since each instance then has its own
        files, or if lost, missing or named keys must be reported by instance.
        """
        header, stored = self._task.header, self._task.stored
        by_itself = header.copied or header.levels or stored.lost or stored.missing
        with self._timed("exchange"):
            return self._arrivals.teams(alone=bool(by_itself) or stored.refill is not None)

    def join_team(self, team: tuple[int, ...]) -> None:
        """The pairing rule at the instances of a team."""
        with self._desk.at_all(team) as reports:
            with self._timed("open"):
                kept = {
                    side: _Kept(self._spines.of_team(team, side), [[] for _ in team])
                    for side in PAIR
                }
            self._prober.begin(len(team))
            self._judge(team, reports)
            for side in self._sides:
                for arrived, last in self._arrivals.at(team, side):
                    # Only the second side probes this batch's tuples of the other side.
                    second = side is self._sides[1]
                    opposite = kept[side.other]
                    with self._timed("probe"):
                        self._probe(side, arrived, opposite, fresh=second)
                    with self._timed("store"):
                        self._store(team, side, arrived, kept[side], reports, own_file=not last)
            first = self._task.header.batch % len(team)
            with self._timed("merge"):
                after = [
                    [
                        [*older, *newer]
                        for older, newer in zip(
                            self._keeper.merge_all(kept[side].before, first),
                            kept[side].fresh,
                            strict=True,
                        )
                    ]
                    for side in PAIR
                ]
            with self._timed("count"):
                self._count_keys(team, [kept[side].homed for side in PAIR], after)
            counts = self._prober.counts.T.tolist()
            for seat, (instance, report) in enumerate(zip(team, reports, strict=True)):
                report.probed, report.candidates, n_results = counts[seat]
                report.results += n_results
                report.probe_copies = sum(report.received) - sum(report.stored)
                report.unbacked = self._unbacked(instance, [spines[seat] for spines in after])

    def _judge(self, team: Sequence[int], reports: Sequence[InstanceReport]) -> None:
        """Let the watchers at the instances judge the due entries."""
        if self._watchers is None:
            return
        results = self._desk.results
        with self._timed("watch"):
            for instance, report in zip(team, reports, strict=True):
                before = results.rows
                self._watchers.judge(instance, results)
                report.results += results.rows - before

    def _probe(self, side: Side, arrived: SortedTuples, theirs: _Kept, *, fresh: bool) -> None:
        """Pair the tuples of `side` with stored ones; `fresh`: also with those of this batch."""
        state = theirs.before
        if fresh:
            state = [older + newer for older, newer in zip(state, theirs.fresh, strict=True)]
        self._prober.probe(side, arrived, state)

    def _store(
        self,
        team: Sequence[int],
        side: Side,
        arrived: SortedTuples,
        kept: _Kept,
        reports: Sequence[InstanceReport],
        *,
        own_file: bool,
    ) -> None:
        """Seal the tuples that are stored here, and count the deliveries."""
        stored = (arrived.flags & KEPT) > 0
        words, columns, seats, bounds = (
            arrived.words,
            arrived.columns,
            arrived.seats,
            arrived.bounds,
        )
        received = np.diff(bounds).tolist()
        if not stored.all():
            words, columns = words[stored], columns.filter(pa.array(stored))
            seats = None if seats is None else seats[stored]
            bounds = row_bounds(seats, len(words), len(team))
        at_home, sizes = words, np.diff(bounds)
        if self._task.header.copied:
            at_home = arrived.words[(arrived.flags & STORE) > 0]
        kept.homed.append((at_home, seats))
        backups = len(words) - len(at_home)
        for report, came, held in zip(reports, received, sizes.tolist(), strict=True):
            report.received[side] += came
            report.stored[side] += held
            report.backed[side] += backups
        if not len(words) or self._spec.passes_by(side):
            return
        page = Page(words, columns.select(self._spec.stored_schema(side).names))
        filled = np.flatnonzero(sizes).tolist()
        ends = np.append(bounds[filled], bounds[-1])
        instances = [team[seat] for seat in filled]
        runs = self._keeper.seal_all(instances, ends, side, page, own_file=own_file)
        for seat, run in zip(filled, runs, strict=True):
            kept.fresh[seat].append(run)

    def _count_keys(
        self,
        team: Sequence[int],
        homed: Sequence[Sequence[tuple[Words, Seats]]],
        spines: Sequence[Runs],
    ) -> None:
        """Report exact counts of the keys that a planner may want to move, and the hottest keys.

        Runs of older layout versions are left out: no plan moves them.
        """
        newest = self._task.stored.versions[0]
        held = [
            [[run for run in spine if run.run.version == newest] for spine in spines[side]]
            for side in PAIR
        ]
        if len(team) == 1:
            alone = [held[side][0] for side in PAIR]
            words = [_joined([piece for piece, _ in homed[side]]) for side in PAIR]
            texts = texts_in(self._keying, alone)
            named = named_in(self._task.header.levels, self._keying, alone)
            self._desk.count_keys(team[0], words, alone, texts, named, self._prober.done)
            return
        stored = [group_seated(*_joined_seats(homed[side])) for side in PAIR]
        texts = texts_of_team(self._keying, stored, held)
        sheets = list[Sequence[Sheet]]()
        if self._task.header.counted is not None:
            sheets = [sheets_of(held[side]) for side in PAIR]
        self._desk.count_keys_of_team(team, stored, sheets, texts, self._prober.done)

    def _unbacked(self, instance: int, spines: Iterable[Sequence[OpenRun]]) -> int:
        """How many keys have their home at `instance` and no complete copy elsewhere."""
        stored = self._task.stored
        if not stored.missing or not isinstance(stored.router, TableRouter):
            return 0
        runs = (run for spine in spines for run in spine)
        newest = (run for run in runs if run.run.version == stored.versions[0])
        return unbacked_keys(stored.router, dict(stored.missing), instance, newest)

    def close(self) -> None:
        """Seal the marks of this batch for the watchers, and report the pairs left out."""
        capped, report = self._prober.capped, self._desk.report
        report.capped_pairs, report.capped = capped.pairs, capped.keys
        if self._watchers is not None:
            with self._timed("watch"):
                self._watchers.close()


def _joined(parts: Sequence[Words]) -> Words:
    """Sorted words in pieces -> all of them, sorted."""
    if len(parts) == 1:
        return parts[0]
    return np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))


def _joined_seats(parts: Sequence[tuple[Words, Seats]]) -> tuple[Words, Seats]:
    """Words sorted by seat and word, in pieces with seats -> all of them, sorted likewise."""
    if len(parts) == 1:
        return parts[0]
    words = np.concatenate([np.empty(0, np.uint64), *(piece for piece, _ in parts)])
    seats = np.concatenate(
        [
            np.empty(0, np.uint16),
            *(piece_seats for _, piece_seats in parts if piece_seats is not None),
        ]
    )
    order = seated_order(words, seats)
    return words[order], seats[order]
