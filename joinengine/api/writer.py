"""The writer of a query, in the shape of Spark's `DataStreamWriter`: it says where results go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from joinengine.driver.relayout import Relayout
from joinengine.driver.settings import MEMORY_PER_TASK, Settings
from joinengine.driver.sinks import DiscardSink, ParquetSink, Sink, SinkFactory
from joinengine.layouts import choose
from joinengine.layouts.base import LayoutChoice
from joinengine.layouts.versions import Moving
from joinengine.model.durations import describe, microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import one_of
from joinengine.operators.base import QuerySpec
from joinengine.spark.inputs import Source
from joinengine.spark.paths import local_path
from joinengine.spark.query import JoinQuery, Request, start
from joinengine.spark.sinks import FrameSink, Transform, TransformedParquetSink
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.storage import Storage
from joinengine.world.world import MACHINE

_OURS = {
    *("checkpointLocation", "memoryPerTask", "fsync", "capacity", "moves", "workPerTuple"),
    "sideOutput",
}


@dataclass(frozen=True)
class ResolvedJoin:
    """A query with its sources, layouts and transformation, ready for a sink."""

    spark: SparkSession
    query: QuerySpec
    choices: Sequence[LayoutChoice]
    sources: Sequence[Source]
    schema: pa.Schema
    transform: Transform | None = None


@dataclass(frozen=True)
class JoinWriter:
    """It says where results go, and starts the query. Each call returns a new writer."""

    join: ResolvedJoin
    sink: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    name: str | None = None
    when: dict[str, Any] = field(default_factory=dict)
    function: Callable[[DataFrame, int], None] | None = None
    checksum: bool = False
    schedule: Mapping[int, Sequence[Relayout]] = field(default_factory=dict)

    def format(self, source: str) -> JoinWriter:
        """`parquet` (exactly once), `noop`, `console`, `memory`, or any batch format of Spark."""
        return replace(self, sink=source)

    def option(self, key: str, value: Any) -> JoinWriter:
        """Set an option of the sink, or one of joinengine's.

        `checkpointLocation`; `memoryPerTask` (bytes); `fsync`; `capacity` (tuples that an instance
        may hold before its layout grows); `moves` (`eager`: state follows a new layout at once;
        `lazy`: state stays until it expires, and tuples probe it there); `workPerTuple` (a
        duration: work of that length is emulated for each tuple that an instance receives);
        `sideOutput` (a folder: late and NULL-key tuples are written there as Parquet, with a column
        `reason`).
        """
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return replace(self, settings=self.settings | {key: text})

    def options(self, **options: Any) -> JoinWriter:
        """Set several options at once."""
        writer = self
        for key, value in options.items():
            writer = writer.option(key, value)
        return writer

    def checksummed(self) -> JoinWriter:
        """Also compute a checksum of all result rows (some 10 ns a value)."""
        return replace(self, checksum=True)

    def relayout(
        self,
        batch: int,
        layout: str | LayoutChoice | None = None,
        instances: int | None = None,
    ) -> JoinWriter:
        """Change the layout, the number of instances, or both, before batch `batch`."""
        if batch < 1:
            raise InvalidRequest(
                f"batch {batch}: the first change can come before batch 1; give 1 or more"
            )
        wish = Relayout(None if layout is None else choose(layout), instances)
        wishes = (*self.schedule.get(batch, ()), wish)
        return replace(self, schedule={**self.schedule, batch: wishes})

    def queryName(self, queryName: str) -> JoinWriter:
        """Name the query; the memory sink gives its table this name."""
        return replace(self, name=queryName)

    def trigger(self, **trigger: Any) -> JoinWriter:
        """Say when batches start: `processingTime=`, `availableNow=True` or `once=True`."""
        known = {"processingTime", "availableNow", "once"}
        if not set(trigger) <= known:
            raise InvalidRequest(
                f"trigger: {', '.join(sorted(set(trigger) - known))} is not served; "
                f"use one of {', '.join(sorted(known))}"
            )
        return replace(self, when=trigger)

    def outputMode(self, outputMode: str) -> JoinWriter:
        """Only `append` is served: results are never taken back."""
        if outputMode.lower() != "append":
            raise InvalidRequest(
                f"outputMode: {outputMode!r} is not served; joinengine only appends: use 'append'"
            )
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> JoinWriter:
        """Hand each batch's results to `func(frame, batch)`, at least once."""
        return replace(self, function=func)

    def toTable(self, tableName: str) -> JoinQuery:
        """Append the results to a table, at least once, and start the query."""

        def append(frame: DataFrame, batch: int) -> None:
            frame.write.mode("append").saveAsTable(tableName)

        return self.foreachBatch(append).start()

    def start(self, path: str | None = None) -> JoinQuery:
        """Check, recover the checkpoint, and start the query.

        Raises InvalidRequest (also CheckpointMismatch) before any job; DamagedState if the
        checkpoint cannot be trusted.
        """
        options = self.settings if path is None else self.settings | {"path": path}
        location = options.get("checkpointLocation")
        if not location:
            raise InvalidRequest(
                "checkpointLocation is missing: give .option('checkpointLocation', folder), the "
                "folder that holds the state of the query"
            )
        settings = Settings(
            memory_per_task=_whole(options, "memoryPerTask", "bytes") or MEMORY_PER_TASK,
            fsync=options.get("fsync", "false") == "true",
            checksum=self.checksum,
            capacity=_whole(options, "capacity", "tuples"),
            lazy=one_of(Moving, options.get("moves", "eager"), "moves") is Moving.LAZY,
            work_s=_work_us(options) / 1e6,
            schedule=self.schedule,
        )
        request = Request(
            spark=self.join.spark,
            query=self.join.query,
            choices=self.join.choices,
            sources=self.join.sources,
            checkpoint_location=location,
            settings=settings,
            trigger=self.when,
            name=self.name,
            side_output=options.get("sideOutput"),
        )
        return start(request, self._sink(options, settings))

    def _sink(self, options: dict[str, str], settings: Settings) -> SinkFactory:
        join = self.join
        kind = "foreachBatch" if self.function is not None else self.sink
        if kind is None:
            raise InvalidRequest("no sink: give .format(...), .foreachBatch(...) or .toTable(...)")
        if kind == "noop" and join.transform is None:
            return lambda checkpoint, query: DiscardSink()
        if kind == "parquet":
            return self._parquet(options, settings)
        if kind == "memory":
            if self.name is None:
                raise InvalidRequest("memory: the table needs a name: give .queryName(name)")
            return lambda checkpoint, query: self._frames(
                checkpoint,
                _view_writer(join.spark, checkpoint.storage.at("memory"), self.name or ""),
            )
        write = self.function or _format_writer(kind, options)
        return lambda checkpoint, query: self._frames(checkpoint, write)

    def _parquet(self, options: dict[str, str], settings: Settings) -> SinkFactory:
        join = self.join
        if "path" not in options:
            raise InvalidRequest("parquet: path is missing: give .option('path', folder)")
        folder = str(local_path(options["path"], "path"))
        output = MACHINE.storage(folder, fsync=settings.fsync)
        if join.transform is None:
            return lambda checkpoint, query: ParquetSink(output, query, settings.fsync)
        transform = join.transform
        return lambda checkpoint, query: TransformedParquetSink(
            join.spark, output, query, checkpoint, join.schema, transform
        )

    def _frames(self, checkpoint: Checkpoint, write: Callable[[DataFrame, int], None]) -> Sink:
        join = self.join
        return FrameSink(join.spark, checkpoint.results, join.schema, write, join.transform)


