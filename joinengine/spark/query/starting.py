"""Starts a query: checks the request, claims the checkpoint, recovers, and begins the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame

from joinengine.driver.account import Claim, account_of, claim
from joinengine.driver.batch import BatchRunner
from joinengine.driver.loop import Loop, Trigger
from joinengine.driver.recovery.demands import standing_by
from joinengine.exchange.exchange import ExchangeKind
from joinengine.model.errors import InvalidRequest
from joinengine.model.recovery import Durability
from joinengine.operators.base import ahead_us, time_column
from joinengine.reporting.alerts import Alerts
from joinengine.reporting.explain import name_of
from joinengine.reporting.server import PageServer
from joinengine.results import outputs
from joinengine.results.delivery import Delivery
from joinengine.results.outputs import Wanted
from joinengine.results.sinks import STAGING, SideOutput, Sink, SinkFactory
from joinengine.sources.feeds import LOCAL_REST_S, REMOTE_REST_S, Feed
from joinengine.spark.jobs.failures import in_own_words
from joinengine.spark.jobs.file_jobs import FileJobs
from joinengine.spark.jobs.locality import NO_EXECUTOR, executors_at_start
from joinengine.spark.jobs.residency import why_jobs
from joinengine.spark.jobs.shuffle_jobs import ShuffleJobs
from joinengine.spark.jobs.spark_jobs import Shape, SparkJobs
from joinengine.spark.query import heartbeat
from joinengine.spark.query.active import check_name, note, runs_on, stop_on
from joinengine.spark.query.join_query import JoinQuery
from joinengine.spark.query.live_page import Showing, announce, page_at
from joinengine.spark.query.loop_thread import Identity, Running, kept_id
from joinengine.spark.query.query_folders import check_apart, check_folder, checkpoint_at
from joinengine.spark.query.request import Request
from joinengine.spark.query.run_watch import Watch
from joinengine.spark.query.spark_logs import SparkLogs
from joinengine.spark.session import session
from joinengine.spark.session.executors import check_executors
from joinengine.spark.session.tuning import ARROW_BYTES, ARROW_ROWS, ArrowBatches
from joinengine.spark.session.warming import warm
from joinengine.spark.sources.handing_over import Frames, routed_rows
from joinengine.spark.sources.inputs import Table, schema_of
from joinengine.spark.sources.locations import place
from joinengine.spark.sources.own_streams import OwnStream
from joinengine.spark.sources.streams import Streams
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.buckets import is_url
from joinengine.world.local import PRIVATE, make_folder, remove_left_drafts
from joinengine.world.storage import Storage
from joinengine.world.store_probe import check_exclusive
from joinengine.world.world import MACHINE

#: Spark's setting of the number of batches whose reports it keeps.
_REPORTS = "spark.sql.streaming.numRecentProgressUpdates"
#: Exchange -> what runs the tasks of a batch under it.
_JOBS: Mapping[ExchangeKind, type[SparkJobs]] = {
    ExchangeKind.FILES: FileJobs,
    ExchangeKind.SHUFFLE: ShuffleJobs,
}


@in_own_words()
def start(request: Request, sink_of: SinkFactory) -> JoinQuery:
    """Check, recover, and start a query. `sink_of(checkpoint, query id)` makes the sink.

    Raises InvalidRequest or CheckpointMismatch before any job runs, DamagedState for a checkpoint
    that cannot be trusted, and JoinEngineError if Spark fails.
    """
    spark = request.spark
    session.check_classic(spark)
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
    zone = request.settings.naming.zone
    owner = claim(checkpoint, account_of(request.query), _columns_of(request), before, zone)
    output = _marked(request)
    if output is not None:
        runs = runs_on(checkpoint.location)
        outputs.check(checkpoint, output[0], owner.query, output[1], runs=runs)
    check_executors(spark, places, _read_by_tasks(request))
    check_name(spark, request.name)
    if request.frames:
        warm(spark)
    logs = SparkLogs(spark, checkpoint, request.frames.values())
    streams = _streams(request, checkpoint)
    sink = sink_of(checkpoint, owner.query)
    runner, jobs = _runner(request, checkpoint, owner.query, sink, logs, streams)
    if request.frames:
        session.warn_of_missing(spark)
        logs.check(runner.manifest)
    streams.check_logs(runner.position)
    streams.check()
    with _page_of(request) as server, _closed_if_it_fails(sink):
        stop_on(checkpoint.location)
        last = heartbeat.check_alone(checkpoint, request.takeover)
        # Nothing is written before this point: a refused start has changed nothing.
        _take(request, checkpoint, places, owner, output)
        generation = heartbeat.claim_after(checkpoint, last, request.takeover)
        with heartbeat.beating(checkpoint, generation) as beat:
            runner.recover(generation)
            streams.take_over(runner.generation)
            frames = _frames(request, checkpoint, logs, runner)
            identity = Identity(kept_id(owner.query, logs.metadata()), request.name)
            running = Running(
                spark.sparkContext,
                identity,
                _looping(request, checkpoint, runner, streams.feeds, frames),
                jobs.cut_short,
                lambda: jobs.tasks,
                frames,
                beat,
            )
            return _begun(request, checkpoint, runner, server, running)


def _take(
    request: Request,
    checkpoint: Checkpoint,
    places: Mapping[str, str],
    owner: Claim,
    output: tuple[Storage, Wanted] | None,
) -> None:
    """Make the places, claim them for the query, and remove what killed drivers have left there."""
    for what, folder in places.items():
        if "://" not in folder and not Path(folder).exists():
            ours = what in ("checkpointLocation", "stateLocation")
            make_folder(folder, (request.mode or PRIVATE) if ours else None)
    owner.take(checkpoint)
    ours_now = [checkpoint.storage]
    if output is not None:
        outputs.take(checkpoint, output[0], owner.query, output[1])
        ours_now.append(output[0].at(STAGING))
    for storage in ours_now:
        if not is_url(storage.folder):
            remove_left_drafts(storage.folder)


def _frames(
    request: Request, checkpoint: Checkpoint, logs: SparkLogs, runner: BatchRunner
) -> Frames | None:
    """The part that hands over micro-batches of streaming DataFrames; None: there are none."""
    if not request.frames:
        return None
    logs.mend(runner.manifest)
    logs.warn()
    return Frames(
        request.spark, request.frames, logs, checkpoint.spark, request.trigger, request.name
    )


def _looping(
    request: Request,
    checkpoint: Checkpoint,
    runner: BatchRunner,
    feeds: Mapping[int, Feed],
    frames: Frames | None,
) -> Callable[[Callable[[float], bool]], Loop]:
    """A function that makes the engine's loop over a query; `runner` has recovered."""
    _ = runner.position  # fails now if an earlier version has kept it in logs that are gone
    paths = _read_by_tasks(request)
    remote = checkpoint.is_remote or any(map(is_url, paths))
    trigger = _trigger(request)
    rest_s = request.settings.look_every_s or (REMOTE_REST_S if remote else LOCAL_REST_S)
    return lambda rest: Loop(runner, feeds, trigger, MACHINE, rest, rest_s, frames)


