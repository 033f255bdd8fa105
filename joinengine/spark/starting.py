"""How a query is started: what is checked, claimed and recovered, and the streaming plan.

The streaming plan is fixed. The source of all `Stream`s is there for its offsets alone; each input
that Spark reads is routed by one `mapInArrow`, whose only rows are reports, or under a shuffle
packets and reports; these are united, and `foreachBatch` runs everything else. What changes from
batch to batch tasks learn apart (joinengine.spark.tasks).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from joinengine.driver import outputs
from joinengine.driver.account import account_of, claim
from joinengine.driver.batch import BatchRunner
from joinengine.driver.failing import standing_by
from joinengine.driver.loop import LOCAL_REST_S, REMOTE_REST_S, Loop, Trigger
from joinengine.driver.outputs import Wanted
from joinengine.driver.sinks import SideOutput, Sink, SinkFactory
from joinengine.exchange.exchange import ExchangeKind
from joinengine.model.errors import InvalidRequest
from joinengine.model.recovery import Durability
from joinengine.reporting.explain import name_of
from joinengine.reporting.server import PageServer
from joinengine.spark import session
from joinengine.spark.active import check_name, note, stop_on
from joinengine.spark.executors import check_executors
from joinengine.spark.failures import in_own_words, short_if
from joinengine.spark.inputs import Stream, Table, schema_of
from joinengine.spark.jobs import FileJobs, Shape, SparkJobs
from joinengine.spark.live import Showing, announce
from joinengine.spark.locality import NO_EXECUTOR, executors_at_start
from joinengine.spark.logs import SparkLogs
from joinengine.spark.paths import place
from joinengine.spark.places import check_apart, check_folder, checkpoint_at
from joinengine.spark.query import JoinQuery
from joinengine.spark.request import Request
from joinengine.spark.running import ByLoop, BySpark, Identity, Running, kept_id
from joinengine.spark.shuffling import ShuffleJobs
from joinengine.spark.source import NAME, ROW
from joinengine.spark.streams import Streams
from joinengine.spark.tasks import RouteRows
from joinengine.spark.tuning import ARROW_BYTES, ARROW_ROWS, ArrowBatches
from joinengine.spark.warming import warm
from joinengine.spark.watch import Watch
from joinengine.state.checkpoint import Checkpoint, tick_name
from joinengine.world.buckets import is_url
from joinengine.world.local import PRIVATE, make_folder
from joinengine.world.probing import check_exclusive
from joinengine.world.storage import Storage
from joinengine.world.world import MACHINE

#: Of how many batches Spark keeps its reports.
_REPORTS = "spark.sql.streaming.numRecentProgressUpdates"
#: What runs the tasks of a batch under each exchange.
_JOBS: Mapping[ExchangeKind, type[SparkJobs]] = {
    ExchangeKind.FILES: FileJobs,
    ExchangeKind.SHUFFLE: ShuffleJobs,
}


@in_own_words()
def start(request: Request, sink_of: SinkFactory) -> JoinQuery:
    """Check, recover, and start. `sink_of(checkpoint, query id)` makes the sink.

    Raises InvalidRequest or CheckpointMismatch before any job runs, DamagedState for a checkpoint
    that cannot be trusted; JoinEngineError if Spark fails meanwhile.
    """
    spark = request.spark
    session.prepare(spark)
    session.check_settings(spark)
    places = _checked_places(request)
    checkpoint = checkpoint_at(
        request.checkpoint_location,
        request.state_location,
        fsync=request.settings.fsync,
        mode=request.mode,
    )
    if checkpoint.is_remote:
        check_exclusive(checkpoint.storage.at("probe"), MACHINE)
    before = None if request.before is None else account_of(request.before)
    owner = claim(checkpoint, account_of(request.query), _columns_of(request), before)
    output = _marked(request)
    if output is not None:
        outputs.check(checkpoint, output[0], owner.query, output[1])
    check_executors(spark, places, _read_by_tasks(request))
    check_name(spark, request.name)
    warm(spark)
    logs = SparkLogs(spark, checkpoint, _frames(request).values())
    streams = _streams(request, checkpoint)
    sink = sink_of(checkpoint, owner.query)
    runner = _runner(request, checkpoint, owner.query, sink, logs, streams)
    if _is_cut_by_spark(request):
        logs.check(runner.manifest)
    for stream, feed in _own_feeds(request, checkpoint):
        stream.check_files(feed)
    with _page_of(request) as server:
        stop_on(checkpoint.location)
        # Nothing is written before here: a start that is refused has changed nothing.
        for what, folder in places.items():
            if "://" not in folder and not Path(folder).exists():
                ours = what in ("checkpointLocation", "stateLocation")
                make_folder(folder, (request.mode or PRIVATE) if ours else None)
        owner.take(checkpoint)
        if output is not None:
            outputs.take(checkpoint, output[0], owner.query, output[1])
        runner.recover()
        if _is_cut_by_spark(request):
            logs.mend(runner.manifest)
            logs.warn()
            return _begun(request, checkpoint, runner, server, None)
        streams.take_over(runner.generation)
        identity = Identity(kept_id(owner.query, logs.metadata()), request.name)
        loop = _loop(request, checkpoint, runner, streams, identity)
        return _begun(request, checkpoint, runner, server, loop)


def _begun(
    request: Request,
    checkpoint: Checkpoint,
    runner: BatchRunner,
    server: PageServer | None,
    loop: ByLoop | None,
) -> JoinQuery:
    """The running query; `runner` has recovered. `loop`: what runs it; None: Spark does."""
    spark = request.spark
    operators = [name_of(operator) for operator in request.query.operators]
    watch = Watch(operators, request.plans, int(spark.conf.get(_REPORTS, "100") or 100))
    runner.observe(watch.note)
    running: Running = _by_spark(request, checkpoint, runner, watch) if loop is None else loop
    watch.running = running
    ends = any(request.trigger.get(name) for name in ("availableNow", "once"))
    showing = Showing(request.live, server)
    query = JoinQuery(running, runner, watch, ends=ends, showing=showing)
    note(checkpoint.location, query)
    if loop is not None:
        loop.start()
    if server is not None:
        announce(query.live())
    return query


@contextmanager
def _page_of(request: Request) -> Iterator[PageServer | None]:
    """The server of the page that is asked for with the query; it closes if the start fails."""
    server = PageServer(request.live) if request.watched else None
    try:
        yield server
    except BaseException:
        if server is not None:
            server.close()
        raise


def _is_cut_by_spark(request: Request) -> bool:
    """Whether a source is a DataFrame, of which Spark alone knows how far it can be read."""
    return bool(_frames(request))


def _by_spark(
    request: Request, checkpoint: Checkpoint, runner: BatchRunner, watch: Watch
) -> BySpark:
    """The query as a streaming query of Spark's; `runner` has recovered."""

    def run_batch(frame: DataFrame, batch: int) -> None:
        with short_if(lambda: watch.stopping):
            runner(frame, batch)

    writer: DataStreamWriter = (
        _united(request, checkpoint, runner.generation)
        .writeStream.foreachBatch(run_batch)
        .option("checkpointLocation", checkpoint.spark)
    )
    if request.trigger:
        writer = writer.trigger(**request.trigger)
    if request.name is not None:
        writer = writer.queryName(request.name)
    with session.for_query(request.spark):
        return BySpark(writer.start())