def _view_writer(
    spark: SparkSession, files: Storage, name: str
) -> Callable[[DataFrame, int], None]:
    """A writer of results as a temporary view; the rows stay in files of the checkpoint."""

    def write(frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{files.folder}/batch={batch:08d}")
        view = spark.read.schema(frame.schema).parquet(f"{files.folder}/batch=*")
        view.createOrReplaceTempView(name)

    return write


def _format_writer(kind: str, options: dict[str, str]) -> Callable[[DataFrame, int], None]:
    passed = {key: value for key, value in options.items() if key not in _OURS}

    def write(frame: DataFrame, batch: int) -> None:
        mode = "overwrite" if kind == "noop" else "append"
        frame.write.format(kind).options(**passed).mode(mode).save()

    def show(frame: DataFrame, batch: int) -> None:
        rule = "-" * 43
        print(f"{rule}\nBatch: {batch}\n{rule}", flush=True)
        frame.show(int(options.get("numRows", "20")), options.get("truncate", "true") == "true")

    return show if kind == "console" else write


def _work_us(options: dict[str, str]) -> int:
    work = microseconds(options.get("workPerTuple", "0 s"), "workPerTuple")
    if work < 0:
        raise InvalidRequest(f"workPerTuple: {describe(work)} is negative; use 0 or more")
    return work


def _whole(options: dict[str, str], key: str, unit: str) -> int | None:
    text = options.get(key)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise InvalidRequest(f"{key}: {text!r} must be a positive whole number ({unit})")
    return int(text)
