"""Machines that share nothing but the network, on one machine: processes in namespaces.

Each machine has a disk of its own at /tmp/NAME. The system, Python, Spark and this project are
there read-only, and everything else that programs write is empty at first and private. So a path
of one machine is not there for another, unless it is shared on purpose, as NFS would. The processes
of a machine have a process namespace: they end together, and also if the tests are killed.

joinengine is importable on a machine only for programs that put it on their path. Pythons of a
machine note which paths of the other machines they open (`Machine.trespasses`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

import pyspark

ROOT = Path(__file__).parents[2]
DISKS = "/tmp"
#: As on a real worker: with `pyspark.zip`, which the tests' own home of Spark has not.
SPARK_HOME = Path(pyspark.__file__).parent
#: Machines are hosts of the loopback network, of which Linux has 127.0.0.0/8.
HOSTS = {"localhost": "127.0.0.1", "driver": "127.0.0.2", "master": "127.0.0.3"} | {
    f"worker-{number}": f"127.0.0.{10 + number}" for number in range(1, 33)
}
_OPENS = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.link")
#: A `sitecustomize` of the machine's Pythons, which run it when they start.
_SPY = f"""
import os, sys

def watch(event, arguments, busy=[]):
    if event not in {_OPENS!r} or busy:
        return
    busy.append(event)
    try:
        for path in arguments[:2]:
            if isinstance(path, (str, bytes, os.PathLike)):
                path = os.path.abspath(os.fsdecode(path))
                if path.startswith("{DISKS}/") and path.split("/")[2] in {{others!r}}:
                    file = os.open({{log!r}}, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
                    os.write(file, (path + "\\n").encode())
                    os.close(file)
    finally:
        busy.clear()

sys.addaudithook(watch)
"""


@cache
def obstacle():
    """Why no machine can be made here, in words; None: they can."""
    if sys.platform != "linux":
        return "mount namespaces are Linux's"
    missing = [tool for tool in ("unshare", "setpriv") if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)} of util-linux"
    tried = subprocess.run([*namespaces(), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        why = (tried.stderr.splitlines() or ["no reason given"])[0]
        return f"this system forbids mount namespaces ({why})"
    return None


def namespaces():
    """The command before a command that runs it in namespaces which end with this process."""
    asks = [] if os.geteuid() == 0 else ["--map-root-user"]
    asks += ["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *asks, "--"]


class Machine:
    """A machine called `name`, with its disk in `folder`; programs on it are processes here.

    `shared`: folders of this system that the machine sees under the same path. The disk outlives
    the programs; two programs of one machine see the same disk.
    """

    def __init__(self, name, folder, shared=()):
        self.name, self.disk = name, f"{DISKS}/{name}"
        self.folder = Path(folder, name)
        self.shared = [str(path) for path in shared]
        self.folder.mkdir(parents=True)
        self._programs = []
        self._spy = self.folder / ".spy"
        self._spy.mkdir()
        text = _SPY.format(log=f"{self.disk}/.spy/opened", others=sorted(HOSTS.keys() - {name}))
        (self._spy / "sitecustomize.py").write_text(text)

    def start(self, *command, log, **environment):
        """Start a program; what it says goes to the file `log` of the disk."""
        with (self.folder / log).open("ab") as file:
            program = subprocess.Popen(
                self._command(command),
                env=self._environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._programs.append(program)
        return program

    def run(self, *command, timeout_s=300, **environment):
        """Run a program to its end: returns its exit code, output and errors."""
        program = subprocess.Popen(
            self._command(command),
            env=self._environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._programs.append(program)
        try:
            out, errors = program.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            program.kill()
            out, errors = program.communicate()
            raise AssertionError(f"{self.name}: no end after {timeout_s} s\n{errors}") from None
        return subprocess.CompletedProcess(command, program.returncode, out, errors)

    def kill(self):
        """End all programs of the machine at once, as if its power failed."""
        for program in self._programs:
            program.kill()
            program.wait()
        self._programs.clear()

    def said(self, log):
        """The text of a log so far."""
        path = self.folder / log
        return path.read_text(errors="replace") if path.exists() else ""

    def trespasses(self):
        """Paths of the disks of other machines that a Python here has opened, or tried to."""
        opened = self._spy / "opened"
        return sorted(set(opened.read_text().splitlines())) if opened.exists() else []

    def _command(self, command):
        hidden = {DISKS, "/var/tmp", "/dev/shm", tempfile.gettempdir(), str(Path.home())}
        inner = {path for path in hidden if _has_parent(path, hidden)}
        plan = [
            self.name,
            sorted(path for path in hidden - inner if Path(path).is_dir()),
            sorted({str(path) for path in _needed()}),
            {self.disk: str(self.folder)} | {path: path for path in self.shared},
            HOSTS,
        ]
        helper = str(Path(__file__).with_name("inside.py"))
        return [*namespaces(), sys.executable, "-I", helper, json.dumps(plan), *map(str, command)]

    def _environment(self, more):
        """What a program finds: a host name of its own, and its disk for whatever it writes."""
        inherited = ("PATH", "LANG", "JAVA_HOME", "JDK_JAVA_OPTIONS")
        return (
            {name: os.environ[name] for name in inherited if name in os.environ}
            | {"HOME": self.disk, "TMPDIR": self.disk, "JOINENGINE_HOME": f"{self.disk}/home"}
            | {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_HOSTNAME": self.name}
            | {"SPARK_LOCAL_DIRS": f"{self.disk}/spark", "PYSPARK_PYTHON": sys.executable}
            | {"PYTHONPATH": f"{self.disk}/.spy", "PYTHONDONTWRITEBYTECODE": "1"}
            | {"SPARK_DAEMON_MEMORY": "256m"}
            | more
        )


def _has_parent(path, others):
    return any(path != other and Path(path).is_relative_to(other) for other in others)


@cache
def _needed():
    """The folders with this project, Python and Java, by all names."""
    java = shutil.which("java")
    places = [ROOT, SPARK_HOME, sys.prefix, sys.base_prefix, sysconfig.get_path("purelib")]
    places += [os.environ.get("JAVA_HOME"), java and Path(java).resolve().parents[1]]
    named = [Path(place) for place in places if place]
    return sorted({*named, *(place.resolve() for place in named)})
