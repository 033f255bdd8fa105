"""The slots of a Spark session, for resident tasks (`joinengine.staying.pool`).

A slot is the `spark.task.cpus` cores of an executor that one Spark task occupies.
"""

from __future__ import annotations

import atexit
import os
import re
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark import Accumulator, AccumulatorParam, SparkContext
from pyspark.serializers import CloudPickleSerializer
from typing_extensions import override

from joinengine.spark.jobs.locality import alive_numbers, executor_cores, number_of, own_location
from joinengine.spark.session.daemon import end_quietly
from joinengine.staying.door import Door, Hosts
from joinengine.staying.orders import Function, serve
from joinengine.staying.pool import Pool, Slots
from joinengine.staying.wire import Address, Caller, Secret, connected, introduce

#: A master under which all of Spark runs in one process, and its cores.
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
#: A master under which all of Spark runs on this machine, with executors as separate processes.
_LOCAL_CLUSTER = "local-cluster["
_STANDALONE = "spark://"
_LOOPBACK = "127.0.0.1"
#: Setting under which tasks cannot be resident on separate executors -> why.
_SETTINGS = {
    "spark.dynamicAllocation.enabled": "tasks that stay would never release an executor",
    "spark.speculation": "Spark would run a second copy of each resident task",
    "spark.authenticate": "tasks that stay open connections that Spark does not authenticate",
    "spark.network.crypto.enabled": "tasks that stay do not encrypt their answers",
    "spark.ssl.rpc.enabled": "tasks that stay do not encrypt their answers",
}
#: Seconds between two questions to Spark for tasks that are still running.
_POLL_S = 0.05
#: Seconds for which a task tries to connect.
_REACH_S = 3.0
#: Encodes code as Spark does.
_CODE: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
#: Pairs of a job group and what one of its tasks reports.
_Said = frozenset[tuple[str, str]]


def obstacle(context: SparkContext) -> str | None:
    """Why tasks cannot be resident in a session, in words; None: they can."""
    master = str(context.master)
    if _LOCAL.fullmatch(master):
        return None if hasattr(socket, "AF_UNIX") else "this system has no Unix sockets"
    if not master.startswith((_LOCAL_CLUSTER, _STANDALONE)):
        return (
            "tasks that stay are tested under local and standalone masters only, and the master "
            f"is {master}"
        )
    for name, why in _SETTINGS.items():
        if _setting(context, name).lower() == "true":
            return f"{name} is true: {why}"
    return None


class _Union(AccumulatorParam[_Said]):
    @override
    def zero(self, value: _Said) -> _Said:
        return frozenset()

    @override
    def addInPlace(self, value1: _Said, value2: _Said) -> _Said:
        return value1 | value2


@dataclass(frozen=True)
class Stay:
    """A resident task: takes orders until the driver ends it; for `mapPartitionsWithIndex`.

    `group`: of its job. `unreached`: gets the reason if the driver cannot be reached.
    """

    address: Address
    secret: Secret
    group: str
    unreached: Accumulator[_Said]

    def __call__(self, index: int, rows: Iterable[Any]) -> Iterator[bytes]:
        """Carry out orders; yields nothing."""
        for _ in rows:
            pass
        end_quietly()
        try:
            driver = connected(self.address, _REACH_S)
        except OSError as error:
            self.unreached.add(frozenset({(self.group, f"{socket.gethostname()}: {error}")}))
            return iter(())
        with driver, suppress(OSError, EOFError):
            if introduce(driver, self.secret, Caller(index, os.getpid(), own_location())):
                driver.settimeout(None)
                serve(driver, _CODE.loads)
        return iter(())


