"""A running query: how it is started, and the handle that the user gets.

The streaming plan is fixed: each input is routed by one `mapInArrow`, whose only rows are
reports; the inputs are united, and `foreachBatch` runs everything else. What changes from batch
to batch lies in files (joinengine.spark.tasks).
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from joinengine.driver import outputs
from joinengine.driver.account import account_of, claim
from joinengine.driver.batch import BatchRunner
from joinengine.driver.outputs import Wanted
from joinengine.driver.records import BatchRecord, rates_seen
from joinengine.driver.relayout import Relayout
from joinengine.driver.sinks import SideOutput, Sink, SinkFactory
from joinengine.layouts import choose
from joinengine.layouts.base import LayoutChoice
from joinengine.model.arguments import check_count
from joinengine.model.errors import InvalidRequest, JoinEngineError, TakenOver
from joinengine.model.texts import Shown
from joinengine.reporting.explain import explain, name_of, waiting_for
from joinengine.reporting.progress import batch_line
from joinengine.reporting.reports import BATCH_SCHEMA, batch_rows
from joinengine.spark import session
from joinengine.spark.failures import in_own_words, plain_error, short_if, unless_interrupted
from joinengine.spark.inputs import Stream, Table, schema_of
from joinengine.spark.jobs import SparkJobs
from joinengine.spark.paths import local_path
from joinengine.spark.places import check_apart, check_folder
from joinengine.spark.request import Request
from joinengine.spark.source import NAME
from joinengine.spark.tasks import RouteDescriptors, RouteRows
from joinengine.spark.tuning import ARROW_BYTES, ARROW_ROWS, ArrowBatches
from joinengine.spark.waiting import wait
from joinengine.spark.watch import Listener, Watch
from joinengine.state.checkpoint import Checkpoint, tick_name
from joinengine.world.storage import Storage
from joinengine.world.world import MACHINE

_REPORT = "report binary"
_log = logging.getLogger("joinengine")


class JoinQuery:
    """The handle of a running query; mirrors Spark's `StreamingQuery`, which `query` holds."""

    def __init__(
        self, query: StreamingQuery, runner: BatchRunner, watch: Watch, *, ends: bool = False
    ) -> None:
        """`ends`: the query stops when it has read what was there at its start."""
        self.query = query
        self._runner = runner
        self._watch = watch
        self._ends = ends

    def __repr__(self) -> str:
        rows, batches = self.done
        name = f" {self.name!r}" if self.name else ""
        active = "running" if self.isActive else "ended"
        layouts = [
            f"{chosen.choice.label} on {chosen.layout.instances}" for chosen in self._runner.chosen
        ]
        return (
            f"<JoinQuery{name} {active}: {batches:,} batches and {rows:,} tuples in this run; "
            f"layout {', '.join(dict.fromkeys(layouts))}>"
        )

    @property
    def id(self) -> str:
        """The query's id; the same over restarts."""
        return self.query.id

    @property
    def runId(self) -> str:
        """The id of this run."""
        return self.query.runId

    @property
    def name(self) -> str | None:
        """The name of the query; None: it has none."""
        return self.query.name

    @property
    def isActive(self) -> bool:
        """Whether the query runs."""
        return self.query.isActive

    @property
    def status(self) -> dict[str, Any]:
        """What the query is doing, as Spark says it."""
        return self.query.status

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """Spark's account of the last trigger, filled with what joinengine knows of it.

        docs/metrics.md says what the fields mean. None: no trigger is over yet.
        """
        return self._watch.last_progress(self.query)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Spark's account of the last triggers (100 unless set), each as `lastProgress`."""
        return self._watch.recent_progress(self.query)

    def add_listener(self, listener: Listener) -> None:
        """Call `listener(progress)` after each batch from now on; `progress` as in `lastProgress`.

        The call comes when the batch is committed, before Spark has counted its own time for it, so
        `durationMs` holds joinengine's steps; and the next batch waits for it. If a listener
        raises, that is logged, and the query goes on. It may `stop` the query.
        """
        self._watch.add_listener(listener)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends; with `timeout` (seconds), returns whether it has.

        On a terminal one line shows how far the query is. Ctrl-C stops the query and raises
        KeyboardInterrupt; a script that does not catch it ends with exit code 130. If an error
        ended the query, raises it as a JoinEngineError, and TakenOver if another driver goes on
        with the checkpoint.
        """
        with in_own_words(), self._runner.fenced():
            spark: Any = self.query  # whose own hints do not know parts of a second
            ended = wait(spark.awaitTermination, self.stop, timeout, self._watch.line)
            if ended:
                self._runner.finish()
        if ended and self._ends:
            for text in waiting_for(self._runner.query, self._watch.records):
                _log.warning("joinengine: %s", text)
            self._ends = False
        return ended if timeout is not None else None

    def processAllAvailable(self) -> None:
        """Wait until all data that is there now is processed; raises as `awaitTermination`."""
        with in_own_words(), self._runner.fenced():
            self.query.processAllAvailable()

    def exception(self) -> JoinEngineError | None:
        """The error that ended the query; None: no error did."""
        found = self.query.exception()
        return None if found is None else plain_error(found)

    def stop(self) -> None:
        """End the query, and show the results that it holds back.

        The running batch is cut short; the next start does it again. A listener may call it: the
        batch that it was told of is done then, and the query ends behind it.
        """
        self._watch.stopping = True
        with unless_interrupted():
            self.query.stop()
        if self.query.exception() is None:
            with suppress(TakenOver), in_own_words(), self._runner.fenced():
                self._runner.finish()

    def batches(self) -> list[BatchRecord]:
        """The records of the batches that this run has computed."""
        return self._watch.complete(self.query)

    @property
    def done(self) -> tuple[int, int]:
        """Tuples read and batches done so far by this run; costs nothing."""
        return self._watch.done

    def progress(self) -> str:
        """A line for each batch of this run, and one for the sum."""
        return Shown("\n".join([*map(batch_line, self.batches()), self._watch.line()]))

    def metrics(self) -> pa.Table:
        """One row per batch of this run, with the columns of the JSON report's `batches`."""
        return pa.Table.from_pylist([batch_rows(record) for record in self.batches()], BATCH_SCHEMA)

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
                f"{verb}: the query has ended; give the layout and instances at its next start"
            )
        self._runner.relayout(wish)

    def explain(self) -> str:
        """The operators as they are now, when a tuple leaves the state, and a forecast, as text.

        The forecast says how many rows and bytes the state will hold at its fullest, if tuples come
        as in this run so far. Wishes that wait for the next batch are named.
        """
        runner = self._runner
        return explain(
            runner.query,
            runner.choices,
            rates_seen(self.batches()),
            [chosen.layout.instances for chosen in runner.chosen],
            runner.wishes,
        )


