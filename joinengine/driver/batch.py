"""The driver's part of a batch: open, route, compute, draft, commit, show, clean.

Each stage is a value made from the previous stage (`joinengine.driver.stages`).
`joinengine.driver.step` computes its content, `Jobs` runs the tasks, and a `Sink` delivers. This
module holds only the order of the steps.

Why this order: a batch has happened if and only if its manifest is written. Results are delivered
after the manifest, and delivery can be repeated. So if the driver is killed at any point, running
the same batch again repairs it (docs/decisions/0001).

Law: a committed batch is never committed again, and a micro-batch that does not follow the manifest
is refused. A driver removes files of other drivers only once it has committed a manifest of its
own, and never the files of a newer driver (docs/decisions/0009).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any

from joinengine.balancing.reasons import Reason
from joinengine.driver import clock, relayout, step
from joinengine.driver.cleaning import clean, clean_failed, clean_staged
from joinengine.driver.committing import Committing
from joinengine.driver.computation import Computing, end_of
from joinengine.driver.counts import read_counts
from joinengine.driver.jobs import Jobs
from joinengine.driver.layout_fit import fitted
from joinengine.driver.records import BatchRecord
from joinengine.driver.recovery.attempts import Attempts, store_of
from joinengine.driver.recovery.durability import Uploaded
from joinengine.driver.recovery.restoration import line_to, restored
from joinengine.driver.settings import Settings
from joinengine.driver.stages import Counts, Draft, Moment, Program
from joinengine.driver.stopwatch import Stopwatch, WallClock
from joinengine.driver.wishes import Wishes
from joinengine.layouts import Chosen
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.errors import CheckpointMismatch, DamagedState, TakenOver
from joinengine.model.skipped import Skipped
from joinengine.operators.base import QuerySpec
from joinengine.results.delivery import Delivery
from joinengine.state import fence, manifests
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Handed, Manifest, Position
from joinengine.state.wished import Relayout

_log = logging.getLogger("joinengine")


class BatchRunner:
    """Runs the batches of one query.

    It has a generation from `recover` on. `delivery` makes its results visible.
    """

    def __init__(
        self,
        jobs: Jobs,
        query: QuerySpec,
        choices: Sequence[LayoutChoice],
        checkpoint: Checkpoint,
        query_id: str,
        delivery: Delivery,
        settings: Settings,
    ) -> None:
        self.jobs = jobs
        self.query = query
        self._world = checkpoint.world
        self._program = Program(
            replace(query, operators=tuple(map(settings.trial.carried, query.operators))),
            *(settings, checkpoint.runs.folder, jobs.parallelism),
            driver=self._world.nonce(),
        )
        self._query_id = query_id
        self._choices = [
            fitted(choice, operator, len(query.operators), settings.naming)
            for choice, operator in zip(choices, query.operators, strict=True)
        ]
        self.generation, self._committed = 0, False
        self._wishes = Wishes(settings.schedule)
        self._checkpoint = checkpoint
        self.delivery = delivery
        self.settings = settings
        self._named = set[Skipped]()  # the files that this run has named as skipped
        self._turn = RLock()  # a listener may stop the query
        self._wall_clock = WallClock(self._world)
        self._observers = list[Callable[[BatchRecord], None]]()
        self.manifest = Manifest(query_id, -1, ())
        self._resumed_for: Sequence[Reason | None] = ()
        self._store = store_of(checkpoint, query_id, settings)
        self._attempts = Attempts(jobs, self._world, settings, self._store)
        self._computing = Computing(self._program, jobs, self._attempts, checkpoint)
        self._uploaded = Uploaded(checkpoint, settings)
        self._committing = Committing(
            query, checkpoint, jobs, self._store, self._attempts, self._uploaded
        )
        self._counts: Counts = {}
        self._take_up_newest()
        self._check(self._wishes.coming(self.manifest.batch + 1))
        settings.trial.check(query.operators, self.manifest.operators, settings)
        self.delivery.check_sink(self.manifest)

    @property
    def choices(self) -> list[LayoutChoice]:
        """The present choice of layout of each operator."""
        return [chosen.choice for chosen in self.chosen]

    @property
    def chosen(self) -> list[Chosen]:
        """The present layout of each operator, as in the manifest."""
        return [state.layouts.newest for state in self.manifest.operators]

    @property
    def wishes(self) -> list[Relayout]:
        """The wishes of users that wait for the end of a batch."""
        return self._wishes.waiting

    def relayout(self, wish: Relayout) -> None:
        """Change all layouts after the running batch; InvalidRequest if one of them cannot."""
        self._wishes.add(wish, self.manifest.batch + 1, self._check)

    def observe(self, observer: Callable[[BatchRecord], None]) -> None:
        """Call `observer` with the record of each batch that is computed."""
        self._observers.append(observer)

    def recover(self, generation: int | None = None) -> None:
        """Take the checkpoint over, and deliver the last batch, in case a kill has interrupted it.

        An older driver stops at its next step, perhaps after a commit. None: claim a `generation`.
        """
        self.generation = fence.claim(self._checkpoint) if generation is None else generation
        if self.delivery.aside is not None:
            self.delivery.aside.prepare()
        self._take_up_newest()
        self.check_alone()  # the manifest may be a newer driver's, whose files must stay
        self._restore()
        if not self.settings.finite:  # a finite run need not wait until a source is idle
            self.manifest = clock.awake(self.manifest, self._world.now_s())
        if self._store is not None:
            self._store.take_up(self.manifest.operators)
        self.delivery.sink.begin(self.manifest.batch, self.generation)
        if self.manifest.batch >= 0:
            self.delivery.check(self.manifest)
            self._deliver(whole=True)

    def finish(self) -> None:
        """Show the results that are held back, and wait for uploads; no batch follows."""
        self._uploaded.settle()
        if self.delivery.is_holding:
            with self._turn, closing(self.delivery.sink):
                self._deliver(whole=True)
                if self._committed:
                    clean_staged(self.manifest, self.delivery, range(self.generation + 1))

    def run(self, end: Position, handed: Handed | None = None) -> None:
        """Run the next batch, which ends at `end` in each source.

        `handed`: Spark's last micro-batch so far. Raises TakenOver if another driver was started on
        the checkpoint, also in place of any error that results from that.
        """
        with self._turn:
            self.check_alone()
            with self.fenced():
                self._run(None, end, handed)

    def take(self, frame: Any, handed: Handed, end: Callable[[], Position]) -> None:
        """Run the next batch, with the tuples of one of Spark's micro-batches, up to `end()`.

        On return, a manifest holds the micro-batch. If one did before, its results are delivered
        again. Raises CheckpointMismatch if the micro-batch does not follow the manifest, and the
        errors of `run`.
        """
        with self._turn:
            self.check_alone()
            with self.fenced():
                if self._holds(handed):
                    self._deliver()
                # An older driver may commit the batch first, with or without this micro-batch.
                while not self._holds(handed):
                    self._run(frame, end(), handed)

    @property
    def position(self) -> Position:
        """Where the next batch begins in each source."""
        return end_of(self.jobs, self.manifest)

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """An error inside becomes TakenOver if another driver has been started."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, TakenOver):
                self.check_alone()
            raise

    def _holds(self, handed: Handed) -> bool:
        """Whether a manifest holds a micro-batch of Spark's; CheckpointMismatch as in `take`."""
        noted = self.manifest.handed
        if noted is not None and handed.is_replay_of(noted):
            return True
        if handed.follows(noted):
            return False
        # Spark may have read its logs after this driver had read the manifests.
        if self._was_first(self.manifest.batch + 1):
            self._deliver()
            return self._holds(handed)
        last = "no micro-batch" if noted is None else f"micro-batch {noted.batch}"
        raise CheckpointMismatch(
            f"micro-batch {handed.batch} of Spark does not follow {last}, the last one in "
            f"{self._checkpoint.location}: Spark's part of the checkpoint was changed or removed; "
            "restore it, or start with a new checkpoint"
        )

    def _run(self, frame: Any, end: Position, handed: Handed | None) -> None:
        """Compute the next batch, commit it, show its results, and clean up."""
        self.manifest = self._wall_clock.followed(self.manifest)
        watch, number = Stopwatch.started(self._world), self.manifest.batch + 1
        record = None  # stays None if an older driver has committed the batch
        with watch.timed("elapsed_s"):
            try:
                draft = self._drafted(frame, end, handed, watch)
                with watch.timed("commit_s"):
                    is_ours = self._commit(draft)
                recovery_s = self._attempts.recovery_s(watch.seconds)
                if is_ours:
                    record = replace(draft.record, recovery_s=recovery_s, seconds=watch.seconds)
                    record.tasks = self.jobs.done_by
            except Exception:
                if not self._was_first(number):
                    raise
            with watch.timed("sink_s"):
                self._deliver(whole=self.manifest.quiet and self.settings.finite)
            with watch.timed("clean_s"):
                self._clean(is_ours=record is not None)
        if record is not None:
            for observer in self._observers:
                observer(record)

    def _drafted(self, frame: Any, end: Position, handed: Handed | None, watch: Stopwatch) -> Draft:
        """The next batch, ready to be committed."""
        with self._leaving_nothing():
            opened = self._computing.open(
                self.manifest, self._counts, end, self.generation, watch.clock_s
            )
            aside = self.delivery.aside
            opened = replace(
                opened,
                aside=None if aside is None else aside.staging.folder,
                resumed_for=self._resumed_for,
                named=frozenset(self._named),
                handed=handed,
            )
            if opened.number in self.settings.kills:
                self._attempts.kill(opened.number)
            self._uploaded.share(opened.last)
            with watch.timed("route_s"):
                routed = self._computing.route(frame, opened, aside)
            with watch.timed("join_s"):
                target = partial(self.delivery.sink.target, self.generation)
                computed = self._computing.run(routed, target)
        with watch.timed("plan_s"):
            wishes = self._wishes.before(opened.number + 1)
            held = self.delivery.before_next
            moment = Moment(watch.now_s(), self._world.nonce(), wishes, held)
            return step.close(self._program, computed, moment)

    @contextmanager
    def _leaving_nothing(self) -> Iterator[None]:
        """If the block fails, remove the files that its tasks have written."""
        try:
            yield
        except Exception:
            kept = self._uploaded.kept
            with suppress(Exception):  # report the first error
                clean_failed(self._checkpoint, self.manifest, kept, self.delivery, self.generation)
            raise

    def _commit(self, draft: Draft) -> bool:
        """Commit a batch; False if an older driver has committed it, which is then adopted."""
        newest, is_ours = self._committing.commit(draft, self.manifest, self.generation)
        if not is_ours:
            self._adopt(newest)
            return False
        self.manifest, self._counts, self._committed = newest, draft.counts, True
        self._resumed_for = ()
        self._wishes.granted(newest.wishes or ())
        self._name(newest)
        return True

    def _name(self, manifest: Manifest) -> None:
        """Log the source files and messages that a batch has skipped, each once in a run."""
        for skip in manifest.skipped:
            if skip not in self._named:
                _log.warning("joinengine: skipped %s: it %s", *skip)
        self._named.update(manifest.skipped)

    def _clean(self, *, is_ours: bool) -> None:
        """Remove what no manifest names."""
        if is_ours:  # `_restore` may have computed an adopted batch again, into other files
            self._uploaded.committed(self.manifest)
        if self._committed:
            kept = self._uploaded.kept
            clean(self._checkpoint, self.manifest, kept, self.delivery, self._store)

    def _was_first(self, batch: int) -> bool:
        """Whether an older driver has committed a batch since; then it is adopted."""
        with suppress(Exception):  # report the first error
            newest = manifests.newest(self._checkpoint.manifests)
            if newest and newest.batch >= batch and newest.generation < self.generation:
                self._adopt(newest)
                return True
        return False

    def _adopt(self, newest: Manifest) -> None:
        """Go on from a batch that an older driver has committed."""
        _log.warning(
            "joinengine: the previous driver (generation %s) committed batch %s of checkpoint %s "
            "first; this driver, generation %s, has taken over and goes on from that batch",
            *(newest.generation, newest.batch, self._checkpoint.location, self.generation),
        )
        self._take_up(newest)
        self._restore()
        self._name(newest)

    def _take_up_newest(self) -> None:
        """Go on from the newest manifest; an older driver may commit a newer one at any moment."""
        folder = self._checkpoint.manifests
        while True:
            newest = manifests.newest(folder)
            try:
                return self._take_up(newest)
            except DamagedState:
                again = manifests.newest(folder)
                if newest is None or again is None or again.nonce == newest.nonce:
                    raise

    def _take_up(self, newest: Manifest | None) -> None:
        """Go on from the manifest `newest`; None: begin."""
        if newest is not None and newest.query != self._query_id:
            raise CheckpointMismatch(
                f"{self._checkpoint.location} holds the state of query {newest.query}, not of "
                f"query {self._query_id}; restore the checkpoint from a copy"
            )
        if newest is None:
            newest = step.begin(self.query, self._choices, self._query_id)
        self._counts = read_counts(self._checkpoint, newest)
        self.manifest, self._resumed_for = step.resume(
            self.query, newest, self._choices, lazy=self.settings.lazy
        )

    def _restore(self) -> None:
        """Compute again the state that the newest manifest names and that died with executors."""
        newest = self.manifest
        manifest, lost = line_to(self._checkpoint, newest)
        if manifest is None:
            manifest = step.begin(self.query, self._choices, self._query_id)
        self._uploaded.start(manifest)
        if not lost:
            return
        _log.warning(
            "joinengine: executors that are gone held state of batches %s to %s of checkpoint "
            "%s; these batches are computed again from their sources, and their results are not "
            "delivered again",
            *(lost[0].batch, newest.batch, self._checkpoint.location),
        )
        start = manifest, read_counts(self._checkpoint, manifest)
        whole = self._computing, self._uploaded, self.generation, start, lost
        manifest, self._counts = restored(self._checkpoint, self.jobs, *whole)
        self.manifest, self._resumed_for = step.resume(
            self.query, manifest, self._choices, lazy=self.settings.lazy
        )

    def check_alone(self) -> None:
        """Raise TakenOver if another driver was started on the checkpoint."""
        fence.check_generation(self._checkpoint.generations, self.generation)

    def _check(self, wishes: Sequence[Relayout]) -> None:
        for operator, newest in zip(self.query.operators, self.chosen, strict=True):
            known = len(self.query.operators), self.settings.naming
            relayout.check(operator, newest, wishes, *known)

    def _deliver(self, *, whole: bool = False) -> None:
        """Make the results visible that the manifest names; `whole`: also those held back."""
        self.delivery.deliver(self.manifest, self.generation, whole=whole)

    def tick_due(self, now_s: float) -> float | None:
        """When a batch without data is due after one that ended at `now_s`; None: never."""
        self.manifest = self._wall_clock.followed(self.manifest)
        if self.settings.finite and self.delivery.is_holding:  # a quiet batch shows the results
            return 0.0
        due = clock.tick_due(self.query, self.manifest, now_s), self.delivery.due_s
        return min((moment for moment in due if moment is not None), default=None)
