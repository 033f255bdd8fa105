"""Runs the tasks of a batch as Spark jobs whose tuples travel through Spark's own shuffle.

Why: if executors share no folder, Spark's shuffle carries bytes from task to task; Celeborn or
Uniffle can replace it by configuration (docs/decisions/0016).

How: tasks yield lines (`joinengine.spark.jobs.tasks`), which the JVM shuffles as pairs of a number
and bytes, as PySpark's own `partitionBy` does. A shuffle has partition 0 for the reports of its
tasks, and one partition for each task of each operator. A job that reads only partition 0 runs the
senders. The shuffle stays for the rest of the batch, so the jobs of operators read it without
running the senders again, even after a loss. If an executor is lost with its part, Spark runs the
senders of that part again, and they send the same packets (`joinengine.exchange.packets`).
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame
from typing_extensions import override

from joinengine.exchange.exchange import ThroughShuffle
from joinengine.exchange.route import Portion, RoutePlan
from joinengine.exchange.task_results import ToOperator
from joinengine.model.errors import InvalidRequest
from joinengine.operators.base import Operator, OperatorTask
from joinengine.spark.jobs.locality import short_wait
from joinengine.spark.jobs.spark_jobs import SparkJobs, step_of
from joinengine.spark.jobs.tasks import (
    REPORTS,
    ROUTE_PROPERTY,
    Forward,
    ShuffledTasks,
    partition_of,
)
from joinengine.state.manifest import Position
from joinengine.wire.codec import decode, encode
from joinengine.wire.reports import OperatorReport, RouteReport

#: The number of all partitioners. If they are equal, partitions of several shuffles can be united.
_PARTITIONER = 0


class ShuffleJobs(SparkJobs):
    """Tuples travel through shuffles, and instructions with the jobs."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._jvm: Any = self._context._jvm
        self._plan: RoutePlan | None = None
        #: the shuffles of the running batch, and those that are no longer needed
        self._shuffles, self._useless = list[Any](), list[Any]()

    @override
    def route(
        self, frame: DataFrame | None, plan: RoutePlan, start: Position, end: Position
    ) -> list[RouteReport]:
        """Run one job over the sources. Removes the shuffles of the previous batch."""
        for shuffle in (*self._shuffles, *self._useless):
            self._remove(shuffle)
        self._shuffles, self._useless = [], []
        self._plan = plan
        return super().route(frame, plan, start, end)

    @override
    def _routed(
        self, frames: Mapping[tuple[int, ...], DataFrame], plan: RoutePlan, what: str
    ) -> list[RouteReport]:
        reports = list[RouteReport]()
        for sources, frame in frames.items():
            dataset = getattr(frame._jdf, "as")(self._jvm.org.apache.spark.sql.Encoders.BINARY())
            lines = dataset.rdd()
            self._note_order(sources, lines)
            reports += self._sent(lines, plan, what)
        return reports

    @override
    def _routed_portions(self, portions: Sequence[Portion], plan: RoutePlan) -> list[RouteReport]:
        contents = self._context.parallelize(
            [encode(portion) for portion in portions], len(portions)
        )
        lines = contents.mapPartitionsWithIndex(self._route_groups)
        return self._sent(_lines_of(lines), plan, "route")

    def _sent(self, lines: Any, plan: RoutePlan, what: str) -> list[RouteReport]:
        """The reports of route tasks, whose packets stay in a shuffle."""
        shuffle = self._shuffled(lines)
        with self._described(plan.batch, what), self._told():
            contents = self._reports(shuffle)
        self._shuffles.append(shuffle)
        return [decode(report, RouteReport) for report in contents]

    def _note_order(self, sources: Collection[int], lines: Any) -> None:
        """Note the sources whose rows a second attempt of a route task may see in another order.

        Raises InvalidRequest if rows may even reach another task then.
        """
        assert self._plan is not None
        match lines.outputDeterministicLevel().toString():
            case "INDETERMINATE":
                raise InvalidRequest(
                    "exchange 'shuffle': a repartition precedes an input, and Spark may "
                    "distribute its rows differently after an executor is lost; set "
                    "spark.sql.execution.sortBeforeRepartition to true, or use exchange 'files'"
                )
            case "UNORDERED":
                unordered = (*self._plan.unordered, *sources)
                self._plan = replace(self._plan, unordered=unordered)

    @override
    def run(self, operator: Operator, tasks: Sequence[OperatorTask]) -> list[OperatorReport]:
        """Run one job; results for a later operator stay in a shuffle."""
        header = tasks[0].header
        lost = {instance for task in tasks for instance in task.stored.lost}
        instructions = [encode(replace(task, arriving=())) for task in tasks]
        coming = [None if lost else [side.rows for side in task.arriving] for task in tasks]
        locations = self._locality.locations(operator, tasks)
        with (
            self._described(header.batch, step_of(operator)),
            self._told(),
            short_wait(self._context, locations, self._wait),
        ):
            packets = self._packets(operator, len(tasks), lost)
            if locations is not None:
                packets = self._locality.at(operator.index, locations, packets)
            done = packets.mapPartitionsWithIndex(ShuffledTasks(operator, instructions, coming))
            if not isinstance(header.target, ToOperator):
                done._bypass_serializer = True  # type: ignore[attr-defined]
                reports = _decoded(done.collect())
                self._locality.note(operator, reports)
                return reports
            shuffle = self._shuffled(_lines_of(done))
            reports = _decoded(self._reports(shuffle))
        kept = self._useless if any(report.lost for report in reports) else self._shuffles
        kept.append(shuffle)
        self._locality.note(operator, reports)
        return reports

    def _packets(self, operator: Operator, tasks: int, lost: Collection[int]) -> RDD[bytes]:
        """The packets for each task of an operator; all tasks get those for `lost` instances."""
        if not self._shuffles:  # no tuple has arrived, but the tasks may have due work
            return self._context.parallelize([], tasks)
        own = [partition_of(operator.index, task, self._most) for task in range(tasks)]
        packets = self._read(self._shuffles, own)
        if not lost:
            return packets
        copies = packets.mapPartitions(Forward(lost, tasks, self._most))
        shuffle = self._shuffled(_lines_of(copies))
        self._useless.append(shuffle)
        return self._read([shuffle], own)

    # Shuffles, as Java pairs

    @property
    def _most(self) -> int:
        """The most tasks that an operator has."""
        assert self._plan is not None
        assert isinstance(self._plan.exchange, ThroughShuffle)
        return self._plan.exchange.tasks

    def _shuffled(self, lines: Any) -> Any:
        """A Java RDD of lines -> a shuffle of them, which runs when it is first read."""
        assert self._plan is not None
        last = partition_of(self._operators - 1, self._most - 1, self._most)
        partitioner = self._jvm.PythonPartitioner(last + 1, _PARTITIONER)
        return self._jvm.PairwiseRDD(lines).asJavaPairRDD().partitionBy(partitioner)

    def _reports(self, shuffle: Any) -> list[bytes]:
        """Run the senders of a shuffle; their reports."""
        return self._read([shuffle], [REPORTS]).collect()

    def _read(self, shuffles: Sequence[Any], partitions: Sequence[int]) -> RDD[bytes]:
        """The given partitions, each with the content of that partition in all shuffles."""
        pairs, jvm = shuffles[0], self._jvm
        if len(shuffles) > 1:
            gateway: Any = self._context._gateway
            kind = jvm.org.apache.spark.api.java.JavaPairRDD
            several = gateway.new_array(kind, len(shuffles))
            for place, shuffle in enumerate(shuffles):
                several[place] = shuffle
            pairs = self._context._jsc.union(several)
        values = jvm.PythonRDD.valueOfPair(pairs).rdd()
        wanted = jvm.PythonUtils.toSeq(list(partitions)).toSet()
        pruned = jvm.org.apache.spark.rdd.PartitionPruningRDD.create(values, wanted)
        return RDD(pruned.toJavaRDD(), self._context, NoOpSerializer())

    def _remove(self, shuffle: Any) -> None:
        """Make all executors remove a shuffle now, not when the JVM next collects garbage."""
        cleaner = self._context._jsc.sc().cleaner()
        if cleaner.isDefined():
            number = shuffle.rdd().dependencies().head().shuffleId()
            cleaner.get().doCleanupShuffle(number, False)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Route tasks of jobs in the block find their instructions, even if they run again."""
        self._context.setLocalProperty(
            ROUTE_PROPERTY, base64.b64encode(encode(self._plan)).decode()
        )
        try:
            yield
        finally:
            self._context.setLocalProperty(ROUTE_PROPERTY, None)  # type: ignore[arg-type]


def _lines_of(rdd: RDD[bytes]) -> Any:
    """The lines that Python tasks yield, as a Java RDD."""
    rdd._bypass_serializer = True  # type: ignore[attr-defined]
    return rdd._jrdd.rdd()


def _decoded(reports: Sequence[bytes]) -> list[OperatorReport]:
    return [decode(report, OperatorReport) for report in reports]