def _loop(
    request: Request,
    checkpoint: Checkpoint,
    runner: BatchRunner,
    streams: Streams,
    identity: Identity,
) -> ByLoop:
    """The query on the engine's own loop; `runner` has recovered."""
    _ = runner.position  # where an earlier version has kept that elsewhere, it may be gone
    paths = [str(stream.feed["path"]) for stream, _ in _own_feeds(request, checkpoint)]
    remote = checkpoint.is_remote or any(map(is_url, paths))
    trigger, rest_s = _trigger(request), REMOTE_REST_S if remote else LOCAL_REST_S
    return ByLoop(
        request.spark.sparkContext,
        identity,
        lambda rest: Loop(runner, streams.feeds, trigger, MACHINE, rest, rest_s),
    )


def _trigger(request: Request) -> Trigger:
    asked = request.trigger
    every = asked.get("processingTime")
    return Trigger(
        every_s=0.0 if every is None else float(every.partition(" ")[0]) / 1e3,
        once=bool(asked.get("once")),
        finite=bool(asked.get("availableNow")),
    )


def _checked_places(request: Request) -> dict[str, str]:
    """The places that the query writes, by their options; they can be made, and are apart."""
    there = checkpoint_at(request.checkpoint_location, request.state_location)
    written = {"checkpointLocation": there.spark}
    if request.state_location is not None:
        written["stateLocation"] = there.storage.folder
    if request.output is not None:
        written["path"] = request.output.folder
    if request.side_output is not None:
        written["sideOutput"] = place(request.side_output, "sideOutput")
    inputs = [str(s.feed["path"]) for s in request.sources if isinstance(s, Stream)]
    inputs += [str(source.path) for source in request.sources if isinstance(source, Table)]
    check_apart(written, [path for path in inputs if is_url(path) or Path(path).is_dir()])
    for what, folder in written.items():
        if "://" not in folder:
            check_folder(Path(folder), what)
    return written


def _read_by_tasks(request: Request) -> list[str]:
    return [str(one.feed["path"]) for one in request.sources if isinstance(one, Stream)]


