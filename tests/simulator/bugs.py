"""Bugs that are planted into the engine: a simulator that does not find them is blind.

Each is a context in which the engine is wrong in one way.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from joinengine.driver import batch, cleaning, clock, relayout, step
from joinengine.driver import computation as computing
from joinengine.driver.recovery import durability
from joinengine.exchange import blocks
from joinengine.layouts.key_based import KeyBased
from joinengine.model.aggregation import Stage
from joinengine.operators import Aggregation, Join
from joinengine.operators.timing import Limit
from joinengine.results import showings
from joinengine.results import sinks as driver_sinks
from joinengine.routing.routes import BACKUP, probe_flag
from joinengine.routing.table import RoutingTable
from joinengine.state import fence, line, manifests
from joinengine.state.changes import changed
from joinengine.wire.reports import OperatorReport
from joinengine.world.remote import RemoteStorage
from joinengine.world.storage import remove_unnamed
from tests.simulator import disk, jobs
from tests.simulator.log_bugs import LOG_BUGS
from tests.simulator.loop_bugs import LOOP_BUGS
from tests.simulator.targets import TOKEN_BUGS, delivery_first


def _no_boundary():
    """Whoever finds the name of a manifest free takes it, if it was there and is removed."""
    return patch.object(fence, "check_boundary", lambda checkpoint, batch: None)


def _no_nonce():
    """A manifest that exists is taken for one's own."""
    real = manifests.commit

    def commit(checkpoint, ours, last=None):
        return replace(real(checkpoint, ours, last), nonce=ours.nonce)

    return patch.object(manifests, "commit", commit)


def _removal_first():
    """What the next manifest does not name is removed before it is committed."""
    real = batch.BatchRunner._commit

    def commit(self, draft):
        named = draft.outcome.named_files()
        remove_unnamed(self._checkpoint.runs, named, range(self.generation + 1))
        return real(self, draft)

    return patch.object(batch.BatchRunner, "_commit", commit)


@contextmanager
def _removal_by_exclusion():
    """All that the newest manifest does not name is removed, also what newer drivers have made."""

    def remove(storage, named, generation):
        return remove_unnamed(storage, named, range(1 << 60))

    with (
        patch.object(cleaning, "remove_unnamed", remove),
        patch.object(driver_sinks, "remove_unnamed", remove),
    ):
        yield


def _exclusions_forgotten():
    """A tuple that has moved away is still where it was."""
    real = computing.fold

    def fold(state, reports):
        return real(state, [_without_exclusions(state, report) for report in reports])

    return patch.object(computing, "fold", fold)


def _without_exclusions(state, report):
    known = state.shelves.runs
    changes = {
        shelf: replace(
            one,
            runs={ident: known.get(shelf, {}).get(ident, run) for ident, run in one.runs.items()},
        )
        for shelf, one in report.changes.items()
    }
    return replace(report, changes=changes)


def _moves_forgotten():
    """A driver that starts again does not make the moves that its manifest asks for."""
    real = step.resume

    def resume(query, found, choices, *, lazy):
        states = tuple(
            replace(one, layouts=replace(one.layouts, pending=None)) for one in found.operators
        )
        return real(query, replace(found, operators=states), choices, lazy=lazy)

    return patch.object(step, "resume", resume)


@contextmanager
def _one_name_for_all_attempts():
    """Two attempts of a task write the same files."""

    def nonce(self):
        self.named = getattr(self, "named", 0) + 1
        return f"attempt{self.named:05d}"

    with patch.object(disk.TaskWorld, "nonce", nonce):
        yield


def _expired_too_early():
    """State leaves while a partner may still come."""
    real = Join.expire

    def expire(self, state):
        clock = state.clock
        ahead = replace(state, clock=replace(clock, watermark=clock.watermark + 40))
        left, gone = real(self, ahead)
        return replace(left, clock=clock), gone

    return patch.object(Join, "expire", expire)


def _one_generation():
    """Drivers that start at the same moment are of one generation."""

    def claim(checkpoint):
        wanted = max(fence.greatest(checkpoint.generations, 0), 1)
        fence.mark(checkpoint.generations, wanted)
        return wanted

    return patch.object(fence, "claim", claim)


def _changes_of_the_newest_alone():
    """The changes of the last batch are applied to nothing but themselves."""
    real = changed

    def forgetful(before, told):
        after = real(before, told)
        if not before.shelves.files:
            return after
        return replace(after, shelves=replace(after.shelves, runs=before.shelves.runs))

    return patch.object(manifests.changes, "changed", forgetful)


