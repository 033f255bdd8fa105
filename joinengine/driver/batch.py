"""The driver's part of a batch: it interprets what `joinengine.driver.step` decides.

`Jobs` runs the tasks and a `Sink` delivers; this module holds only the order of the steps.

Why this order: until the manifest of a batch is written, the batch has not happened; from then on
all of it has. Results are delivered after the manifest, and delivery can be repeated. So if the
driver is killed at any point, running the same batch again repairs it (docs/decisions/0001).

Law: a batch that the manifest knows is never computed again; one that does not follow it is
refused. A driver removes files of other drivers only once a manifest of its own is committed, and
never what a newer driver has made (docs/decisions/0009).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import RLock
from typing import Any

from joinengine.balancing.reasons import Reason
from joinengine.driver import clock, relayout, showings, step, totals
from joinengine.driver.attempts import Attempts
from joinengine.driver.cleaning import clean, clean_failed, clean_staged
from joinengine.driver.computing import Computing
from joinengine.driver.counts import read_counts
from joinengine.driver.durability import Uploaded
from joinengine.driver.failing import check_losses
from joinengine.driver.fitting import fitted
from joinengine.driver.jobs import Jobs
from joinengine.driver.records import BatchRecord, skipped_files
from joinengine.driver.relayout import Relayout
from joinengine.driver.restoring import line_to, restored
from joinengine.driver.settings import Settings
from joinengine.driver.showings import Held
from joinengine.driver.sinks import SideOutput, Sink
from joinengine.driver.step import Batch, Counts, Moment, Program
from joinengine.driver.wishes import Wishes
from joinengine.exchange.feeds import Skipped
from joinengine.exchange.ticks import request_tick
from joinengine.layouts import Chosen
from joinengine.layouts.base import LayoutChoice
from joinengine.model.errors import CheckpointMismatch, DamagedState, TakenOver
from joinengine.operators.base import QuerySpec
from joinengine.state import fence
from joinengine.state import manifest as manifests
from joinengine.state.checkpoint import Checkpoint, tick_name
from joinengine.state.manifest import Manifest
from joinengine.state.store import Store
from joinengine.world.storage import tagged

_log = logging.getLogger("joinengine")


class BatchRunner:
    """Runs the batches of one query; the callable that `foreachBatch` gets.

    It has a generation from `recover` on.
    """

    def __init__(
        self,
        jobs: Jobs,
        query: QuerySpec,
        choices: Sequence[LayoutChoice],
        checkpoint: Checkpoint,
        query_id: str,
        sink: Sink,
        settings: Settings,
        aside: SideOutput | None = None,
    ) -> None:
        self._jobs = jobs
        self.query = query
        self._world = checkpoint.world
        self._program = Program(
            query, settings, checkpoint.runs.folder, jobs.parallelism, driver=self._world.nonce()
        )
        self._query_id = query_id
        self._choices = [
            fitted(choice, operator, len(query.operators), settings.naming)
            for choice, operator in zip(choices, query.operators, strict=True)
        ]
        self.generation = 0
        self._committed = False
        self._wishes = Wishes(settings.schedule)
        self._checkpoint = checkpoint
        self._sink = sink
        self._aside = aside
        self.settings = settings
        self._held: Held = ()
        self._told = set[Skipped]()  # the files that this run has named as skipped
        self._turn = RLock()  # a listener may stop the query
        self._observers = list[Callable[[BatchRecord], None]]()
        self.manifest = Manifest(query_id, -1, ())
        self._resumed_for: Sequence[Reason | None] = ()
        self._store = Store.of(checkpoint, settings.kept_store)
        self._attempts = Attempts(jobs, self._world, settings, self._store)
        self._computing = Computing(self._program, jobs, self._attempts, checkpoint)
        self._uploaded = Uploaded(checkpoint, settings)
        self._counts: Counts = {}
        self._take_up_newest()
        for wish in chain.from_iterable(settings.schedule.values()):
            self._check(wish)
        check_losses(query.operators, self.manifest.operators, settings)
        self._sink.check_held(showings.staged(self.manifest), checkpoint)

    @property
    def choices(self) -> list[LayoutChoice]:
        """The layouts of the operators as they are now."""
        return [chosen.choice for chosen in self.chosen]

    @property
    def chosen(self) -> list[Chosen]:
        """The same, as they stand in the manifest."""
        return [state.layouts.newest for state in self.manifest.operators]

    @property
    def wishes(self) -> list[Relayout]:
        """The wishes of users that wait for the end of a batch."""
        return self._wishes.waiting

    def relayout(self, wish: Relayout) -> None:
        """Change all layouts after the running batch; InvalidRequest if one of them cannot."""
        self._check(wish)
        self._wishes.add(wish)

    def observe(self, observer: Callable[[BatchRecord], None]) -> None:
        """Call `observer` with the record of each batch that is computed."""
        self._observers.append(observer)

    def recover(self) -> None:
        """Take the checkpoint over, and finish what a kill has interrupted: deliver the last batch.

        An older driver on the checkpoint stops at its next step, perhaps after one more commit.
        """
        self.generation = fence.claim(self._checkpoint)
        if self._aside is not None:
            self._aside.prepare()
        self._take_up_newest()
        # If this driver slept since `claim`, a newer one may have committed what was just read, and
        # would remove the files of this one.
        self._check_alone()
        self._restore()
        if self._store is not None:
            self._store.take_up(self.manifest.operators)
        if self.manifest.batch >= 0:
            self._deliver(whole=True)

    def finish(self) -> None:
        """Show the results that are held back, and wait for uploads; no batch follows."""
        self._uploaded.settle()
        if any(files for _, files in self._held):
            with self._turn:
                self._deliver(whole=True)
                if self._committed:
                    makers = range(self.generation + 1)
                    clean_staged(self.manifest, self._sink, self._held, makers)

    def __call__(self, frame: Any, batch: int) -> None:
        """Run one micro-batch. Raises CheckpointMismatch if it does not follow the manifest.

        Raises TakenOver if another driver was started on the checkpoint, also in place of any
        error that follows from that.
        """
        with self._turn:
            self._check_alone()
            with self.fenced():
                self._run(frame, batch)

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """An error inside becomes TakenOver if another driver has been started."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, TakenOver):
                self._check_alone()
            raise

    def _run(self, frame: Any, batch: int) -> None:
        # Spark has read its logs later than this driver the manifests.
        if batch > self.manifest.batch + 1 and self._was_first(batch - 1):
            self._deliver()
        last = self.manifest
        if batch == last.batch:
            self._deliver()
            return
        if batch != last.batch + 1:
            raise CheckpointMismatch(
                f"batch {batch} does not follow batch {last.batch}, the last one of "
                f"{self._checkpoint.location}: Spark's own part of the checkpoint was changed or "
                f"removed; restore it, or start with a new checkpoint"
            )
        record = BatchRecord(batch, self._world.now_s())
        aside = None if self._aside is None else self._aside.staging.folder
        here = self._computing.open(batch, self.generation, record.started, aside)
        timed = partial(record.timed, self._world)
        with timed("elapsed_s"):
            try:
                ours, quiet = self._compute(frame, here, record)
            except Exception:
                if not self._was_first(batch):
                    raise
                ours, quiet = False, True
            with timed("sink_s"):
                self._deliver(whole=quiet and self.settings.finite)
            with timed("clean_s"):
                if ours:  # what was adopted may have been computed again, into files of other names
                    self._uploaded.committed(self.manifest)
                if self._committed:
                    delivered = self._sink, self._aside, self._held
                    clean(self._checkpoint, self.manifest, self._uploaded.kept, *delivered)
                self._request_tick(batch, quiet=quiet)
        if ours:
            self._resumed_for = (None,) * len(record.joins)
            for observer in self._observers:
                observer(record)

    def _compute(self, frame: Any, here: Batch, record: BatchRecord) -> tuple[bool, bool]:
        """Compute a batch and commit it: what `_commit` returns, and whether nothing arrived."""
        last, timed = self.manifest, partial(record.timed, self._world)
        with self._leaving_nothing():
            if here.number in self.settings.kills:
                self._attempts.kill(here.number)
            self._uploaded.share(last)
            with timed("route_s"):
                routed = self._computing.route(frame, last, here)
            with timed("join_s"):
                told = partial(self._sink.target, self.generation), record, self._resumed_for
                done = self._computing.run(here, last, self._counts, routed, *told)
        with timed("plan_s"):
            wishes = self._wishes.before(here.number + 1)
            moment = Moment(self._world.now_s(), self._world.nonce())
            after = step.close(self._program, last, here, done, self._counts, wishes, moment)
            record.skipped = skipped_files(routed, self._told)
            after = self._with_skipped(after, record.skipped)
        with timed("commit_s"):
            record.close(routed, done, self.query, last, after)
            is_copied = self._attempts.is_copied(self.query.operators, done.states)
            is_copied &= last.batch >= 0 or not self.query.tables  # which are read only once
            ours = self._commit(totals.counted(after, last.totals, record), is_copied)
        record.recovery_s = self._attempts.recovery_s(record)
        return ours, not any(one.rows for one in done.arrived.inputs)

    @contextmanager
    def _leaving_nothing(self) -> Iterator[None]:
        """What tasks have written inside is removed if they fail."""
        try:
            yield
        except Exception:
            named = self.manifest, self._uploaded.kept, self._sink, self._held
            with suppress(Exception):  # the first error is the one to tell
                clean_failed(self._checkpoint, *named, self.generation)
            raise

    # The steps

    def _with_skipped(self, after: step.Next, skipped: Sequence[Skipped]) -> step.Next:
        """The outcome of a batch, whose side output names the source files that were skipped."""
        for one in skipped:
            _log.warning("joinengine: source file %s is left out: it %s", one.file, one.reason)
        if self._aside is None or not skipped:
            return after
        manifest = after.manifest
        name = tagged(self.generation, f"skipped-{self._world.nonce()}.parquet")
        staged = self._aside.stage_skipped(name, manifest.batch, skipped)
        return replace(after, manifest=replace(manifest, refused=(*manifest.refused, staged)))

    def _commit(self, after: step.Next, is_copied: bool) -> bool:
        """Commit `after`; False if an older driver has committed the batch, which is then adopted.

        `is_copied`: as in `Uploaded.restorable`.

        Spark logs the offsets of a batch before the batch is computed, so both drivers have
        processed the same tuples.
        """
        for name, content in after.sealed.items():
            self._checkpoint.runs.put(name, content)
        if self._store is not None:
            self._store.keep(after.manifest.operators)
        done = replace(
            after.manifest,
            generation=self.generation,
            nonce=self._world.nonce(),
            parent=self.manifest.link,
            restorable=self._uploaded.restorable(after.manifest, is_copied=is_copied),
            spark=self._jobs.logged(after.manifest.batch),
            held=self._held if self._sink.every > 1 else None,
        )
        found = manifests.commit(self._checkpoint, done, self.manifest)
        if found.nonce == done.nonce:
            self.manifest, self._counts, self._committed = found, after.counts, True
            return True
        self._adopt(found)
        return False

    def _was_first(self, batch: int) -> bool:
        """Whether an older driver has committed a batch since; then it is adopted."""
        with suppress(Exception):  # the first error is the one to tell
            found = manifests.newest(self._checkpoint.manifests)
            if found and found.batch >= batch and found.generation < self.generation:
                self._adopt(found)
                return True
        return False

    def _adopt(self, found: Manifest) -> None:
        """Go on from a batch that an older driver has committed."""
        _log.warning(
            "joinengine: the driver before this one (generation %s) was first to commit batch %s "
            "of checkpoint %s; this one, generation %s, has taken over and goes on from there",
            *(found.generation, found.batch, self._checkpoint.location, self.generation),
        )
        self._take_up(found)
        self._restore()
        self._wishes.give_back()

    # Around the steps

    def _take_up_newest(self) -> None:
        """Go on from the newest manifest; an older driver may commit a newer one at any moment."""
        folder = self._checkpoint.manifests
        while True:
            found = manifests.newest(folder)
            try:
                return self._take_up(found)
            except DamagedState:
                again = manifests.newest(folder)
                if found is None or again is None or again.nonce == found.nonce:
                    raise

    def _take_up(self, found: Manifest | None) -> None:
        """Go on from the manifest `found`; None: begin."""
        if found is not None and found.query != self._query_id:
            raise CheckpointMismatch(
                f"{self._checkpoint.location} holds the state of query {found.query}, not "
                f"{self._query_id}"
            )
        if found is None:
            found = step.begin(self.query, self._choices, self._query_id)
        self._counts = read_counts(self._checkpoint, found)
        self.manifest, self._resumed_for = step.resume(
            self.query, found, self._choices, lazy=self.settings.lazy
        )

    def _restore(self) -> None:
        """Compute again what the newest manifest names and executors have taken with them."""
        newest = self.manifest
        found, lost = line_to(self._checkpoint, newest)
        if found is None:
            found = step.begin(self.query, self._choices, self._query_id)
        self._uploaded.start(found)
        if not lost:
            return
        _log.warning(
            "joinengine: batches %s to %s of checkpoint %s had state on executors that are gone; "
            "they are computed again from their sources, and not delivered again",
            *(lost[0].batch, newest.batch, self._checkpoint.location),
        )
        start = found, read_counts(self._checkpoint, found)
        whole = self._computing, self._uploaded, self.generation, start, lost
        manifest, self._counts = restored(self._checkpoint, self._jobs, *whole)
        self.manifest, self._resumed_for = step.resume(
            self.query, manifest, self._choices, lazy=self.settings.lazy
        )

    def _check_alone(self) -> None:
        fence.check_generation(self._checkpoint.generations, self.generation)

    def _check(self, wish: Relayout) -> None:
        for operator, state in zip(self.query.operators, self.manifest.operators, strict=True):
            here = wish.fitted(operator, len(self.query.operators), self.settings.naming)
            relayout.check(operator, state.layouts, here)

    def _deliver(self, *, whole: bool = False) -> None:
        """Make the results and the refused tuples that the manifest names visible.

        If results are held back until there are those of several batches, `whole` shows them now.
        """
        last = self.manifest
        if last.held is None:
            self._sink.deliver(last.batch, last.results, self.generation)
            self._held = ()
        else:
            self._held = self._sink.deliver_held(
                showings.staged(last), self._checkpoint, self.generation, whole=whole
            )
        if self._aside is not None:
            self._aside.deliver(self.manifest.batch, self.manifest.refused)

    def _request_tick(self, batch: int, *, quiet: bool) -> None:
        """Ask for a batch without data if some state is due to leave."""
        due = clock.tick_due(self.query, self.manifest, quiet, self._world.now_s())
        if self.settings.finite and any(files for _, files in self._held):
            due = 0.0  # at once: if no data follows, a quiet batch shows what is held back
        if due is not None:
            request_tick(self._checkpoint.ticks, tick_name(self.generation), batch + 1, due)
