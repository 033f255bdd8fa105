"""PySpark's daemon, whose workers end without a trace and have their modules at hand.

Why: Spark closes the connection of a worker that was idle for a minute, and of all when it ends. A
worker then writes that it has lost the connection, into that connection, and the daemon prints a
trace: a healthy query prints one every now and then.

A session of ours has Spark start this module in place of PySpark's own for the workers of tasks,
which find joinengine imported: a second of work for each of them otherwise.
The workers in which Spark plans come from PySpark's own, whatever is set; these, and those of a
session that the user has made, are told when they first run code of ours (`end_quietly`).
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

#: The setting by which Spark starts this module, and its name there.
SETTING, MODULE = "spark.python.daemon.module", "joinengine.spark.daemon"
_DAEMONS = ("pyspark.daemon", MODULE)
#: What workers need of modules; none of them starts a thread of Python's.
_AT_HAND = ("pyspark.worker", "joinengine.spark.tasks")


def end_quietly() -> None:
    """In a process of the daemon: workers end without a trace if Spark closes the connection.

    The daemon prints what ended a worker by `traceback.print_exc`, in the process of that worker.
    Replaced there, it holds from the call on that is running; a worker may get no other.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name in _DAEMONS and not hasattr(traceback.print_exc, "plain"):
        traceback.print_exc = quiet(traceback.print_exc)


def quiet(tell: Callable[..., None]) -> Callable[..., None]:
    """`tell`, which prints the error that is handled, but for a lost connection."""

    def telling(*arguments: Any, **named: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            tell(*arguments, **named)

    telling.plain = tell  # type: ignore[attr-defined]
    return telling


def main() -> None:
    """Be PySpark's daemon. Workers are forked from it, so they have what is imported here."""
    from pyspark.daemon import manager  # noqa: PLC0415 (this module is also imported by workers)

    for name in _AT_HAND:
        import_module(name)
    # A collection would write into pages that are shared with the workers.
    gc.freeze()
    end_quietly()
    manager()


if __name__ == "__main__":
    main()