def _trigger(request: Request) -> Trigger:
    asked = request.trigger
    every = asked.get("processingTime")
    return Trigger(
        every_s=0.0 if every is None else float(every.partition(" ")[0]) / 1e3,
        once=bool(asked.get("once")),
        finite=bool(asked.get("availableNow")),
    )


def _begun(
    request: Request,
    checkpoint: Checkpoint,
    runner: BatchRunner,
    server: PageServer | None,
    running: Running,
) -> JoinQuery:
    """Start the loop of a query; its handle. `runner` has recovered."""
    spark = request.spark
    operators = [name_of(operator) for operator in request.query.operators]
    most_reports = int(spark.conf.get(_REPORTS, "100") or 100)
    ends = any(request.trigger.get(name) for name in ("availableNow", "once"))
    held = [(state.shelves.rows, state.shelves.size_bytes) for state in runner.manifest.operators]
    alerts = Alerts(request.query, ends, held, runner.settings.capacity)
    watch = Watch(operators, request.plans, most_reports, alerts)
    runner.observe(watch.note)
    watch.running = running
    showing = Showing(request.live, server)
    query = JoinQuery(running, runner, watch, ends=ends, showing=showing)
    note(checkpoint.location, query)
    running.start()
    try:
        if server is not None:
            announce(query.live())
    except BaseException:
        running.stop()
        raise
    return query


@contextmanager
def _page_of(request: Request) -> Iterator[PageServer | None]:
    """The server of the page that the request asks for; closes it if the start fails."""
    server = page_at(request.live) if request.watched else None
    try:
        yield server
    except BaseException:
        if server is not None:
            server.close()
        raise


@contextmanager
def _closed_if_it_fails(sink: Sink) -> Iterator[None]:
    """Close the sink if the start fails, since no loop closes it then."""
    try:
        yield
    except BaseException:
        sink.close()
        raise


