"""Workers of PySpark's daemon that end without a trace.

Why: Spark closes the connection of a worker that was idle for a minute, and of all when it ends. A
worker that plans a data source then writes that it has lost the connection, into that connection,
and the daemon prints a trace: a healthy query prints one every now and then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_DAEMON = "pyspark.daemon"


def end_quietly() -> None:
    """In a worker process of the daemon: end without a trace if Spark closes the connection.

    The daemon's loop looks `worker` up for each call, so that this holds from the next one on.
    """
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == _DAEMON and not hasattr(main.worker, "plain"):
        main.worker = quiet(main.worker)


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """`worker`, which returns an exit code, ending with one if nobody reads its answer."""

    def ending(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except BrokenPipeError:
            return 1

    ending.plain = worker  # type: ignore[attr-defined]
    return ending
