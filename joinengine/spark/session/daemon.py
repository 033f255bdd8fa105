"""PySpark's daemon, with workers that end without a trace and have their modules imported.

Why: Spark closes the connection of a worker that was idle for a minute, and of all workers when it
ends. A worker then tries to report the lost connection, into that same connection, and the daemon
prints a trace. So a healthy query prints one every now and then. A worker that starts while Spark
ends also prints one, and so does the process that looks for new data, when its query stops.

A session of joinengine's makes Spark start this module in place of PySpark's own daemon for the
workers of tasks. They find joinengine imported, which saves each a second of work. If possible,
that work is done while the session starts (`joinengine.spark.session.early`).
Spark always starts its planning workers from PySpark's own daemon. These, and the workers of a
session that the user has made, are made quiet when they first run joinengine's code
(`end_quietly`).
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

from joinengine.spark.session.early import ARGUMENT, import_at_hand, taken_over, taking_over

#: The setting by which Spark starts this module, and its name there.
SETTING, MODULE = "spark.python.daemon.module", "joinengine.spark.session.daemon"
_DAEMONS = ("pyspark.daemon", MODULE)
#: The errors of a worker whose connection is closed: when it writes, and when it reads.
_CLOSED = (ConnectionError, EOFError)
#: The process that looks for new data as long as a query runs.
_LOOKER = "pyspark.sql.streaming.python_streaming_source_runner"


def end_quietly() -> None:
    """In a process that Spark has started: end without a trace if Spark closes the connection.

    The daemon prints the error that ended a worker by `traceback.print_exc`, in the worker's
    process. This replaces the function there, with effect for the running call, which may be the
    worker's only one.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = None if spec is None else spec.name
    if name in _DAEMONS and not hasattr(traceback.print_exc, "plain"):
        traceback.print_exc = quiet(traceback.print_exc)
    if name == _LOOKER:
        sys.excepthook = _tell_others


def _tell_others(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Python's handling of an error that ends the process, except for a lost connection."""
    if not isinstance(error, _CLOSED):
        sys.__excepthook__(kind, error, trace)


def quiet(tell: Callable[..., None]) -> Callable[..., None]:
    """`tell`, which prints the current error, except for a lost connection."""

    def telling(*arguments: Any, **named: Any) -> None:
        if not isinstance(sys.exc_info()[1], _CLOSED):
            tell(*arguments, **named)

    telling.plain = tell  # type: ignore[attr-defined]
    return telling


def main() -> None:
    """Run PySpark's daemon. Workers are forked from it, so they have the modules imported here."""
    if sys.argv[1:2] == [ARGUMENT]:
        with taking_over(int(sys.argv[2])):
            _serve()
    elif not taken_over():
        import_at_hand()
        _serve()


def _serve() -> None:
    from pyspark.daemon import manager  # noqa: PLC0415 (this module is also imported by workers)

    end_quietly()
    manager()


if __name__ == "__main__":
    main()
