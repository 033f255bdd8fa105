"""Workers of PySpark's daemon that end without a trace.

Why: Spark closes the connection of a worker that was idle for a minute, and of all when it ends. A
worker that plans a data source then writes that it has lost the connection, into that connection,
and the daemon prints a trace: a healthy query prints one every now and then.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

_DAEMON = "pyspark.daemon"


def end_quietly() -> None:
    """In a worker process of the daemon: end without a trace if Spark closes the connection.

    The daemon prints what ended a worker by `traceback.print_exc`, in the process of that worker.
    Replaced there, it holds from the call on that is running; a worker may get no other.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _DAEMON and not hasattr(traceback.print_exc, "plain"):
        traceback.print_exc = quiet(traceback.print_exc)


def quiet(tell: Callable[..., None]) -> Callable[..., None]:
    """`tell`, which prints the error that is handled, but for a lost connection."""

    def telling(*arguments: Any, **named: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            tell(*arguments, **named)

    telling.plain = tell  # type: ignore[attr-defined]
    return telling