def _marked(request: Request) -> tuple[Storage, Wanted] | None:
    """The output folder whose marker says that it is the query's; None: it has no marker."""
    output = request.output
    if output is None or output.wanted is None:
        return None
    return MACHINE.storage(output.folder, fsync=request.settings.fsync), output.wanted


def _streams(request: Request, checkpoint: Checkpoint) -> Streams:
    """The `Stream`s, as the driver reads their logs."""
    own = _own_feeds(request, checkpoint)
    return Streams(
        [feed for _, feed in own],
        {feed["source"]: stream.reading for stream, feed in own},
        session.parallelism(request.spark),
        {feed["source"]: stream.footers for stream, feed in own},
    )


def _runner(
    request: Request,
    checkpoint: Checkpoint,
    query: str,
    sink: Sink,
    logs: SparkLogs,
    streams: Streams,
) -> BatchRunner:
    """What runs the batches; it has read the newest manifest."""
    aside = None
    if request.side_output is not None:
        refused = place(request.side_output, "sideOutput")
        aside = SideOutput(MACHINE.storage(refused), query)
    slots = _slots(request)
    choices, settings = standing_by(
        request.query.operators, request.choices, request.settings, len(slots)
    )
    jobs = _JOBS[settings.exchange](
        request.spark,
        MACHINE,
        streams,
        _tables(request),
        _arrow_batches(request),
        request.name,
        logs,
        Shape(len(request.query.operators), slots, _is_cut_by_spark(request)),
    )
    return BatchRunner(
        jobs,
        request.query,
        choices,
        checkpoint,
        query,
        sink,
        settings,
        aside,
    )


def _columns_of(request: Request) -> dict[int, str]:
    """Source -> the columns of its files, of the streams whose files are looked for."""
    streams = ((n, one) for n, one in enumerate(request.sources) if isinstance(one, Stream))
    return {n: one.feed["columns"] for n, one in streams if "columns" in one.feed}


def _united(request: Request, checkpoint: Checkpoint, generation: int) -> DataFrame:
    """One frame of what routing yields; all `Stream`s are one source, which also ticks."""
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


def _slots(request: Request) -> list[str]:
    """The executors on which tasks have fixed places; none if they go anywhere.

    Raises InvalidRequest if executors are asked for that are not there, or a source could not
    bring a batch again.
    """
    settings, context = request.settings, request.spark.sparkContext
    if settings.kills and not executors_at_start(context):
        raise InvalidRequest(NO_EXECUTOR)
    if settings.durability is Durability.BATCH:
        return []
    for number, name in enumerate(request.query.sources):
        if number not in request.query.tables and number in _frames(request):
            raise InvalidRequest(
                f"durability: after a restart 'replicas' computes some batches again, from sources "
                f"that joinengine reads itself, and Spark reads {name!r}; use parquet_stream, or "
                f"durability batch"
            )
    return executors_at_start(context)


def _arrow_batches(request: Request) -> ArrowBatches:
    chosen = {name: request.spark.conf.get(name, None) for name in (ARROW_BYTES, ARROW_ROWS)}
    return ArrowBatches({n: schema_of(frame) for n, frame in _frames(request).items()}, chosen)


def _tables(request: Request) -> dict[int, DataFrame]:
    """For each table a frame of what routing it yields, to be run in the first batch."""
    frames = dict[int, DataFrame]()
    for number in sorted(request.query.tables):
        table = request.sources[number]
        assert not isinstance(table, Stream)
        frame = table.to_df() if isinstance(table, Table) else table
        frames[number] = _routed_rows(request.spark, number, frame)
    return frames


def _routed_rows(spark: SparkSession, number: int, frame: DataFrame) -> DataFrame:
    """A frame of what routing a source that Spark reads yields."""
    route = RouteRows(number, schema_of(frame))
    return frame.coalesce(session.parallelism(spark)).mapInArrow(route, ROW)


def _own_feeds(request: Request, checkpoint: Checkpoint) -> list[tuple[Stream, dict[str, Any]]]:
    """The `Stream`s, each with the options of its feed."""
    return [
        (stream, stream.feed | {"source": n, "log": checkpoint.sources.at(str(n)).folder})
        for n, stream in enumerate(request.sources)
        if isinstance(stream, Stream)
    ]


def _own_streams(request: Request, checkpoint: Checkpoint, generation: int) -> DataFrame:
    """The source that says how far batches go; the files that are there now are logged."""
    own = _own_feeds(request, checkpoint)
    feeds = [feed | {"generation": generation} for _, feed in own]
    for (stream, _), feed in zip(own, feeds, strict=True):
        stream.list_files(feed)
    return (
        request.spark.readStream.format(NAME)
        .option("feeds", json.dumps(feeds))
        .option("ticks", f"{checkpoint.ticks.folder}/{tick_name(generation)}")
        .option("generations", checkpoint.generations.folder)
        .option("generation", generation)
        .load()
    )