def start(request: Request, sink_of: SinkFactory) -> JoinQuery:
    """Check, recover, and start. `sink_of(checkpoint, query id)` makes the sink.

    Raises InvalidRequest or CheckpointMismatch before any job runs, DamagedState for a checkpoint
    that cannot be trusted.
    """
    spark = request.spark
    session.prepare(spark)
    session.check_settings(spark)
    places = _checked_places(request)
    checkpoint = Checkpoint.below(places["checkpointLocation"], fsync=request.settings.fsync)
    before = None if request.before is None else account_of(request.before)
    owner = claim(checkpoint, account_of(request.query), _columns_of(request), before)
    output = _marked(request)
    if output is not None:
        outputs.check(checkpoint, output[0], owner.query, output[1])
    runner = _runner(request, checkpoint, owner.query, sink_of(checkpoint, owner.query))
    for stream, feed in _own_feeds(request, checkpoint):
        stream.check_files(feed)
    # Nothing is written before here: a start that is refused has changed nothing.
    for folder in places.values():
        folder.mkdir(parents=True, exist_ok=True)
    owner.take(checkpoint)
    if output is not None:
        outputs.take(checkpoint, output[0], owner.query, output[1])
    runner.recover()
    watch = Watch([name_of(operator) for operator in request.query.operators])
    runner.observe(watch.note)

    def run_batch(frame: DataFrame, batch: int) -> None:
        with short_if(lambda: watch.stopping):
            runner(frame, batch)

    writer: DataStreamWriter = (
        _united(request, checkpoint, runner.generation)
        .writeStream.foreachBatch(run_batch)
        .option("checkpointLocation", checkpoint.location)
    )
    if request.trigger:
        writer = writer.trigger(**request.trigger)
    if request.name is not None:
        writer = writer.queryName(request.name)
    with session.for_query(spark):
        query = writer.start()
    watch.query = query
    ends = any(request.trigger.get(name) for name in ("availableNow", "once"))
    return JoinQuery(query, runner, watch, ends=ends)


