"""Sends tasks back to the executor that ran them last, whose file cache has their run files.

Why: over an object store, a task whose executor has no copies must download all its state. Spark
knows nothing of these copies, and assigns tasks at random.

How: a task reports its executor. When the driver next runs a task for the same instances, the
task's partition names that executor as its preferred location. PySpark has no call for this, so the
RDD is made in the JVM. Partitions read from a shuffle have no locations, and Spark's zip of such
partitions takes only functions of the JVM. Hence the diagonal of a cartesian product with
partitions of one element: it has the locations of the latter.

Law: a preference is no demand. An executor that is gone is no longer named, no executor is named
for more tasks than its share, and a task waits at most WAIT for a busy one.
Cost: none if the state lies in a folder. Otherwise a look at the executors and, while the locations
stay the same, some JVM calls for each job. A product of n tasks has n * n partitions, which Spark
creates as objects; so with more than MOST_TASKS tasks, tasks run anywhere.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import NoOpSerializer

from joinengine.model.errors import InvalidRequest
from joinengine.operators.base import Operator, OperatorTask
from joinengine.wire.reports import OperatorReport
from joinengine.world.buckets import is_url

#: How long a task waits for a busy executor, and then for its host. A miss costs a download.
WAIT = "50ms"
#: The same if only the executor has the task's files. No task waits for an executor that is gone.
LONG_WAIT = "3s"
#: With more tasks the product of their partitions would have more than a quarter of a million.
MOST_TASKS = 512
#: Spark's settings of the wait: the first is the default of the others.
_ALL, *_WAITS = (f"spark.locality.wait{what}" for what in ("", ".process", ".node", ".rack"))
#: Processes between a worker and its executor: PySpark's daemon, and perhaps a shell.
_MOST_PARENTS = 4

#: Masters under which all of Spark is one process, and the one that starts some local executors.
_ONE_PROCESS = re.compile(r"local(\[.*\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)")
#: Seconds that a query waits for executors to register, and between two looks.
_PATIENCE_S = 30.0
_QUIET_S = 1.0
_PAUSE_S = 0.1

#: An executor as Spark names it among locations; None: any.
Location = str | None


@cache
def own_location() -> Location:
    """The executor of this worker process; None: Spark runs in one process, or it is not known.

    It is read from the executor's command line, the only place where a Python worker finds it under
    all of Spark's masters.
    """
    executor = own_executor()
    return None if executor is None else executor[1]


def own_executor() -> tuple[int, str] | None:
    """The process of this worker's executor and its location; None: as in `own_location`."""
    pid = os.getppid()
    for _ in range(_MOST_PARENTS):
        with suppress(OSError, IndexError, ValueError):
            location = location_in(Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
            if location is not None:
                return pid, location
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def executors(context: SparkContext) -> list[str]:
    """The locations of the executors that are alive, oldest first."""
    return list(executor_cores(context))


def executor_cores(context: SparkContext) -> dict[str, int]:
    """Location of an executor that is alive -> its cores, oldest first."""
    alive = alive_numbers(context)
    if not alive:
        return {}
    known = context._jsc.sc().statusStore().executorList(False)
    by_id = dict[str, tuple[str, int]]()
    for number in range(known.size()):
        info = known.apply(number)
        by_id[info.id()] = str(info.hostPort()).rpartition(":")[0], int(info.totalCores())
    numbers = sorted(
        alive & by_id.keys(), key=lambda number_there: (len(number_there), number_there)
    )
    return {
        f"executor_{by_id[number_there][0]}_{number_there}": by_id[number_there][1]
        for number_there in numbers
    }


def executors_at_start(context: SparkContext) -> list[str]:
    """As `executors`, after a wait until all requested ones are there and no more register.

    Empty if Spark runs in one process.
    """
    master = str(context.master)
    if _ONE_PROCESS.fullmatch(master):
        return []
    local = _LOCAL_CLUSTER.match(master)
    asked = context.getConf().get("spark.executor.instances", "1")
    wanted = int(local[1] if local else asked or 1)
    begun = since = time.monotonic()
    alive = list[str]()
    while (now := time.monotonic()) < begun + _PATIENCE_S:
        before, alive = alive, executors(context)
        since = since if len(alive) == len(before) else now
        if len(alive) >= wanted and (local or now > since + _QUIET_S):
            break
        time.sleep(_PAUSE_S)
    return alive


def alive_numbers(context: SparkContext) -> set[str]:
    """The numbers of the executors that are alive."""
    text = str(context._jsc.sc().getExecutorIds().mkString(","))
    return set(text.split(",")) - {"", "driver"}


def number_of(location: str) -> str:
    """The number of the executor at a location."""
    return location.rpartition("_")[2]


def location_in(command: Sequence[str]) -> Location:
    """The executor that a command line starts; None: it starts none.

    >>> location_in(["java", "..Backend", "--executor-id", "3", "--hostname", "10.0.0.7"])
    'executor_10.0.0.7_3'
    """
    named = dict(pairwise(command))
    try:
        return f"executor_{named['--hostname']}_{named['--executor-id']}"
    except KeyError:
        return None


class Locality:
    """Where tasks ran last. Only this driver knows it, so a restart begins without it."""

    def __init__(self, context: SparkContext, slots: Sequence[str] = ()) -> None:
        """`slots`: the n executors on which tasks have fixed places, task t at slot t modulo n."""
        self._context = context
        self._slots: list[Location] = list(slots)
        #: operator -> how many tasks it had last
        self._tasks: dict[int, int] = {}
        self._jvm: Any = context._jvm
        #: (operator, task) -> where it ran last; instance i is always one of task i modulo tasks
        self._last: dict[tuple[int, int], str] = {}
        #: operator -> the locations of its tasks, and the RDD with these
        self._rdds: dict[str | int, tuple[tuple[Location, ...], Any]] = {}

    def note(self, operator: Operator, reports: Sequence[OperatorReport]) -> None:
        """Take note of where tasks have run."""
        self._tasks[operator.index] = len(reports)
        for report in reports:
            if report.executor is not None:
                self._last[operator.index, report.task] = report.executor

    def locations(
        self, operator: Operator, tasks: Sequence[OperatorTask]
    ) -> tuple[Location, ...] | None:
        """The preferred locations of tasks; None: anywhere."""
        if self._slots:
            self._fill_slots()
            n = len(self._slots)
            return tuple(self._slots[task.header.task % n] for task in tasks)
        if not is_url(tasks[0].header.runs.folder) or len(tasks) > MOST_TASKS:
            return None
        last = [self._last.get((operator.index, task.header.task)) for task in tasks]
        if not any(last):
            return None
        return shared_out(last, alive_numbers(self._context))

    def _fill_slots(self) -> None:
        """Give the slots of executors that are gone to new executors."""
        alive = executors(self._context)
        new = [slot for slot in alive if slot not in self._slots]
        for place, slot in enumerate(self._slots):
            if slot not in alive:
                self._slots[place] = new.pop(0) if new else None

    def last_of(self, operator: Operator, instances: int) -> list[Location]:
        """Per instance, where its task last ran; None: it has not run, or this is unknown."""
        n = self._tasks.get(operator.index, 1)
        return [self._last.get((operator.index, instance % n)) for instance in range(instances)]

    def gone(self, operator: Operator, instances: int) -> list[int]:
        """The instances whose tasks ran on executors that are gone."""
        last = self.last_of(operator, instances)
        if not any(last):
            return []
        alive = alive_numbers(self._context)
        return [
            i
            for i, location in enumerate(last)
            if location is not None and number_of(location) not in alive
        ]

    def kill(self) -> str:
        """Kill the executor of the last slot or, without slots, the newest one; its location.

        Raises InvalidRequest if there is no executor.
        """
        there = [slot for slot in self._slots if slot is not None] or executors(self._context)
        if not there:
            raise InvalidRequest(NO_EXECUTOR)
        victim = there[-1]
        self._made_once((victim,)).mapPartitions(Killing(victim)).collect()
        return victim

    def _made_once(self, locations: tuple[Location, ...]) -> RDD[bytes]:
        return RDD(self._made(locations), self._context, NoOpSerializer())

    def located(self, operator: str | int, locations: tuple[Location, ...]) -> RDD[bytes]:
        """A partition with one empty element for each location."""
        known = self._rdds.get(operator)
        if known is None or known[0] != locations:
            known = self._rdds[operator] = locations, self._made(locations)
        return RDD(known[1], self._context, NoOpSerializer())

    def _made(self, locations: tuple[Location, ...]) -> Any:
        jvm, seq = self._jvm, self._jvm.PythonUtils.toSeq
        pairs = [
            jvm.scala.Tuple2(b"", seq([] if location is None else [location]))
            for location in locations
        ]
        kind = jvm.scala.reflect.ClassTag.AnyRef()
        return self._context._jsc.sc().makeRDD(seq(pairs), kind).toJavaRDD()

    def at(self, operator: int, locations: tuple[Location, ...], rdd: RDD[bytes]) -> RDD[bytes]:
        """The partitions of `rdd`, unchanged, each at its location."""
        jvm, n = self._jvm, len(locations)
        product = self.located(operator, locations)._jrdd.cartesian(rdd._jrdd)
        diagonal = jvm.PythonUtils.toSeq([i * n + i for i in range(n)]).toSet()
        pruned = jvm.org.apache.spark.rdd.PartitionPruningRDD.create(
            jvm.PythonRDD.valueOfPair(product).rdd(), diagonal
        )
        return RDD(pruned.toJavaRDD(), self._context, NoOpSerializer())


def shared_out(last: Sequence[Location], alive: Collection[str]) -> tuple[Location, ...] | None:
    """Locations with None for executors that are not `alive`, and for tasks beyond a fair share.

    None: no location is left.

    >>> shared_out(["executor_a_1", "executor_b_2", "executor_a_1", "executor_a_1"], ["1", "3"])
    ('executor_a_1', None, 'executor_a_1', None)
    """
    share = -(-len(last) // max(len(alive), 1))
    locations = list[Location]()
    for location in last:
        there = location is not None and number_of(location) in alive
        locations.append(location if there and locations.count(location) < share else None)
    return tuple(locations) if any(locations) else None


#: The message if no executor can be killed.
NO_EXECUTOR = (
    "kill: Spark runs in one process here, so there is no executor to kill; use a cluster or "
    "--master 'local-cluster[3,1,2048]'"
)


@dataclass(frozen=True)
class Killing:
    """A task that kills its executor if that is `victim`; for `mapPartitions`.

    Spark runs it again on another executor, where it does nothing.
    """

    victim: str

    def __call__(self, rows: Iterable[bytes]) -> Iterator[bytes]:
        """Nothing in, nothing out."""
        for _ in rows:  # see `OperatorTasks`
            pass
        executor = own_executor()
        if executor is not None and executor[1] == self.victim:
            os.kill(executor[0], signal.SIGKILL)
        return iter(())


_turn = Lock()
_waiting = 0
#: The settings that joinengine has changed, as long as any job waits.
_ours = list[str]()


@contextmanager
def short_wait(
    context: SparkContext, locations: tuple[Location, ...] | None, wait: str = WAIT
) -> Iterator[None]:
    """The tasks of jobs in the block wait no longer than `wait` for their locations.

    Spark reads these settings from its context when the tasks of a job begin. So they also apply to
    jobs that other threads begin in the meantime. Settings of the user stay.
    """
    if locations is None:
        yield
        return
    conf = context._jsc.sc().conf()
    _shorten(conf, +1, wait)
    try:
        yield
    finally:
        _shorten(conf, -1, wait)


def _shorten(conf: Any, change: int, wait: str) -> None:
    global _waiting  # noqa: PLW0603 # the settings belong to the only context of the process
    with _turn:
        _waiting += change
        if conf.contains(_ALL):
            return
        if change > 0 and _waiting == 1:
            _ours[:] = [name for name in _WAITS if not conf.contains(name)]
            for name in _ours:
                conf.set(name, wait)
        elif not _waiting:
            for name in _ours:
                conf.remove(name)
            _ours.clear()
