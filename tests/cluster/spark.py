"""Spark's standalone master and its workers, each on a machine of its own."""

from __future__ import annotations

import itertools
import re
import sys
import time

from tests.cluster.machines import ROOT, SPARK_HOME, Machine

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_CLASS = str(SPARK_HOME / "bin" / "spark-class")
N_WORKERS = 3
#: As if joinengine were installed on all machines; and a session waits for all executors, so that a
#: query has a task for each.
HAVE_IT = {
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.cores.max": str(N_WORKERS),
    "spark.scheduler.minRegisteredResourcesRatio": "1",
}
#: Far longer than a daemon takes to start, in seconds.
_READY_S = 120.0
_REGISTERED = "Successfully registered with master"


class Cluster:
    """A master and N_WORKERS machines with one core each; tests start drivers on others.

    `shared`: folders that all machines see.
    """

    def __init__(self, folder, shared=()):
        self.folder, self.shared = folder, shared
        self.workers, self._drivers = {}, []
        self._names = (f"worker-{number}" for number in itertools.count(1))
        self._driver_folders = (folder / f"driver-{number}" for number in itertools.count(1))
        self.master = Machine("master", folder)
        try:
            listens = ("--host", "master", "--port", "0", "--webui-port", "0")
            self.master.start(_CLASS, _MASTER, *listens, log="log")
            self.url = _awaited(self.master, r"Starting Spark master at (spark://\S+)")[1]
            started = [self._start_worker() for _ in range(N_WORKERS)]
            for machine in started:
                _awaited(machine, _REGISTERED)
        except BaseException:
            self.close()
            raise

    def add_worker(self):
        """Start a worker on a new machine, with an empty disk; returns its name."""
        machine = self._start_worker()
        _awaited(machine, _REGISTERED)
        return machine.name

    def kill_worker(self, name):
        """End a worker's machine at once, and with it the executors that run there."""
        self.workers.pop(name).kill()

    def driver(self):
        """A new machine for drivers, with an empty disk."""
        machine = Machine("driver", next(self._driver_folders), self.shared)
        self._drivers.append(machine)
        return machine

    def run(self, *arguments, on=None, timeout_s=300, settings=HAVE_IT, **environment):
        """Run Python with `arguments` to its end, on the machine `on` or a new one.

        `settings` of Spark: of themselves executors have no joinengine.
        """
        machine = on or self.driver()
        more = driving(settings) | environment
        return machine.run(sys.executable, *arguments, timeout_s=timeout_s, **more)

    def start(self, *arguments, on, log="log", settings=HAVE_IT, **environment):
        """Start Python with `arguments` on a machine; what it says goes to the file `log` there."""
        more = driving(settings) | environment
        return on.start(sys.executable, "-u", *arguments, log=log, **more)

    def executor_logs(self):
        """What the executors have said last, for messages of failed tests."""
        logs = sorted(self.folder.glob("worker-*/work/*/*/stderr"))[-3:]
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def trespasses(self):
        """Worker -> paths of other machines that its Pythons have opened."""
        found = {name: machine.trespasses() for name, machine in self.workers.items()}
        return {name: paths for name, paths in found.items() if paths}

    def close(self):
        for machine in (*self._drivers, *self.workers.values(), self.master):
            machine.kill()

    def _start_worker(self):
        name = next(self._names)
        machine = self.workers[name] = Machine(name, self.folder, self.shared)
        has = ("--cores", "1", "--memory", "1g", "--work-dir", f"{machine.disk}/work")
        listens = ("--host", name, "--webui-port", "0")
        machine.start(_CLASS, _WORKER, *has, *listens, self.url, log="log")
        return machine


def reaching(environment):
    """Arguments of `Cluster.run` by which driver and executors reach an object store."""
    ours = {f"spark.executorEnv.{name}": value for name, value in environment.items()}
    return {"settings": HAVE_IT | ours, **environment}


def driving(settings):
    """What a driver finds in its environment, with these settings of Spark."""
    submit = [f"--conf {name}={value}" for name, value in settings.items()]
    more = " ".join([*submit, "pyspark-shell"])
    return {"PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": more}


def _awaited(machine, pattern):
    """The match of `pattern` in a daemon's log, as soon as it is there."""
    end = time.monotonic() + _READY_S
    while (found := re.search(pattern, machine.said("log"))) is None:
        assert time.monotonic() < end, f"{machine.name} has not started: {machine.said('log')}"
        time.sleep(0.1)
    return found
