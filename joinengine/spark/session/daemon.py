"""PySpark's daemon, whose workers end without a trace and have their modules at hand.

Why: Spark closes the connection of a worker that was idle for a minute, and of all when it ends. A
worker then writes that it has lost the connection, into that connection, and the daemon prints a
trace: a healthy query prints one every now and then. So does a worker that is started while Spark
ends, which waits for its first words in vain, and the process that looks for new data, when its
query stops.

A session of ours has Spark start this module in place of PySpark's own for the workers of tasks,
which find joinengine imported: a second of work for each of them otherwise. That work is done while
the session starts, where it can be (joinengine.spark.session.early).
The workers in which Spark plans come from PySpark's own, whatever is set; these, and those of a
session that the user has made, are told when they first run code of ours (`end_quietly`).
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
#: What a worker meets whose connection is closed: while it writes, and while it reads.
_CLOSED = (ConnectionError, EOFError)
#: Looks for new data, as long as a query runs.
_LOOKER = "pyspark.sql.streaming.python_streaming_source_runner"


def end_quietly() -> None:
    """In a process that Spark has started: end without a trace if Spark closes the connection.

    The daemon prints what ended a worker by `traceback.print_exc`, in the process of that worker.
    Replaced there, it holds from the call on that is running; a worker may get no other.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = None if spec is None else spec.name
    if name in _DAEMONS and not hasattr(traceback.print_exc, "plain"):
        traceback.print_exc = quiet(traceback.print_exc)
    if name == _LOOKER:
        sys.excepthook = _tell_others


def _tell_others(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """What Python does with an error that ends the process, but for a lost connection."""
    if not isinstance(error, _CLOSED):
        sys.__excepthook__(kind, error, trace)


def quiet(tell: Callable[..., None]) -> Callable[..., None]:
    """`tell`, which prints the error that is handled, but for a lost connection."""

    def telling(*arguments: Any, **named: Any) -> None:
        if not isinstance(sys.exc_info()[1], _CLOSED):
            tell(*arguments, **named)

    telling.plain = tell  # type: ignore[attr-defined]
    return telling


def main() -> None:
    """Be PySpark's daemon. Workers are forked from it, so they have what is imported here."""
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