def _older_layouts_forgotten():
    """Tuples that lie by an older layout are not looked for there."""
    real = computing.fold

    def fold(state, reports):
        after = real(state, reports)
        return replace(after, layouts=replace(after.layouts, older={}))

    return patch.object(computing, "fold", fold)


def _backups_beside_their_homes():
    """A tuple looks for partners where its backup goes, too."""
    real = blocks.BlockWriter._route

    def route(self, admitted, words, u):
        found = real(self, admitted, words, u)
        flags = found.flags.copy()
        flags[flags == BACKUP] |= probe_flag(0)
        return found._replace(flags=flags)

    return patch.object(blocks.BlockWriter, "_route", route)


def _reports_of_a_failed_attempt():
    """A task that has failed is believed to have written what it said at first."""
    real = jobs.SimulatedJobs._tried

    def tried(self, attempt, *told):
        report, exchange = real(self, attempt, *told)
        if attempt is jobs._operate and self.scheduler.rng.random() < 0.1:
            report = OperatorReport(report.task)
        return report, exchange

    return patch.object(jobs.SimulatedJobs, "_tried", tried)


def _kept_by_the_newest_alone():
    """What the restorable batch names is removed, if the newest does not name it."""
    return patch.object(cleaning, "_named", lambda manifest, kept: manifest.named_files())


def _uploads_believed():
    """Files are taken for uploaded as soon as they are written."""

    def look(self):
        self._seen = frozenset().union(*map(durability.files_of, self._line))
        self._advance()

    return patch.object(durability.Uploaded, "_look", look)


def _manifests_of_the_newest_alone():
    """The manifests from the restorable batch on are removed, as if the newest were enough."""
    real = line.retire
    return patch.object(line, "retire", lambda here, newest, restorable: real(here, newest, newest))


def _copies_believed():
    """A copy of a cache that was altered is not read again from the store."""
    return patch.object(RemoteStorage, "forget", lambda self, name: False)


def _showings_forgotten():
    """What has become visible together is written down nowhere but in the next manifest."""

    def created(checkpoint, start, through, files):
        return showings.Showing(through, tuple(files))

    return patch.object(showings, "create", created)


def _plan_of_the_last_interval():
    """The routing table knows the keys of the last interval alone, and state of others stays."""
    real = relayout.after_batch

    def after_batch(operator, state, history, *asked, **settings):
        after, reason = real(operator, state, history, *asked, **settings)
        newest = after.layouts.newest
        if not history or not isinstance(newest.layout, KeyBased):
            return after, reason
        here = set(history[-1].loaded.tolist())
        table = {key: at for key, at in newest.layout.table.placements.items() if key in here}
        layout = replace(newest.layout, table=RoutingTable(table))
        layouts = replace(after.layouts, newest=replace(newest, layout=layout))
        return replace(after, layouts=layouts), reason

    return patch.object(relayout, "after_batch", after_batch)


def _results_in_time():
    """What follows a join does not wait for results that come a batch after their cause."""
    real = clock._side

    def side(*asked):
        ours, limit = real(*asked)
        return ours, limit._replace(lags=False)

    return patch.object(clock, "_side", side)


def _parts_forgotten():
    """A window is over although partial results of it are still held before the aggregators."""
    real = Aggregation.limit

    def limit(self, side, newest, upstream):
        if self.stage is Stage.MERGE:
            return Limit(upstream.states[self.inputs[0].operator].clock.watermark)
        return real(self, side, newest, upstream)

    return patch.object(Aggregation, "limit", limit)


#: Name -> the engine with the bug.
BUGS = LOOP_BUGS | {
    "no boundary": _no_boundary,
    "no nonce": _no_nonce,
    "removal first": _removal_first,
    "removal by exclusion": _removal_by_exclusion,
    "exclusions forgotten": _exclusions_forgotten,
    "moves forgotten": _moves_forgotten,
    "results before the manifest": delivery_first,
    "one name for all attempts": _one_name_for_all_attempts,
    "expired too early": _expired_too_early,
    "one generation": _one_generation,
    "changes of the newest alone": _changes_of_the_newest_alone,
    "older layouts forgotten": _older_layouts_forgotten,
    "backups beside their homes": _backups_beside_their_homes,
    "a report of nothing": _reports_of_a_failed_attempt,
    "kept by the newest alone": _kept_by_the_newest_alone,
    "uploads believed": _uploads_believed,
    "manifests of the newest alone": _manifests_of_the_newest_alone,
    "copies believed": _copies_believed,
    **LOG_BUGS,
    "showings forgotten": _showings_forgotten,
    "a plan of the last interval": _plan_of_the_last_interval,
    "results in time": _results_in_time,
    "parts forgotten": _parts_forgotten,
    **TOKEN_BUGS,
}
