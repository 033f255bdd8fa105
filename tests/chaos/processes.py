"""The processes of a run: drivers, and what they have started. A run has a process namespace."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: What a process is, by its command line.
KINDS = {
    "executor": re.compile(r"CoarseGrainedExecutorBackend"),
    "worker": re.compile(r"-m (pyspark|joinengine\.spark)\.daemon"),
    "JVM of a driver": re.compile(r"spark\.deploy\.SparkSubmit"),
}


class Process(NamedTuple):
    """A process that runs; `session`: the driver from which it stems."""

    number: int
    session: int
    command: str


def running():
    """All processes of this namespace."""
    found = list[Process]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (folder / "cmdline").read_text().replace("\0", " ")
            if state != "Z":
                found.append(Process(int(folder.name), int(session), command))
    return found


class Driver:
    """A driver's program and what it starts; `log` has what it says."""

    def __init__(self, root, number, case, state, bug):
        self.number, self.log = number, Path(root, f"driver-{number}.log")
        self.aside = False  # it has slept while another one went on
        self.killed = False
        command = [sys.executable, "-m", "tests.chaos.program", str(root), str(case.seed), state]
        with self.log.open("wb") as log:
            self.program = subprocess.Popen(
                [*command, bug or ""],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def ended(self):
        return self.program.poll() is not None

    @property
    def said(self):
        return self.log.read_text(errors="replace")

    @property
    def batches(self):
        """The numbers of the batches that it has reported."""
        return [int(number) for number in re.findall(r"^batch (\d+)$", self.said, re.M)]

    @property
    def sentence(self):
        """Class and message of the engine's error with which it ended; None: without one."""
        found = re.findall(r"^ended (\w+: .*)$", self.said, re.M)
        return found[-1] if found else None

    @property
    def last_words(self):
        """How it ended: `killed`, `done`, the class of an error of the engine, or `no sentence`.

        `refused folder`: the disk was read-only when it started, which is a bad request; `worker
        gone`: a Python worker was killed that plans what sources bring, of which there is only one.
        """
        if self.program.returncode == 0:
            return "done"
        if self.sentence is None:
            return "killed" if self.killed else "no sentence"
        name, _, said = self.sentence.partition(": ")
        if name == "InvalidRequest" and "cannot be written" in said:
            return "refused folder"
        if name == "JoinEngineError" and "Python worker exited unexpectedly" in said:
            return "worker gone"
        return name

    def children(self, kind):
        """The numbers of what it has running, of a kind."""
        return [
            one.number
            for one in running()
            if one.session == self.program.pid and KINDS[kind].search(one.command)
        ]

    def kill(self, *, alone):
        """Kill it and its JVM (`alone`), or all that it has started as well."""
        self.killed = True
        if alone:
            self.signal(signal.SIGKILL)
        else:
            for one in running():
                if one.session == self.program.pid:
                    send(one.number, signal.SIGKILL)
        self.program.wait()

    def signal(self, what):
        """Send a signal to it and to its JVM."""
        for number in (self.program.pid, *self.children("JVM of a driver")):
            send(number, what)


def send(number, what):
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(number, what)
