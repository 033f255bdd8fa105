"""Running a query: record its stream, start it, show its progress, compare with DuckDB."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from joinengine import JoinQuery, JoinWriter
from joinengine.api.comparable import is_hashed
from joinengine.api.queries import StreamQuery
from joinengine.api.trials import trial_of
from joinengine.driver.records import BatchRecord
from joinengine.exchange.exchange import chosen_exchange
from joinengine.lab.comparison.provenance import made_by
from joinengine.lab.comparison.verdicts import busiest_s, hot_key, slowest_instance_s
from joinengine.lab.emulation.emulating import Emulation
from joinengine.lab.queries.answers import (
    difference,
    in_files,
    is_undecided,
    net_text,
    oracle_checksum,
)
from joinengine.lab.queries.named_query import Options, Query, skew_of
from joinengine.lab.queries.reach import fetch, reachable, results_place
from joinengine.lab.queries.sink_places import SinkPlace, delivered
from joinengine.lab.queries.topics import in_topics
from joinengine.lab.tpch.generate import Say, silent
from joinengine.lab.tpch.stream import RecordedStream
from joinengine.model.texts import counted
from joinengine.reporting.run_report import run_report
from joinengine.sources.sourcefiles import SourceFile
from joinengine.spark.query.query_folders import checkpoint_at
from joinengine.spark.session import session
from joinengine.spark.sources import types
from joinengine.state import manifests
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.operator_state import PENDING

_POLL_S = 0.2


class Followers(NamedTuple):
    """Who follows a run.

    `say` takes sentences. `watch` is called with (rows read so far, rows in all, batches done), and
    `on_start` with the query as soon as it runs.
    """

    say: Say = silent
    watch: Callable[[int, int, int], None] = lambda done, total, batches: None
    on_start: Callable[[JoinQuery], None] | None = None


NOBODY = Followers()


class _Ran(NamedTuple):
    """A run that is over. `resumed`: whether it continued from a checkpoint.

    `missing`: (rows that were late in this run and earlier ones, rows that wait).
    """

    query: Query
    options: Options
    recorded: RecordedStream
    joined: StreamQuery
    places: Places
    resumed: bool
    missing: tuple[int, int]


@dataclass(frozen=True)
class Places:
    """The folders of a run's results and state; None: no results are kept, state is temporary.

    `state`: where the engine's part of the state lies instead, a path or a URL. `reach`: below
    which URL tasks find generated streams; None: below that of the state, if it is one. `sink`:
    takes the results instead of `out`.
    """

    out: Path | None = None
    checkpoint: Path | None = None
    state: str | None = None
    reach: str | None = None
    sink: SinkPlace | None = None


class CutShort(KeyboardInterrupt):
    """Ctrl-C has ended a run before its end. `report`: of the batches until then."""

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__()
        self.report = report


def run(
    spark: SparkSession,
    query: Query,
    options: Options,
    places: Places,
    *,
    validate: bool = False,
    followers: Followers = NOBODY,
) -> dict[str, Any]:
    """Run `query` over its whole stream; returns the JSON report.

    Raises JoinEngineError if joinengine refuses a request, also inside the running query; CutShort,
    with the report of the batches so far, if Ctrl-C ends the run or the comparison with DuckDB.
    """
    say = followers.say
    recorded = query.stream(options).record(say)
    if query.generated:
        recorded = reachable(recorded, places.reach or places.state, say)
    if options.cluster is not None:
        recorded = in_topics(recorded, options.cluster, options.interval_rows, query.name)
    with _checkpoint(places.checkpoint) as checkpoint:
        there = checkpoint_at(str(checkpoint), places.state)
        resumed = manifests.newest(there.manifests) is not None
        joined = query.build(spark, recorded, options)
        writer = _writer(joined, options, checkpoint).queryName(query.name)
        if places.state is not None:
            writer = writer.option("stateLocation", places.state)
        running = _started(writer, places)
        running._last_words = ""  # only this module knows whether another run can continue
        try:
            _wait(running, sum(recorded.rows.values()), followers)
            stopped = False
        except KeyboardInterrupt:
            stopped = True
        records = running.batches()
        missing = _missing(there)
        story = running.story() | {"ended": _ended(records, stopped=stopped)}
        hot = hot_key(
            records, joined.query().operators, there.location, by_value=options.asked("showKeys")
        )
        if places.out is not None:
            fetch(results_place(places.out, places.state), places.out)
    report = _head(query, options, places.state) | run_report(records)
    if joined.query().operators[-1].is_changelog:
        report["result_checksum"] = net_text(report["result_checksum"])
    report |= {"slowest_instance_s": slowest_instance_s(report), "busiest_s": busiest_s(report)}
    report |= {"cores": spark.sparkContext.defaultParallelism, "hot_key": hot, "story": story}
    report |= {"valid": None, "made_by": made_by()}
    if stopped:
        raise CutShort(report)
    if validate:
        try:
            ran = _Ran(query, options, recorded, joined, places, resumed, missing)
            _validate(report, ran, say)
        except KeyboardInterrupt:
            raise CutShort(report) from None
    if options.window_us is not None and not report["expired_rows"]:
        say("no state expired, because the window is about as long as the stream")
    return report


def _missing(checkpoint: Checkpoint) -> tuple[int, int]:
    """How many rows of all runs on a checkpoint were late, and how many wait for the watermark."""
    newest = manifests.newest(checkpoint.manifests)
    states = () if newest is None else newest.operators
    late = sum(state.late_rows for state in states)
    return late, sum(state.shelves.live_rows(PENDING) for state in states)


def _validate(report: dict[str, Any], ran: _Ran, say: Say) -> None:
    """Note in `report` whether DuckDB has the same results, or say why that cannot be known."""
    query, joined = ran.query, ran.joined
    kept = _kept(ran.places, types.arrow_schema(joined.schema))
    if not query.generated:
        obstacle = _obstacle(report, ran, has_files=kept is not None, has_sum=has_checksum(joined))
        if obstacle is None and is_undecided(query.oracle(ran.recorded, ran.options)):
            obstacle = (
                "right rows of one key have the same time. joinengine takes the one that it has "
                "read last, and DuckDB any of them"
            )
        if obstacle is not None:
            say(f"not compared with DuckDB: {obstacle}")
            return
    oracle = query.oracle(ran.recorded, ran.options)
    keep = all(choice.keeps_keys_whole for choice in ran.options.layouts)
    divided = query.whole_keys and not keep
    if kept is not None and not divided:
        say("comparing with DuckDB")
        by_value = bool(ran.options.asked("showKeys"))
        differs = difference(kept, joined, oracle, by_value=by_value)
        report["valid"] = differs is None
        if differs is not None:
            say(f"compared with DuckDB's results: {differs}")
    elif ran.resumed:
        where = "without --out" if kept is None else "where keys are divided"
        say(
            f"not compared with DuckDB: the run continued a checkpoint, and {where} it has only "
            f"the checksum of its own batches"
        )
    else:
        schema = types.arrow_schema(joined.schema)
        # Layouts share the oracle's checksum, as long as the files of the stream do not change.
        text, files = (oracle, ()) if isinstance(oracle, str) else (oracle.sql, oracle.files)
        question = schema, text, files, session.zone()
        expected = _known.get(question) if files or query.generated else None
        if expected is None:
            say("comparing with DuckDB")
            net = joined.query().operators[-1].is_changelog
            expected = _known[question] = oracle_checksum(schema, oracle, net=net)
        report["valid"] = report["result_checksum"] == expected
        if divided:
            _count_false_alarms(report, expected, say)
        elif not report["valid"]:
            say(_counts(report, expected))
    if report["valid"] and not report["output_rows"] and not ran.resumed:
        say("no row to compare: neither the run nor DuckDB has results")


def _writer(joined: StreamQuery, options: Options, checkpoint: Path) -> JoinWriter:
    """The writer of a run over all available input; it has no sink yet."""
    writer = joined.writeStream.option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True)
    if has_checksum(joined):
        writer = writer.checksummed()
    writer = writer.options(**options.engine)
    for batch, layout, instances in options.events.relayouts:
        writer = writer.relayout(batch, layout, instances)
    for batch, instance in options.events.losses:
        writer = writer.fail(batch, instance)
    for batch in options.events.kills:
        writer = writer.kill(batch)
    return writer


def _started(writer: JoinWriter, places: Places) -> JoinQuery:
    """The running query, with the sink that the places of its run ask for."""
    if places.sink is not None:
        return writer.format(places.sink.format).options(**places.sink.options).start()
    if places.out is None:
        return writer.format("noop").start()
    return writer.format("parquet").start(results_place(places.out, places.state))


def _ended(records: Sequence[BatchRecord], *, stopped: bool) -> dict[str, Any]:
    """How a run ended that did not fail."""
    at = records[-1].started + records[-1].seconds["elapsed_s"] if records else None
    if stopped:
        read = counted(len(records), "batch")
        words = f"the run was stopped after {read}, before it had read all data"
        return {"how": "stopped", "words": words, "at": at}
    return {"how": "finished", "words": "the query has read all available data", "at": at}


def _obstacle(report: dict[str, Any], ran: _Ran, *, has_files: bool, has_sum: bool) -> str | None:
    """Why the results cannot equal those of one process, or cannot be compared; None: they can."""
    late, pending = ran.missing
    if late:
        return (
            f"{late:,} late rows are missing from the results, but DuckDB includes "
            f"them. Give a longer --delay, or --file-order time if files are not in the order of "
            f"event time"
        )
    if report["ahead_rows"]:
        return (
            f"{report['ahead_rows']:,} rows ahead of the clock are missing from the results, but "
            f"DuckDB includes them. Give a longer --max-ahead, or leave it out"
        )
    if pending:
        return (
            f"{pending:,} unmatched rows wait for the watermark, because more files may follow "
            f"on this checkpoint. Leave out --checkpoint to emit them"
        )
    if not has_files and not has_sum:
        return "nested columns have no checksum; give --out FOLDER to compare files instead"
    return None


def has_checksum(joined: StreamQuery) -> bool:
    """Whether all columns of the results can be hashed, which nested ones cannot."""
    return all(map(is_hashed, types.arrow_schema(joined.schema).types))


#: The checksums of oracles that this process has run: by schema, SQL, files and zone.
_known: dict[tuple[pa.Schema, str, tuple[SourceFile, ...], str], str] = {}


def _kept(places: Places, schema: pa.Schema) -> Any:
    """The results of a run as Arrow reads them; None: nothing holds them."""
    if places.out is not None:
        return in_files(places.out, schema)
    if places.sink is not None and places.sink.place is not None:
        return delivered(places.sink, schema)
    return None


def _counts(report: dict[str, Any], expected: str) -> str:
    """The difference in words, if results are not kept. `expected`: DuckDB's checksum."""
    rows = expected.partition(":")[0]
    if rows.isdigit() and int(rows) != report["output_rows"]:
        return f"DuckDB has {counted(int(rows), 'row')}, and the run {report['output_rows']:,}"
    return "other rows than DuckDB's; give --out FOLDER to compare them one by one"


