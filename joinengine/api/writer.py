"""The writer of a query, in the shape of Spark's `DataStreamWriter`: it says where results go."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from joinengine.api import options as given
from joinengine.api.file_sinks import check_same_columns, dropping, parquet_sink, reader_sink
from joinengine.api.kafka_sink import kafka_sink
from joinengine.api.lake_sinks import table_sink
from joinengine.api.option_table import FORMATS, OPTIONS
from joinengine.api.resolved import ResolvedJoin, as_kept
from joinengine.api.trials import trial_of
from joinengine.driver.layout_fit import Naming
from joinengine.driver.settings import Settings
from joinengine.kernels.hashing import hash_columns
from joinengine.layouts import choose
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.errors import InvalidRequest
from joinengine.model.habits import WRITER, Helped
from joinengine.model.spelling import printed_lines
from joinengine.model.texts import quoted, without_secrets
from joinengine.results.readers import Receiver
from joinengine.results.sinks import Sink, SinkFactory
from joinengine.spark.query import formats
from joinengine.spark.query.frame_sinks import FrameSink
from joinengine.spark.query.join_query import JoinQuery
from joinengine.spark.query.memory_view import view_writer
from joinengine.spark.query.query_folders import Output
from joinengine.spark.query.request import Request
from joinengine.spark.query.starting import start
from joinengine.spark.session import session
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.wished import Relayout

#: What Spark takes for the name of a temporary view.
_VIEW = re.compile(r"\w+", re.ASCII)


@dataclass(frozen=True)
class JoinWriter(Helped):
    """Chooses the sink and the options of a query, and starts it.

    Each method returns a new writer; `start` and `toTable` return the running query.
    """

    _instead = WRITER
    join: ResolvedJoin
    sink: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    name: str | None = None
    when: dict[str, Any] = field(default_factory=dict)
    function: Callable[[DataFrame, int], None] | None = None
    receiver: Receiver | None = None
    table: str | None = None
    partitions: tuple[str, ...] = ()
    factory: SinkFactory | None = None
    checksum: bool = False
    schedule: Mapping[int, Sequence[Relayout]] = field(default_factory=dict)
    losses: Mapping[int, Sequence[int]] = field(default_factory=dict)
    kills: frozenset[int] = frozenset()
    of: str = "a query"

    def __repr__(self) -> str:
        kind = self._function_kind() or self.sink or "no sink yet"
        shown = self.settings | {name: "..." for name in self.settings if given.is_secret(name)}
        parts = [kind, *(f"{name}={without_secrets(value)!r}" for name, value in shown.items())]
        return printed_lines(f"<JoinWriter of {self.of}: {', '.join(parts)}; .start() starts it>")

    def format(self, source: str) -> JoinWriter:
        """Choose the sink: `parquet`, `delta`, `iceberg`, `kafka`, `noop`, `console` or `memory`.

        Any other name is a batch format of Spark. Each result is in `parquet`, in a table and in
        `kafka` exactly once, and in a format of Spark at least once.
        """
        return replace(self, sink=source, function=None, receiver=None, table=None)

    def option(self, key: str, value: Any) -> JoinWriter:
        """Set an option of the sink or of joinengine; case does not matter in its name.

        `help(JoinWriter.option)` and docs/options.md list the options of joinengine.

        Raises InvalidRequest for a value that is not text, a number or a bool. `start` refuses
        unknown options.
        """
        if isinstance(key, str) and key.lower() == given.PARTITION_BY.lower():
            return self.partitionBy(value)
        return replace(self, settings=given.merged(self.settings, given.named(key, value)))

    def options(self, **options: Any) -> JoinWriter:
        """Set several options at once."""
        writer = self
        for key, value in options.items():
            writer = writer.option(key, value)
        return writer

    def checksummed(self) -> JoinWriter:
        """Also compute a checksum of all result rows. It costs about 10 ns for each value."""
        return replace(self, checksum=True)

    def relayout(
        self, batch: int, layout: str | LayoutChoice | None = None, instances: int | None = None
    ) -> JoinWriter:
        """Change the layout, the number of instances, or both, before batch `batch`.

        Raises InvalidRequest for a batch before 1, an unknown layout, or no change at all.
        """
        if not _is_whole(batch) or batch < 1:
            raise InvalidRequest(f"relayout: expected a batch from 1 on, found {batch!r}")
        if layout is None and instances is None:
            raise InvalidRequest(f"relayout: batch {batch} needs layout=, instances=, or both")
        if not (layout is None or isinstance(layout, str) or _is_choice(layout)):
            raise InvalidRequest(
                f"layout: expected a name or an object such as Mnrt(), found {layout!r}"
            )
        if instances is not None and not _is_whole(instances):
            raise InvalidRequest(f"instances: expected a whole number, found {instances!r}")
        wish = Relayout(None if layout is None else choose(layout), instances)
        wishes = (*self.schedule.get(batch, ()), wish)
        return replace(self, schedule={**self.schedule, batch: wishes})

    def fail(self, batch: int, *instances: int) -> JoinWriter:
        """Let instances of all joins lose their state before batch `batch`, to test recovery.

        Raises InvalidRequest for a batch before 1, or if no instance is given. `start` refuses it
        if the layout or an operator keeps no copies of its state.
        """
        given.check_batch("fail", batch)
        if not instances or not all(map(_is_whole, instances)):
            raise InvalidRequest(
                f"fail: expected numbers of instances for batch {batch}, found {instances}"
            )
        lost = (*self.losses.get(batch, ()), *instances)
        return replace(self, losses={**self.losses, batch: lost})

    def kill(self, batch: int) -> JoinWriter:
        """Kill a Spark executor and its local disk before batch `batch`, to test recovery.

        Raises InvalidRequest for a batch before 1. `start` refuses it if there are no executors.
        """
        given.check_batch("kill", batch)
        return replace(self, kills=self.kills | {batch})

    def partitionBy(self, *cols: str | Sequence[str]) -> JoinWriter:
        """Write results into Hive folders, `column=value`, like Spark's `partitionBy`.

        The columns are then in the names of the folders, not in the files.
        """
        return replace(self, partitions=given.columns(given.PARTITION_BY, cols))

    def queryName(self, queryName: str) -> JoinWriter:
        """Name the query. The table of the memory sink has this name too.

        Raises InvalidRequest for an empty name, and for one that UTF-8 cannot hold.
        """
        return replace(self, name=given.query_name(queryName))

    def trigger(self, *args: Any, **trigger: Any) -> JoinWriter:
        """Choose when batches start: `processingTime=`, `availableNow=True` or `once=True`.

        Raises InvalidRequest for anything else.
        """
        if args:
            raise InvalidRequest(
                f"trigger: expected an argument by name, found {args[0]!r}; write "
                f"processingTime={args[0]!r}"
            )
        return replace(self, when=given.trigger_of(trigger))

    def outputMode(self, outputMode: str) -> JoinWriter:
        """Accept `append`, the only output mode: a result that was shown stays.

        With `changes=`, a further result of -1 takes one back (docs/joins.md).

        Raises InvalidRequest for any other mode.
        """
        if str(outputMode).lower() != "append":
            raise InvalidRequest(
                f"outputMode: expected 'append', the only mode of joinengine, found {outputMode!r}"
            )
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> JoinWriter:
        """Call `func(frame, batch)` with the results of each batch, at least once per batch."""
        if not callable(func):
            raise InvalidRequest(
                f"foreachBatch: expected a function func(frame, batch), found {func!r}"
            )
        return replace(self, function=func, receiver=None, table=None)

    def foreach_batch_arrow(self, func: Receiver) -> JoinWriter:
        """Call `func(reader, batch)` with the results of each batch, at least once per batch.

        `reader`: a `pyarrow.RecordBatchReader`, which is valid during the call. No JVM takes part.
        """
        if not callable(func):
            raise InvalidRequest(
                f"foreach_batch_arrow: expected a function func(reader, batch), found {func!r}"
            )
        return replace(self, receiver=func, function=None, table=None)

    def foreach(self, f: Any) -> JoinWriter:
        """Not supported: raises InvalidRequest. Use `foreachBatch`."""
        raise InvalidRequest(
            "foreach is not supported; use .foreachBatch(func), where func(frame, batch) may call "
            "frame.foreachPartition(...)"
        )

    def toTable(self, tableName: str) -> JoinQuery:
        """Start the query, and append its results to a table, at least once."""
        return replace(self, table=tableName, function=None, receiver=None).start()

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | Sequence[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> JoinQuery:
        """Check the query, recover its checkpoint, and start it.

        `path`: the folder for the results, the same as `.option("path", ...)`; the others are the
        methods of these names, as in Spark. Raises InvalidRequest, or CheckpointMismatch, before
        any job runs. Raises DamagedState if a file of the checkpoint is missing or damaged.
        """
        if path is not None:
            options = {"path": path, **options}
        writer = self.options(**options)
        writer = writer if format is None else writer.format(format)
        writer = writer if outputMode is None else writer.outputMode(outputMode)
        writer = writer if partitionBy is None else writer.partitionBy(partitionBy)
        return (writer if queryName is None else writer.queryName(queryName))._start()

    def _start(self) -> JoinQuery:
        options = self.settings
        kind = self._kind()
        given.check_names(kind, options)
        given.check_folders(kind, self.partitions)
        location = options.get("checkpointLocation")
        if not location:
            raise InvalidRequest(
                "checkpointLocation is missing; give .option('checkpointLocation', folder), the "
                "folder for the state of the query"
            )
        page, watched = given.live_place(options, os.environ)
        state = options.get("stateLocation")
        join = as_kept(self.join, location, state)
        over = replace(self, join=join)
        settings = over._settings(options)
        sink, output = over._sink(kind, options, settings)
        request = Request(
            spark=join.spark,
            query=join.query,
            choices=join.choices,
            sources=join.sources,
            checkpoint_location=location,
            state_location=state,
            mode=given.value_of(options, "fileMode"),
            settings=settings,
            trigger=self.when,
            name=self.name,
            side_output=options.get("sideOutput"),
            output=output,
            before=join.before,
            plans=given.value_of(options, "logPlans"),
            takeover=given.value_of(options, "takeover"),
            live=page,
            watched=watched,
        )
        return start(request, sink)

    def _kind(self) -> str:
        if (function := self._function_kind()) is not None:
            return function
        if self.table is not None:
            return "toTable"
        if self.sink is None:
            raise InvalidRequest(
                "the query has no sink; give .format(...), .foreachBatch(...) or .toTable(...)"
            )
        if not isinstance(self.sink, str):
            raise InvalidRequest(f"format: expected a name as text, found {self.sink!r}")
        ours = self.sink.lower()
        return ours if ours in FORMATS else self.sink

    def _function_kind(self) -> str | None:
        """The name of the sink, if results go to a function of the user."""
        if self.factory is not None:
            return "to_df"
        if self.receiver is not None:
            return "foreach_batch_arrow"
        return None if self.function is None else "foreachBatch"

    def _settings(self, options: dict[str, str]) -> Settings:
        spark = self.join.spark
        if self.checksum:
            _check_hashes(self.join.schema)
        return given.settings_of(
            options,
            checksum=self.checksum,
            finite="availableNow" in self.when,
            schedule=self.schedule,
            kills=self.kills,
            trial=trial_of(options, self.losses),
            naming=Naming(session.zone(spark), session.case_sensitive(spark)),
        )

    def _sink(
        self, kind: str, options: dict[str, str], settings: Settings
    ) -> tuple[SinkFactory, Output | None]:
        """A function that makes the sink, and the folder that it writes; None: it writes none."""
        join = self.join
        factory: SinkFactory
        match kind:
            case "parquet":
                return parquet_sink(join, options, settings, self.partitions, self.name)
            case "delta" | "iceberg":
                return table_sink(kind, join, options, settings, self.partitions, self.name)
            case "kafka":
                factory = kafka_sink(join, options, self.name)
            case "memory":
                factory = self._memory()
            case "foreach_batch_arrow" if self.receiver is not None:
                factory = reader_sink(join, self.receiver)
            case "to_df" if self.factory is not None:
                factory = self.factory
            case "noop" if join.transform is None:
                factory = dropping
            case _:
                return self._of_frames(kind, options)
        return factory, None

    def _of_frames(self, kind: str, options: dict[str, str]) -> tuple[SinkFactory, Output | None]:
        """A function that makes a sink for DataFrames, and the folder that it writes, if any."""
        join, output = self.join, None
        if self.function is not None:
            write = self.function
        elif self.table is not None:
            write = formats.table_writer(join.spark, self.table, self.partitions, join.leaving)
        elif kind == "console":
            shape = (given.value_of(options, name) for name in ("numRows", "truncate"))
            write = formats.console_writer(*shape)
        else:
            check_same_columns(join, kind)
            passed = given.for_spark(options)
            write = formats.format_writer(join.spark, kind, passed, self.partitions)
            output = formats.output_of(passed)
        return (lambda checkpoint, query: self._frames(checkpoint, write)), output

    def _memory(self) -> SinkFactory:
        name = self.name
        if name is None:
            raise InvalidRequest("memory: the table has no name; give .queryName(name)")
        if not _VIEW.fullmatch(name):
            raise InvalidRequest(
                f"memory: expected a table name of the letters a to z, digits and _, found "
                f"{quoted(name)}"
            )
        spark = self.join.spark
        return lambda checkpoint, query: self._frames(
            checkpoint, view_writer(spark, checkpoint.storage.at("memory"), name)
        )

    def _frames(self, checkpoint: Checkpoint, write: Callable[[DataFrame, int], None]) -> Sink:
        join = self.join
        return FrameSink(join.spark, checkpoint.results, join.schema, write, join.transform)


JoinWriter.option.__doc__ = f"{JoinWriter.option.__doc__}\n" + "\n".join(
    f"        `{one.name}` ({one.value.words}): {one.help}" for one in OPTIONS.values()
)


def _check_hashes(schema: pa.Schema) -> None:
    """Refuse a checksum over columns that have no hash."""
    for name, kind in zip(schema.names, schema.types, strict=True):
        try:
            hash_columns([pa.array([], kind)])
        except InvalidRequest as error:
            raise InvalidRequest(f"checksummed: {name}: {error}") from None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_choice(layout: object) -> bool:
    return hasattr(layout, "counts_keys") and not isinstance(layout, type)
