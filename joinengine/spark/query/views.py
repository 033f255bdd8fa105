"""The views of a running query: progress, metrics, its story, and descriptions in words."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from joinengine.driver.batch import BatchRunner
from joinengine.driver.rates import rates_seen
from joinengine.driver.records import BatchRecord
from joinengine.model.texts import Shown, counted
from joinengine.reporting.explain import explain, not_reached, waiting_for
from joinengine.reporting.heads import head_of
from joinengine.reporting.notebook import (
    line,
    metrics_html,
    operators_html,
    page_part,
    plans_html,
    show_in_notebook,
)
from joinengine.reporting.progress import batch_line
from joinengine.reporting.run_report import BATCH_SCHEMA, batch_rows, run_report
from joinengine.reporting.story import Story
from joinengine.spark.query.loop_thread import Running
from joinengine.spark.query.run_watch import Watch


class Views:
    """The views of one query; the methods are those of `JoinQuery`."""

    def __init__(self, running: Running, runner: BatchRunner, watch: Watch) -> None:
        self._running, self._runner, self._watch = running, runner, watch

    def batches(self) -> list[BatchRecord]:
        """The records of the batches of this run: of the last 10,000 if instances are few."""
        return self._watch.complete()

    def one_line(self) -> str:
        """The query on one line: how far it is, and its layouts."""
        rows, batches = self._watch.done
        running = self._running
        name = f" {running.name!r}" if running.name else ""
        active = "running" if running.isActive else "ended"
        layouts = [
            f"{chosen.choice.label} on {chosen.layout.instances}" for chosen in self._runner.chosen
        ]
        done = f"{counted(batches, 'batch')} and {counted(rows, 'row')} in this run"
        return f"JoinQuery{name} {active}: {done}; layout {', '.join(dict.fromkeys(layouts))}"

    def html(self) -> str:
        """The query for a notebook: how far it is, its operators, and their load so far."""
        plans = plans_html(self.story()["plans"])
        parts = line(self._watch.line()), self._operators_html(), plans
        return page_part(self.one_line(), *parts)

    def _operators_html(self) -> str:
        runner, records = self._runner, self.batches()
        return operators_html(
            runner.query,
            runner.choices,
            rates_seen(records),
            [chosen.layout.instances for chosen in runner.chosen],
            run_report(records)["joins"],
        )

    def progress(self) -> str:
        """A line for each batch of `batches`, and one for the sum of the whole run."""
        return Shown("\n".join([*map(batch_line, self.batches()), self._watch.line()]))

    def metrics(self) -> pa.Table:
        """One row per batch of `batches`, with the columns of the JSON report's `batches`."""
        records = self.batches()
        rows = [batch_rows(record) for record in records]
        table = pa.Table.from_pylist(rows, BATCH_SCHEMA)
        show_in_notebook(table, lambda: metrics_html(rows, records, self._operators_html()))
        return table

    def story(self) -> dict[str, Any]:
        """The data that a page of the run draws; after the first call, batches update it."""
        return self._watch.story(self.new_story).whole()

    def new_story(self) -> Story:
        """A story without a batch."""
        runner, running = self._runner, self._running
        head = head_of(
            runner.query,
            runner.choices,
            name=running.name,
            ids=(running.id, running.runId),
            show_keys=runner.settings.show_keys,
        )
        return Story(head, runner.query)

    def explain(self) -> str:
        """The operators as they are now, when a tuple leaves the state, and a forecast, as text."""
        runner, records = self._runner, self.batches()
        return explain(
            runner.query,
            runner.choices,
            rates_seen(records),
            [chosen.layout.instances for chosen in runner.chosen],
            runner.wishes,
            records,
            self._running.tasks,
        )

    def not_reached(self) -> list[str]:
        """The planned events of batches that this run has not reached, in sentences."""
        after = self._runner.manifest.batch + 1
        return not_reached(self._runner.settings, range(after - self._watch.done[1], after))

    def waiting(self) -> list[str]:
        """The data without results yet, of a query that has read all its data, in sentences."""
        query, missing = self._runner.query, self._running.missing
        return waiting_for(query, self._watch.records) + [
            f"no left row has been read: {query.sources[source]} has not come to the offsets of "
            f"latest(.., until=..). The next start waits for them, too"
            for source in missing
        ]
