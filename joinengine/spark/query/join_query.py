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
from joinengine.model.arguments import check_count, check_timeout
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
    """The handle of a running query, modelled on Spark's `StreamingQuery`."""

    def __init__(
        self,
        running: Running,
        runner: BatchRunner,
        watch: Watch,
        *,
        ends: bool,
        showing: Showing,
    ) -> None:
        """`ends`: the query ends when it has read the data that was there at its start."""
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
        """Spark's handle. None if all sources are joinengine's own: then Spark runs no query."""
        return self._running.query

    @property
    def id(self) -> str:
        """The id of the query; a restart keeps it."""
        return self._running.id

    @property
    def runId(self) -> str:
        """The id of this run."""
        return self._running.runId

    @property
    def name(self) -> str | None:
        """The name of the query, or None."""
        return self._running.name

    @property
    def isActive(self) -> bool:
        """Whether the query is running."""
        return self._running.isActive

    @property
    def status(self) -> dict[str, Any]:
        """What the query is doing, in Spark's form."""
        return self._running.status

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The last batch, in Spark's form; docs/metrics.md describes the fields.

        None until the first batch is done.
        """
        reports = self.recentProgress
        return reports[-1] if reports else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """The last batches (100 by default), each as in `lastProgress`."""
        return self._watch.recent_progress()

    def add_listener(self, listener: Listener) -> None:
        """Call `listener(progress)` after each later batch; `progress` is as in `lastProgress`.

        The batch is committed before the call, and the next batch waits until the call returns. A
        listener may `stop` the query. If a listener raises an error or calls `sys.exit`, that is
        logged and the query goes on. If Spark runs the query, Spark has not yet counted its own
        time at the call: `durationMs` then holds joinengine's steps.
        """
        self._watch.add_listener(listener)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends. With `timeout` (seconds), return whether it has ended.

        On a terminal, a line shows the progress. Ctrl-C stops the query and raises
        KeyboardInterrupt; a script that does not catch it ends with exit code 130. If an error
        ended the query, raises it as a JoinEngineError; TakenOver means that another driver goes on
        with the checkpoint. After `live(wait=True)`, it then waits for a key on a terminal.
        """
        if timeout is not None:
            check_timeout(timeout, "awaitTermination: timeout")
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
            texts = [*waiting, *self._watch.said_at_end(), *self._views.not_reached()]
            for text in texts:
                _log.warning("joinengine: %s", text)
        if ended:
            self._pages.hold()
        return ended if timeout is not None else None

    def processAllAvailable(self) -> None:
        """Wait until all data that is there now is processed; raises like `awaitTermination`."""
        with self._runner.fenced():
            self._running.process_all()

    def exception(self) -> JoinEngineError | None:
        """The error that ended the query, or None."""
        return self._running.error()

    def _raise(self) -> None:
        """Raise the error that ended the query, if one did."""
        error = self._running.error()
        if error is not None:
            raise error

    def end(self) -> None:
        """End the query at once. The running batch is cut short, and the next start repeats it."""
        self._watch.stopping = True
        self._running.stop()

    def stop(self) -> None:
        """End the query, and show the results that it holds back.

        The running batch is cut short, and the next start repeats it. If a listener calls `stop`,
        the listener's batch is complete, and the query ends after it.
        """
        self.end()
        if self.exception() is None:
            with suppress(TakenOver), in_own_words(), self._runner.fenced():
                self._runner.finish()
        if not self._running.is_here:
            self._pages.settle()

    def live(
        self,
        port: int | None = None,
        host: str | None = None,
        token: str | None = None,
        wait: bool = False,
    ) -> Live:
        """Open a page that shows the query while it runs. The result's `url` is the address.

        `port`: the port of the page; 0 takes any free one. If the port is in use, the page takes
        the next free one.
        `host`: the address to listen on. Any address but loopback lets other machines in.
        `token`: 16 to 200 characters that the URL must contain.
        `wait`: after the query has ended, `awaitTermination` waits for a key on a terminal.

        An argument that is not given is taken from the options `livePort`, `liveHost` and
        `liveToken`, then from the environment, and else is any free port, loopback or a random
        token (docs/watching.md). A second call returns the same page. The page never keeps the
        process alive. Raises InvalidRequest if the address cannot be used, or if the query already
        has its page at another address.
        """
        return self._pages.open(port, host, token, wait=wait)

    def _shown_on(self, server: PageServer) -> Live:
        """Show the query on the page of `server`, including its finished batches."""
        self.batches()  # completes the times of their records
        server.serve(
            self._views.new_story(),
            lambda: page({"mode": "live", "story": None}),
            scraped(self._running, self._runner, self._watch),
        )
        return Live(server, self.name or "joinengine query", self._watch, self._ending)

    def batches(self) -> list[BatchRecord]:
        """Records of the batches of this run: of the last 10,000 if instances are few."""
        return self._views.batches()

    @property
    def done(self) -> tuple[int, int]:
        """How many rows this run has read, and how many batches it has done. Costs nothing."""
        return self._watch.done

    def progress(self) -> str:
        """A line of text for each of `batches`, and one line for the whole run."""
        return self._views.progress()

    def metrics(self) -> pa.Table:
        """One row for each batch, with the columns of `batches` in the JSON report."""
        return self._views.metrics()

    def story(self) -> dict[str, Any]:
        """The data that a page of the run draws, as a JSON value.

        It stays small, however long the run is. After the first call, each batch updates it.
        """
        return self._views.story()

    def switch_layout(self, layout: str | LayoutChoice, instances: int | None = None) -> None:
        """Change the layout from the next batch on, and perhaps `instances`. Results stay the same.

        Raises InvalidRequest if the layout cannot serve the operators, or if the query has ended.
        """
        n = None if instances is None else check_count(instances, "switch_layout: instances")
        self._ask("switch_layout", Relayout(choose(layout), n))

    def resize(self, instances: int) -> None:
        """Run on `instances` instances from the next batch on. The layout decides how it grows.

        Raises InvalidRequest if the layout cannot have this number, or if the query has ended.
        """
        self._ask("resize", Relayout(instances=check_count(instances, "resize: instances")))

    def _ask(self, verb: str, wish: Relayout) -> None:
        """Hand a wish to the running query."""
        if not self.isActive:
            raise InvalidRequest(
                f"{verb}: the query has ended; give the layout and the instances at its next start"
            )
        self._runner.relayout(wish_recovered(wish, self._runner.settings))

    def explain(self) -> str:
        """The present operators, when a row leaves the state, and a forecast of the state, as text.

        The forecast gives the greatest number of rows and bytes of the state, if rows keep arriving
        as in this run so far. The text also names changes that wait for the next batch.
        """
        return self._views.explain()
