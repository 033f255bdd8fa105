"""The handle of a running query."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from joinengine.driver.batch import BatchRunner
from joinengine.driver.records import BatchRecord
from joinengine.driver.recovery.demands import wish_recovered
from joinengine.layouts import choose
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.arguments import check_count
from joinengine.model.errors import InvalidRequest, JoinEngineError, TakenOver
from joinengine.reporting.page import page
from joinengine.reporting.server import PageServer
from joinengine.spark.jobs.failures import in_own_words
from joinengine.spark.query.live_page import Live, Pages, Showing, ending_of
from joinengine.spark.query.loop_thread import Running
from joinengine.spark.query.run_watch import Listener, Watch
from joinengine.spark.query.scraping import scraped
from joinengine.spark.query.views import Views
from joinengine.spark.query.waiting import wait
from joinengine.state.wished import Relayout

_log = logging.getLogger("joinengine")


class JoinQuery:
    """The handle of a running query; mirrors Spark's `StreamingQuery`."""

    def __init__(
        self,
        running: Running,
        runner: BatchRunner,
        watch: Watch,
        *,
        ends: bool = False,
        showing: Showing = Showing(),  # noqa: B008 (it is frozen)
    ) -> None:
        """`ends`: the query stops when it has read what was there at its start."""
        self._running = running
        self._runner = runner
        self._watch = watch
        self._ends = ends
        self._has_ended = False
        self._last_words: str | None = None
        self._views = Views(running, runner, watch)
        self._pages = Pages(showing, self._shown_on)
        self._ending = ending_of(running, watch, ends=ends)
        self._pages.begin()

    def __repr__(self) -> str:
        return f"<{self._views.one_line()}>"

    def _repr_html_(self) -> str:
        """The query for a notebook: how far it is, its operators, and their load so far."""
        return self._views.html()

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's handle; None: all sources are joinengine's own, and its own loop runs them."""
        return self._running.query

    @property
    def id(self) -> str:
        """The query's id; the same over restarts."""
        return self._running.id

    @property
    def runId(self) -> str:
        """The id of this run."""
        return self._running.runId

    @property
    def name(self) -> str | None:
        """The name of the query; None: it has none."""
        return self._running.name

    @property
    def isActive(self) -> bool:
        """Whether the query runs."""
        return self._running.isActive

    @property
    def status(self) -> dict[str, Any]:
        """What the query is doing, in Spark's form."""
        return self._running.status

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The last batch in Spark's form; docs/metrics.md says what the fields mean.

        None: no batch is over yet.
        """
        found = self.recentProgress
        return found[-1] if found else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """The last batches (100 unless set), each as `lastProgress`."""
        return self._watch.recent_progress()

    def add_listener(self, listener: Listener) -> None:
        """Call `listener(progress)` after each batch from now on; `progress` as in `lastProgress`.

        The call comes when the batch is committed, and the next batch waits for it. Where Spark
        runs the query, it has not counted its own time by then, and `durationMs` holds joinengine's
        steps. If a listener raises, that is logged, and the query goes on. It may `stop` the query.
        """
        self._watch.add_listener(listener)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends; with `timeout` (seconds), returns whether it has.

        On a terminal one line shows how far the query is. Ctrl-C stops the query and raises
        KeyboardInterrupt; a script that does not catch it ends with exit code 130. If an error
        ended the query, raises it as a JoinEngineError, and TakenOver if another driver goes on
        with the checkpoint. After `live(wait=True)` it then waits for a key, on a terminal.
        """
        try:
            ended = wait(self._running.wait, self.stop, timeout, self._watch.line, self._last_words)
            if ended:
                with in_own_words(), self._runner.fenced():
                    self._raise()
                    self._runner.finish()
        except JoinEngineError:
            self._pages.hold()
            raise
        if ended and not self._has_ended:
            self._has_ended = True
            waiting = self._views.waiting() if self._ends else []
            for text in [*waiting, *self._watch.left_out()]:
                _log.warning("joinengine: %s", text)
        if ended:
            self._pages.hold()
        return ended if timeout is not None else None

    def processAllAvailable(self) -> None:
        """Wait until all data that is there now is processed; raises as `awaitTermination`."""
        with self._runner.fenced():
            self._running.process_all()

    def exception(self) -> JoinEngineError | None:
        """The error that ended the query; None: no error did."""
        return self._running.error()

    def _raise(self) -> None:
        """Raise the error that ended the query, if one did."""
        error = self._running.error()
        if error is not None:
            raise error

    def end(self) -> None:
        """End the query; the running batch is cut short, and the next start does it again."""
        self._watch.stopping = True
        self._running.stop()

    def stop(self) -> None:
        """End the query, and show the results that it holds back.

        The running batch is cut short; the next start does it again. A listener may call it: the
        batch that it was told of is done then, and the query ends behind it.
        """
        self.end()
        if self.exception() is None:
            with suppress(TakenOver), in_own_words(), self._runner.fenced():
                self._runner.finish()
        self._pages.settle()

    def live(
        self,
        port: int | None = None,
        host: str | None = None,
        token: str | None = None,
        wait: bool = False,
    ) -> Live:
        """Open a page that shows the query while it runs; `url` of what it returns is its address.

        `port`: 0: any free one; one in use gives the next free one. `host`: another than loopback
        lets other machines in. `token`: 16 to 200 characters, which the URL must have. What is None
        the options `livePort`, `liveHost`, `liveToken` say, or variables of the environment; else
        it is any free port, loopback, and a random token (docs/watching.md). A second call returns
        the same page. `wait`: when the query has ended, `awaitTermination` waits for a key, on a
        terminal. The page never keeps the process alive. Raises InvalidRequest for a place that
        cannot be had, and if the query has its page at another one.
        """
        return self._pages.open(port, host, token, wait=wait)

    def _shown_on(self, server: PageServer) -> Live:
        """Show the query on the page of `server`, the batches that are over as well."""
        self.batches()  # so that their records have the whole times
        server.serve(
            self._views.new_story(),
            lambda: page({"mode": "live", "story": None}),
            scraped(self._running, self._runner, self._watch),
        )
        return Live(server, self.name or "joinengine query", self._watch, self._ending)

    def batches(self) -> list[BatchRecord]:
        """The records of the batches that this run has computed, of the last 10,000 at least."""
        return self._views.batches()

    @property
    def done(self) -> tuple[int, int]:
        """Tuples read and batches done so far by this run; costs nothing."""
        return self._watch.done

    def progress(self) -> str:
        """A line for each batch of `batches`, and one for the sum of the whole run."""
        return self._views.progress()

    def metrics(self) -> pa.Table:
        """One row per batch of `batches`, with the columns of the JSON report's `batches`."""
        return self._views.metrics()

    def story(self) -> dict[str, Any]:
        """What a page of the run draws, as a JSON value; bounded, however long the run is.

        From the first call on it is kept up to date batch by batch.
        """
        return self._views.story()

    def switch_layout(self, layout: str | LayoutChoice, instances: int | None = None) -> None:
        """Run under another layout from the next batch on; results stay the same.

        Raises InvalidRequest for a layout that cannot serve the operators, and if the query has
        ended.
        """
        n = None if instances is None else check_count(instances, "switch_layout: instances")
        self._ask("switch_layout", Relayout(choose(layout), n))

    def resize(self, instances: int) -> None:
        """Run on `instances` instances from the next batch on; the layout says how it grows.

        Raises InvalidRequest for a number that the layout cannot have, and if the query has ended.
        """
        self._ask("resize", Relayout(instances=check_count(instances, "resize: instances")))

    def _ask(self, verb: str, wish: Relayout) -> None:
        """Hand a wish to the running query."""
        if not self.isActive:
            raise InvalidRequest(
                f"{verb}: the query has ended; give the layout and the instances at its next start"
            )
        self._runner.relayout(wish_recovered(wish, self._runner.settings.recovery))

    def explain(self) -> str:
        """The operators as they are now, when a tuple leaves the state, and a forecast, as text.

        The forecast says how many rows and bytes the state will hold at its fullest, if tuples come
        as in this run so far. Wishes that wait for the next batch are named.
        """
        return self._views.explain()