def _count_false_alarms(report: dict[str, Any], expected: str, say: Say) -> None:
    """Count the results that DuckDB lacks: a layout that divides keys has them by design.

    But it must not lack any of DuckDB's.
    """
    events = int(expected.split(":", maxsplit=1)[0])
    report["events"], report["false_alarms"] = events, report["output_rows"] - events
    report["valid"] = None if report["false_alarms"] >= 0 else False
    if report["valid"] is False:
        say(_counts(report, expected))
        return
    part = report["false_alarms"] / max(report["output_rows"], 1)
    say(f"{report['false_alarms']:,} false alarms ({part:.1%}): the layout divides keys")


def _wait(running: JoinQuery, total: int, followers: Followers) -> None:
    """Wait for the end of a run over `total` rows."""
    try:
        if followers.on_start is not None:
            followers.on_start(running)
        while not running.awaitTermination(_POLL_S):
            followers.watch(running.done[0], total, running.done[1])
    finally:
        running.stop()
    followers.watch(running.done[0], total, running.done[1])


def _head(query: Query, options: Options, state: str | None = None) -> dict[str, Any]:
    made = query.generated
    return {
        "query": query.name,
        "layout": options.layout.label,
        "scale": options.scale if made else None,
        "zipf": skew_of(query, options) if made else None,
        "seed": options.seed if made else None,
        "instances": options.instances,
        "window_us": options.window_us,
        "moves": options.text_of("moves"),
        "load": options.text_of("load"),
        "work_per_tuple_us": round(options.asked("workPerTuple") * 1e6),
        "work_per_result_us": round(options.asked("workPerResult") * 1e6),
        "recovery": options.text_of("recovery"),
        "durability": options.text_of("durability"),
        "store": _store_words(options),
        "exchange": chosen_exchange(options.engine.get("exchange"), state).value,
        "order": options.order if made else None,
        "source": "files" if options.cluster is None else "kafka",
    }


def _store_words(options: Options) -> str | None:
    """The speed of the run's store in words; None: it has no store."""
    trial = trial_of(options.engine, {})
    speed = trial.speed if isinstance(trial, Emulation) else None
    return options.asked("storeLocation") if speed is None else f"{speed} (emulated)"


@contextmanager
def _checkpoint(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        yield chosen
        return
    passing = Path(tempfile.mkdtemp(prefix="joinengine-"))
    try:
        yield passing
    finally:
        shutil.rmtree(passing, ignore_errors=True)