def _checked_places(request: Request) -> dict[str, str]:
    """Option -> place into which the query writes. Checks that they are apart and can be made."""
    there = checkpoint_at(request.checkpoint_location, request.state_location)
    written = {"checkpointLocation": there.spark}
    if request.state_location is not None:
        written["stateLocation"] = there.storage.folder
    if request.output is not None:
        written["path"] = request.output.folder
    if request.side_output is not None:
        written["sideOutput"] = place(request.side_output, "sideOutput")
    if request.settings.store_location is not None:
        written["storeLocation"] = request.settings.store_location
    inputs = _read_by_tasks(request)
    inputs += [str(source.path) for source in request.sources if isinstance(source, Table)]
    check_apart(written, [path for path in inputs if is_url(path) or Path(path).is_dir()])
    for what, folder in written.items():
        if "://" not in folder:
            check_folder(Path(folder), what)
    return written


def _read_by_tasks(request: Request) -> list[str]:
    own = (source for source in request.sources if isinstance(source, OwnStream))
    return [folder for source in own for folder in source.folders]


def _marked(request: Request) -> tuple[Storage, Wanted] | None:
    """The output folder, if it has markers, and the demands on these; None: it has none."""
    output = request.output
    if output is None or output.wanted is None:
        return None
    return MACHINE.storage(output.folder, fsync=request.settings.fsync), output.wanted


def _streams(request: Request, checkpoint: Checkpoint) -> Streams:
    """The `Stream`s of the query, with their logs in the checkpoint."""
    own, query = request.own_feeds(checkpoint), request.query
    numbered = [(stream, feed["source"]) for stream, feed in own]
    return Streams(
        [feed for _, feed in own],
        {n: stream.timed(time_column(query, n), ahead_us(query, n)) for stream, n in numbered},
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
) -> tuple[BatchRunner, SparkJobs]:
    """The runner of the batches, which has read the newest manifest, and the runner of tasks."""
    aside = None
    if request.side_output is not None:
        refused = place(request.side_output, "sideOutput")
        aside = SideOutput(MACHINE.storage(refused, fsync=request.settings.fsync), query)
    delivery = Delivery(checkpoint, sink, aside)
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
        logs,
        Shape(
            request.name,
            len(request.query.operators),
            slots,
            why_jobs(request.spark, settings, sink, has_frames=bool(request.frames)),
        ),
    )
    runner = BatchRunner(jobs, request.query, choices, checkpoint, query, delivery, settings)
    return runner, jobs


def _columns_of(request: Request) -> dict[int, str]:
    """Source -> the columns of its files, of the streams whose source has its own columns."""
    own = ((n, source) for n, source in enumerate(request.sources) if isinstance(source, OwnStream))
    return {n: columns for n, source in own if (columns := source.kept_columns) is not None}


def _slots(request: Request) -> list[str]:
    """The executors on which tasks have fixed places; empty if tasks run anywhere.

    Raises InvalidRequest if there are too few executors, or if a source cannot bring a batch again.
    """
    settings, context = request.settings, request.spark.sparkContext
    if settings.kills and not executors_at_start(context):
        raise InvalidRequest(NO_EXECUTOR)
    if settings.durability is Durability.BATCH:
        return []
    for source in request.sources:
        why = source.why_not_again if isinstance(source, OwnStream) else None
        if why is not None:
            raise InvalidRequest(
                f"durability: 'replicas' needs sources of which a batch can be read again as it "
                f"was, and {why}; use durability 'batch'"
            )
    for number, name in enumerate(request.query.sources):
        if number not in request.query.tables and number in request.frames:
            raise InvalidRequest(
                "durability: 'replicas' needs sources that joinengine reads itself, so that a "
                f"restart can compute batches again, and Spark reads {name!r}; use "
                "parquet_stream, or durability 'batch'"
            )
    return executors_at_start(context)


def _arrow_batches(request: Request) -> ArrowBatches:
    chosen = {name: request.spark.conf.get(name, None) for name in (ARROW_BYTES, ARROW_ROWS)}
    return ArrowBatches({n: schema_of(frame) for n, frame in request.frames.items()}, chosen)


def _tables(request: Request) -> dict[int, DataFrame]:
    """Source that is a table -> a frame that routes it, for the first batch."""
    frames = dict[int, DataFrame]()
    for number in sorted(request.query.tables):
        table = request.sources[number]
        assert not isinstance(table, OwnStream)
        frame = table.to_df() if isinstance(table, Table) else table
        frames[number] = routed_rows(request.spark, number, frame)
    return frames
