"""Starts the daemon of Spark's Python workers early, before Spark asks for it.

Why: workers are forked from a process that has imported their modules, which takes a second. Spark
starts that process with the first task, so the first batch would wait for it. While a session
starts, its program waits seconds for the JVM, and a core is idle. So a process starts then, imports
the modules, and waits at a socket. The daemon that Spark starts later
(`joinengine.spark.session.daemon`) hands its place over to this process: the pipes to the JVM, the
environment and the path. After that, Spark's daemon only waits for the end of the process.

The process ends if the program ends before the daemon connects. If something prevents the takeover
(another Python, variables that affect imports, a system without such sockets), the only cost is
that second.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from joinengine.staying.wire import connected, listening, received, send

#: The variable with the address of the process; the JVM passes it on to the daemon that it starts.
VARIABLE = "JOINENGINE_DAEMON"
#: The argument of a process that is started early; the number of its socket follows.
ARGUMENT = "--early"
#: The modules that workers need; none of them starts a Python thread.
AT_HAND = ("pyspark.worker", "joinengine.spark.jobs.tasks")
#: The packages that must be the same at both ends.
_PACKAGES = ("pyspark", "joinengine")
#: The variables that Spark sets for a daemon and that affect the start of Python or imports.
_SET_BY_SPARK = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "YES"}
#: Variables that affect neither: prefixes of Spark's own, and variables of shells and paths. An
#: active virtual environment exports its prompt, which the shell that starts the JVM removes.
_SPARKS = ("SPARK_", "PYSPARK_", "PYTHON_", "_")
_OTHERS = ("PYTHONPATH", "PWD", "OLDPWD", "SHLVL", "PS1", "PS2", VARIABLE)
#: The standard streams that are pipes to Spark: requests, answers, and messages.
_STREAMS = (0, 1, 2)
_READY, _TAKEN, _REFUSED = b"ready", b"taken", b"refused"
#: Far longer than the imports take, in seconds.
_IMPORTS_S = 10.0


@contextmanager
def begun_early(module: str, *, serves: bool) -> Iterator[None]:
    """A JVM that is started in the block finds a daemon; `serves`: whether it could use one.

    `module`: that of the daemon, which calls `taken_over` or, with ARGUMENT, `taking_over`.
    """
    address = _begin(module) if serves and hasattr(socket, "send_fds") else None
    if address is None:
        yield
        return
    os.environ[VARIABLE] = address
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def _begin(module: str) -> str | None:
    """Start the process; the address at which it waits. None: the system does not allow it."""
    seed = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}  # as PySpark sets it
    folder = tempfile.mkdtemp(prefix="joinengine-")
    address = f"{folder}/daemon"
    try:
        with listening(address) as listener:
            number = listener.fileno()
            process = subprocess.Popen(
                [sys.executable, "-m", module, ARGUMENT, str(number)],
                stdin=subprocess.PIPE,  # so it ends with this program, until it is Spark's
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | _SET_BY_SPARK | seed,
                pass_fds=[number],
                process_group=0,  # so Ctrl-C reaches only the program
            )
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    threading.Thread(target=_clean_up, args=(process, folder), daemon=True).start()
    return address


def _clean_up(process: subprocess.Popen[bytes], folder: str) -> None:
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)


def import_at_hand() -> None:
    """Import the modules that workers need, so that they have them when they are forked."""
    for name in AT_HAND:
        import_module(name)
    # pyarrow looks for pandas when it first makes a NumPy array, and imports it if it exists.
    import_module("pyarrow").nulls(0, "int64").to_numpy(zero_copy_only=False)
    # A garbage collection would write into memory pages that are shared with the workers.
    gc.freeze()


def taking_over(number: int) -> socket.socket:
    """Import, wait, and take the place of the daemon that connects to the socket `number`.

    Returns the connection to it, which must stay open as long as this process lives. The process
    ends if the program ends first, or if the two do not fit together.
    """
    with socket.socket(fileno=number) as listener:
        address = Path(listener.getsockname())
        try:
            import_at_hand()
            spark = _called(listener)
        finally:
            with suppress(OSError):
                address.unlink()
                address.parent.rmdir()
    send(spark, _READY)
    _, streams, _, _ = socket.recv_fds(spark, 1, len(_STREAMS))
    (content,) = received(spark)
    state = json.loads(content)
    if len(streams) != len(_STREAMS) or state["suits"] != _what_suits():
        send(spark, _REFUSED)
        sys.exit()
    for stream, there in zip(_STREAMS, streams, strict=True):
        os.dup2(there, stream)
        os.close(there)
    os.environ.clear()
    os.environ.update(state["environment"])
    sys.path[:], sys.argv[:] = state["path"], state["arguments"]
    invalidate_caches()
    os.chdir(state["folder"])
    os.register_at_fork(after_in_child=spark.close)  # workers may outlive this process
    send(spark, _TAKEN)
    return spark


def _called(listener: socket.socket) -> socket.socket:
    """The connection of the daemon. The process ends if the program closes its standard input."""
    poll = select.poll()
    for descriptor in (listener.fileno(), 0):
        poll.register(descriptor, select.POLLIN)
    if listener.fileno() not in (number for number, _ in poll.poll()):
        sys.exit()
    return listener.accept()[0]


def taken_over() -> bool:
    """Let a process that was started early take the place of this one, and wait until it ends.

    False: there is none, or it does not fit.
    """
    address = os.environ.pop(VARIABLE, None)
    if address is None:
        return False
    state = {
        "suits": _what_suits(),
        "environment": dict(os.environ),
        "path": sys.path,
        "arguments": sys.argv,
        "folder": os.getcwd(),
    }
    try:
        with connected(address, _IMPORTS_S) as begun:
            if received(begun) != [_READY]:
                return False
            begun.settimeout(None)
            socket.send_fds(begun, [b"\0"], _STREAMS)
            send(begun, json.dumps(state).encode())
            if received(begun) != [_TAKEN]:
                return False
            os.setpgid(0, 0)  # like PySpark's daemon, so Ctrl-C reaches only the program
            with suppress(OSError, EOFError):
                received(begun)
    except (OSError, EOFError):  # the process is gone, or another daemon has taken it
        return False
    return True


def _what_suits() -> dict[str, Any]:
    """The facts that must be equal at both ends: modules are imported at one, used at the other.

    They do not include the path, on which Spark puts its own files first, but what is found on it.
    """
    specs = {name: find_spec(name) for name in _PACKAGES}
    return {
        "python": sys.executable,
        "packages": {name: spec and spec.origin for name, spec in specs.items()},
        "environment": _that_matter(os.environ),
    }


def _that_matter(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that may affect imports or the start of Python: all but those that do not."""
    return {
        name: value
        for name, value in variables.items()
        if name not in _OTHERS and not name.startswith(_SPARKS)
    }
