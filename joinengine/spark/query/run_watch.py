"""Collects what a run of a query has done: records of its batches, and Spark's progress reports."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from joinengine.driver.hot_keys import Heat
from joinengine.driver.records import BatchRecord
from joinengine.model.arguments import kind_of
from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import counted
from joinengine.reporting.alerts import Alerts
from joinengine.reporting.plan_log import PlanLog, log_plans
from joinengine.reporting.progress import filled, offsets, outline, whole_s
from joinengine.reporting.story import Story
from joinengine.spark.query.loop_thread import Running

_log = logging.getLogger("joinengine")

#: How many batches have their hot keys kept, and how many their records: 5 KB for each join of few
#: instances. Otherwise, a query that runs for weeks would fill the driver's memory.
_KEPT_HOT = 1_000
KEPT = 10_000
#: Fewer records are kept if these have more instances, over all joins and batches: some 100 MB.
KEPT_INSTANCES = 400_000
#: How many records are dropped at a time, since dropping the first items of a list is slow.
_DROPPED = 100
#: Called with the progress of each batch.
Listener = Callable[[StreamingQueryProgress], None]
#: Takes the record of each batch. It must return at once, because the query waits for it.
Taker = Callable[[BatchRecord], object]


class Watch:
    """Collects batch records and, from Spark, how long each whole trigger took.

    It asks Spark after every batch, since Spark keeps only the last progress reports. A listener of
    Spark's would leave errors in the log of every program that ends without stopping Spark.
    `operators`: the names of the query's operators. `plans`: how plans are logged. `most_reports`:
    the number of batches in `recent_progress`. `alerts`: the warnings that the query gives; None:
    it gives none.
    """

    def __init__(
        self,
        operators: Sequence[str],
        plans: PlanLog = PlanLog.WORDS,
        most_reports: int = 100,
        alerts: Alerts | None = None,
    ) -> None:
        self._alerts = alerts
        self._plans = plans
        self._most_reports = most_reports
        self.running: Running | None = None
        self.records = list[BatchRecord]()
        #: how many records were dropped, the seconds of their batches, and their result rows
        self._dropped, self._dropped_s, self._dropped_rows = 0, 0.0, 0
        self.done = (0, 0)
        self.stopping = False
        self._operators = operators
        self._triggers = dict[int, float]()
        self._listeners = list[Listener]()
        self._story: Story | None = None
        self._takers = list[Taker]()
        self._handing_on = threading.Lock()
        self._telling = threading.Lock()

    def note(self, record: BatchRecord) -> None:
        """Take a record, and the trigger time of an earlier batch; call takers and listeners."""
        record.trigger_s = record.seconds["elapsed_s"]
        self._ask_spark()
        with self._handing_on:
            self.records.append(record)
            self._drop_oldest()
            for take in self._takers:
                try:
                    take(record)
                except Exception:  # the query does not depend on those who watch it
                    _log.exception("joinengine: batch %s could not be reported", record.batch)
        for text in [] if self._alerts is None else self._alerts.take(record):
            _log.warning("joinengine: %s", text)
        log_plans(record, self._plans, None if self.running is None else self.running.name)
        self.done = (self.done[0] + record.input_rows, self.done[1] + 1)
        if len(self.records) > _KEPT_HOT:
            for join in self.records[-_KEPT_HOT - 1].joins:
                join.heat = Heat()
        if self._listeners and self.running is not None:
            self._tell(record)

    def _drop_oldest(self) -> None:
        """Keep only the records of the last batches: KEPT if instances are few, or a few more."""
        instances = sum(join.instances for join in self.records[-1].joins)
        most = max(min(KEPT, KEPT_INSTANCES // max(instances, 1)), _DROPPED)
        if len(self.records) < most + _DROPPED:
            return
        oldest = self.records[:-most]
        for record in oldest:
            self._dropped_s += whole_s(record)
            self._dropped_rows += record.output_rows
            if record.handed is not None:
                self._triggers.pop(record.handed, None)
        del self.records[: len(oldest)]
        self._dropped += len(oldest)

    def _ask_spark(self) -> None:
        """Note how long Spark's last finished trigger took."""
        spark: Any = None if self.running is None else self.running.query
        last = None if spark is None else spark._jsq.lastProgress()
        if last is None or last.durationMs().get("triggerExecution") is None:
            return
        self._triggers[last.batchId()] = last.durationMs().get("triggerExecution") / 1e3
        if self.records:
            self._note_trigger(self.records[-1])

    def _note_trigger(self, record: BatchRecord) -> None:
        """Note how long a whole batch took, with Spark's time for its micro-batch."""
        elapsed_s = record.seconds["elapsed_s"]
        spent_s = 0.0 if record.handed is None else self._triggers.get(record.handed, 0.0)
        record.trigger_s = max(elapsed_s, spent_s)

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` after each batch from now on.

        Raises InvalidRequest for what cannot be called, such as a listener object of Spark's.
        """
        if not callable(listener):
            raise InvalidRequest(
                f"add_listener: {kind_of(listener)} is not a function; give a function that takes "
                f"the progress of a batch. A StreamingQueryListener goes to spark.streams"
            )
        self._listeners.append(listener)

    def story(self, fresh: Callable[[], Story]) -> Story:
        """The story so far; the first call makes it, by `fresh`, and later batches update it."""
        with self._telling:
            if self._story is None:
                story = fresh()
                self.follow(story.add)
                self._story = story
            return self._story

    def follow(self, take: Taker) -> None:
        """Give `take` all kept records, and each later one, once and in order.

        A batch that ends meanwhile does not wait: the lock is held only to see which records are
        left.
        """
        handed = 0
        while True:
            with self._handing_on:
                left = self.records[max(0, handed - self._dropped) :]
                handed = self._dropped + len(self.records)
                if not left:
                    self._takers.append(take)
                    return
            for record in left:
                take(record)

    def unfollow(self, take: Taker) -> None:
        """Give `take` no more records."""
        with self._handing_on:
            self._takers = [taker for taker in self._takers if taker != take]

    def said_at_end(self) -> Sequence[str]:
        """The alerts about the whole run."""
        return [] if self._alerts is None else self._alerts.sums()

    def line(self) -> str:
        """The run so far, on one line."""
        rows, batches = self.done
        if not self.records:
            return "joinengine: no batch yet"
        spent = self._dropped_s + sum(map(whole_s, self.records))
        results = self._dropped_rows + sum(record.output_rows for record in self.records)
        state = sum(join.state.rows for join in self.records[-1].joins)
        return (
            f"joinengine: {counted(batches, 'batch')}, {counted(rows, 'row')} read, "
            f"{rows / spent:,.0f} rows/s, "
            f"{counted(results, 'result')}, {counted(state, 'row')} in the state"
        )

    def complete(self) -> list[BatchRecord]:
        """The records, with the whole time of each trigger that Spark has reported by now."""
        for micro_batch, progress in self._reports().items():
            elapsed_s = progress["durationMs"]["triggerExecution"] / 1e3
            self._triggers.setdefault(micro_batch, elapsed_s)
        for record in self.records:
            self._note_trigger(record)
        return list(self.records)

    def _reports(self) -> dict[int, dict[str, Any]]:
        """Micro-batch -> Spark's progress of it; triggers that found nothing to do are left out."""
        reports = [] if self.running is None else self.running.reports
        return {
            report["batchId"]: report for report in reports if "addBatch" in report["durationMs"]
        }

    def recent_progress(self) -> list[StreamingQueryProgress]:
        """The last batches in Spark's form, with Spark's own reports of their micro-batches."""
        reports = self._reports()
        with self._handing_on:
            known = self.records[-self._most_reports - 1 :]
        first = len(known) - self._most_reports
        return [
            self._progress(record, known[at - 1] if at else None, reports)
            for at, record in enumerate(known)
            if at >= first
        ]

    def _progress(
        self,
        record: BatchRecord,
        before: BatchRecord | None,
        reports: Mapping[int, dict[str, Any]] = MappingProxyType({}),
    ) -> StreamingQueryProgress:
        """A batch in Spark's form; `reports`: micro-batch -> Spark's report of it."""
        assert self.running is not None
        about = {name: getattr(self.running, name) for name in ("id", "runId", "name")}
        progress = outline(about, record)
        if record.handed is not None and record.handed in reports:
            progress = reports[record.handed] | {"batchId": record.batch}
        progress["sources"] = [*([offsets(record)] if record.end else []), *progress["sources"]]
        return StreamingQueryProgress.fromJson(filled(progress, record, before, self._operators))

    def _tell(self, record: BatchRecord) -> None:
        before = self.records[-2] if len(self.records) > 1 else None
        for listener in list(self._listeners):  # a listener may add another
            try:
                listener(self._progress(record, before))
            except (Exception, SystemExit):  # the query does not depend on those who watch it
                _log.exception("joinengine: a listener failed at batch %s", record.batch)