def _checked_places(request: Request) -> dict[str, Path]:
    """The folders that the query writes, by their options; they can be made, and are apart."""
    location = local_path(request.checkpoint_location, "checkpointLocation")
    output = None if request.output is None else Path(request.output.folder)
    aside = None
    if request.side_output is not None:
        aside = local_path(request.side_output, "sideOutput")
    inputs = [Path(s.feed["path"]) for s in request.sources if isinstance(s, Stream)]
    inputs += [Path(source.path) for source in request.sources if isinstance(source, Table)]
    check_apart(location, output, aside, [path for path in inputs if path.is_dir()])
    places = {"checkpointLocation": location, "path": output, "sideOutput": aside}
    written = {what: folder for what, folder in places.items() if folder is not None}
    for what, folder in written.items():
        check_folder(folder, what)
    return written


def _marked(request: Request) -> tuple[Storage, Wanted] | None:
    """The output folder whose marker says that it is the query's; None: it has no marker."""
    output = request.output
    if output is None or output.wanted is None:
        return None
    return MACHINE.storage(output.folder, fsync=request.settings.fsync), output.wanted


def _runner(request: Request, checkpoint: Checkpoint, query: str, sink: Sink) -> BatchRunner:
    """What runs the batches; it has read the newest manifest."""
    aside = None
    if request.side_output is not None:
        refused = local_path(request.side_output, "sideOutput")
        aside = SideOutput(MACHINE.storage(str(refused)), query)
    return BatchRunner(
        SparkJobs(request.spark, MACHINE, _tables(request), _arrow_batches(request)),
        request.query,
        request.choices,
        checkpoint,
        query,
        sink,
        request.settings,
        aside,
    )


def _columns_of(request: Request) -> dict[int, str]:
    """Source -> the columns of its files, of the streams whose files are looked for."""
    streams = ((n, one) for n, one in enumerate(request.sources) if isinstance(one, Stream))
    return {n: one.feed["columns"] for n, one in streams if "columns" in one.feed}


def _united(request: Request, checkpoint: Checkpoint, generation: int) -> DataFrame:
    """One frame of reports over all inputs; all `Stream`s are one source, which also ticks."""
    rows = [
        _routed_rows(request.spark, number, frame) for number, frame in _frames(request).items()
    ]
    return reduce(DataFrame.union, [_own_streams(request, checkpoint, generation), *rows])


def _frames(request: Request) -> dict[int, DataFrame]:
    """Source -> streaming DataFrame, of the inputs that Spark reads."""
    return {
        number: source
        for number, source in enumerate(request.sources)
        if isinstance(source, DataFrame) and number not in request.query.tables
    }


def _arrow_batches(request: Request) -> ArrowBatches:
    chosen = {name: request.spark.conf.get(name, None) for name in (ARROW_BYTES, ARROW_ROWS)}
    return ArrowBatches({n: schema_of(frame) for n, frame in _frames(request).items()}, chosen)


def _tables(request: Request) -> list[DataFrame]:
    """For each table a frame of reports, to be collected in the first batch."""
    frames = list[DataFrame]()
    for number in sorted(request.query.tables):
        table = request.sources[number]
        assert not isinstance(table, Stream)
        frame = table.to_df() if isinstance(table, Table) else table
        frames.append(_routed_rows(request.spark, number, frame))
    return frames


def _routed_rows(spark: SparkSession, number: int, frame: DataFrame) -> DataFrame:
    """A frame with the reports of routing a source that Spark reads."""
    route = RouteRows(number, schema_of(frame))
    return frame.coalesce(session.parallelism(spark)).mapInArrow(route, _REPORT)


def _own_feeds(request: Request, checkpoint: Checkpoint) -> list[tuple[Stream, dict[str, Any]]]:
    """The `Stream`s, each with the options of its feed."""
    return [
        (stream, stream.feed | {"source": n, "log": checkpoint.sources.at(str(n)).folder})
        for n, stream in enumerate(request.sources)
        if isinstance(stream, Stream)
    ]


def _own_streams(request: Request, checkpoint: Checkpoint, generation: int) -> DataFrame:
    own = _own_feeds(request, checkpoint)
    feeds = [feed | {"generation": generation} for _, feed in own]
    readings = {feed["source"]: stream.reading for stream, feed in own}
    for (stream, _), feed in zip(own, feeds, strict=True):
        stream.list_files(feed)
    return (
        request.spark.readStream.format(NAME)
        .option("feeds", json.dumps(feeds))
        .option("ticks", f"{checkpoint.ticks.folder}/{tick_name(generation)}")
        .option("generations", checkpoint.generations.folder)
        .option("generation", generation)
        .option("partitions", session.parallelism(request.spark))
        .load()
        .mapInArrow(RouteDescriptors(readings), _REPORT)
    )