class SparkSlots(Slots):
    """The slots of a Spark session."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._unreached = context.accumulator(frozenset[tuple[str, str]](), _Union())

    @property
    @override
    def hosts(self) -> Hosts | None:
        master = str(self._context.master)
        if _LOCAL.fullmatch(master):
            return None
        if master.startswith(_LOCAL_CLUSTER):
            return Hosts(_LOOPBACK, _LOOPBACK)
        host = _setting(self._context, "spark.driver.host")
        bound = _setting(self._context, "spark.driver.bindAddress") or host
        return Hosts(bound.strip("[]"), host.strip("[]"))

    @override
    def count(self) -> int:
        cpus = max(int(_setting(self._context, "spark.task.cpus") or 1), 1)
        local = _LOCAL.fullmatch(str(self._context.master))
        if local is None:
            there = executor_cores(self._context).values()
            return max(sum(cores // cpus for cores in there), 1)
        jvm: Any = self._context._jvm
        cores = local[1] or "1"
        count = jvm.Runtime.getRuntime().availableProcessors() if cores == "*" else int(cores)
        return max(count // cpus, 1)

    @override
    def executors(self) -> Collection[str]:
        return alive_numbers(self._context)

    @override
    def is_on(self, location: str, executors: Collection[str]) -> bool:
        return number_of(location) in executors

    @override
    def occupy(self, group: str, count: int, door: Door) -> threading.Thread:
        stay = Stay(door.address, door.secret, group, self._unreached)
        arguments = self._context, group, count, stay
        job = threading.Thread(
            target=_run_job, args=arguments, name="joinengine-tasks", daemon=True
        )
        job.start()
        return job

    @override
    def cancel(self, group: str) -> None:
        with suppress(Exception):  # the JVM may be gone
            self._context.cancelJobGroup(group)

    @override
    def settle(self, within_s: float) -> None:
        """Wait, because Spark reports the end of each task to this process, or prints an error."""
        end_s = time.monotonic() + within_s
        with suppress(Exception):  # the JVM may be gone
            jvm: Any = self._context._jsc
            while time.monotonic() < end_s and any(
                info.numRunningTasks() for info in jvm.sc().statusTracker().getExecutorInfos()
            ):
                time.sleep(_POLL_S)
            time.sleep(_POLL_S)  # Spark counts a task as ended a little before it reports it

    @override
    def others_wait(self, group: str) -> bool:
        try:
            tracker = self._context.statusTracker()
            ours = tracker.getJobIdsForGroup(group)
            return bool(set(tracker.getActiveJobsIds()).difference(ours))
        except Exception:  # Spark is being stopped
            return True

    @override
    def unreached(self, group: str) -> str | None:
        said = [text for of_group, text in self._unreached.value if of_group == group]
        if not said or self.hosts is None:
            return None
        return (
            f"executors cannot reach the driver at {self.hosts.told} ({min(said)}); check "
            "spark.driver.host and the firewalls between executors and driver"
        )

    @override
    def code(self, function: Function) -> bytes:
        return bytes(_CODE.dumps(function))


def _run_job(context: SparkContext, group: str, count: int, stay: Stay) -> None:
    with suppress(Exception):  # the pool sees that its tasks are gone
        context.setJobGroup(group, "joinengine: tasks that stay", interruptOnCancel=True)
        context.parallelize(range(count), count).mapPartitionsWithIndex(stay).count()


def _setting(context: SparkContext, name: str) -> str:
    return str(context._jsc.sc().conf().get(name, ""))


_pools = dict[str, Pool]()
_making = threading.Lock()


def pool_of(context: SparkContext) -> Pool:
    """The pool of a session."""
    with _making:
        application = str(context.applicationId)
        if application not in _pools:
            _pools[application] = pool = Pool(SparkSlots(context))
            _leave_before_stop(context, pool)
        return _pools[application]


def _leave_before_stop(context: SparkContext, pool: Pool) -> None:
    """Make the pool leave when the program stops its session; Spark tells nobody in time."""
    stop = context.stop

    def stop_after_leaving() -> None:
        pool.leave()
        stop()

    setattr(context, "stop", stop_after_leaving)  # noqa: B010 (mypy: methods are not assigned)


@atexit.register
def _end_all() -> None:
    for pool in _pools.values():
        pool.end()
