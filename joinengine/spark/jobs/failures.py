"""The error that ended a query, as an error of joinengine.

Why: an error inside a batch passes through Python, py4j, the JVM and Spark's Python again, and
comes out as a page of traces. A user needs the class of the error and its one sentence. The trace
goes to the logger `joinengine.failures`.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.errors.exceptions.captured import CapturedException

from joinengine.model import errors
from joinengine.model.errors import CannotWrite, CheckpointMismatch, JoinEngineError

# A logger of its own below `joinengine`: traces are for those who have set up logging. Silencing
# them on the parent would also silence its warnings (that another driver was first, say).
LOGGER = logging.getLogger("joinengine.failures")
LOGGER.addHandler(logging.NullHandler())
#: Spark's name of the error if two drivers write the same entry of its log.
_CONCURRENT = "CONCURRENT_STREAM_LOG_UPDATE"
#: The line that ends a Python trace: the class of the error, with its module, and its message.
_PYTHON_ERROR = re.compile(
    r"^(?:[\w.]+: )?((?:\w+\.)*\w*(?:Error|Exception|Invalid|Exit)): (.+)$", re.M
)
#: A cause of an error in the JVM: its class and message.
_CAUSE = re.compile(r"^\s*Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.M)
#: The error that a call from Python has met in the JVM: its class and message.
_THROWN = re.compile(r"^: (?:[\w$]+\.)*([\w$]+: .+)$", re.M)
#: The file that Spark was reading, whose cause does not name it.
_READING = re.compile(r"Encountered error while reading file (\S+)\.(?:\s|$)")
#: What comes from the JVM; its text has the traces of tasks.
_OF_SPARK = (StreamingQueryException, Py4JJavaError, CapturedException)
_OURS = re.compile(rf"{re.escape(errors.__name__)}\.(\w+): (.*)")


def plain_error(error: BaseException) -> JoinEngineError:
    """The JoinEngineError that ended the query; if none did, the last line of Python or Spark."""
    if isinstance(error, JoinEngineError):
        return error
    if not isinstance(error, _OF_SPARK):
        text = "".join(traceback.format_exception(error))
        failure = _disk_of(text) or _failed(f"{type(error).__name__}: {error}")
        failure.__cause__ = error  # of a function of the user's, which is where to look
        return failure
    return told_by_spark(str(error))


def told_by_spark(text: str) -> JoinEngineError:
    """The error that a text of Spark's is about, with the traces of tasks in it."""
    if _CONCURRENT in text:
        return CheckpointMismatch(
            "the previous driver of this checkpoint wrote to Spark's log at the same moment; "
            "nothing is lost, and the previous driver stops. Start this query again"
        )
    ours = _OURS.search(text)
    if ours is None and (error_of_disk := _disk_of(text)) is not None:
        return error_of_disk
    if ours is not None:
        kind = getattr(errors, ours[1], JoinEngineError)
        return kind(ours[2].strip()) if issubclass(kind, JoinEngineError) else _failed(ours[0])
    said = _PYTHON_ERROR.findall(text)
    causes = _CAUSE.findall(text)
    if said and causes and said[-1][0].endswith("Py4JJavaError"):  # says no more than that it was
        file = [f"{reading[1]} cannot be read"] if (reading := _READING.search(text)) else []
        return _failed(": ".join([*file, *causes[-1]]))
    if said:
        return _failed(": ".join(said[-1]))
    thrown = _THROWN.search(text)
    return _failed(thrown[1] if thrown else text.strip().splitlines()[0])


def _disk_of(text: str) -> CannotWrite | None:
    """The error for a disk that is met elsewhere than in our storage; None: it was not a disk.

    Spark writes its logs to the checkpoint, and scratch files to `spark.local.dir`; libraries of
    tasks may have files of their own.
    """
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        said = os.strerror(number)
        # What opens a file in the JVM says only `path (reason)`, and Spark leaves its class away.
        in_the_jvm = rf"(?:IOException|FSError|FileSystemException)\b.*{said}|/\S+ \({said}\)"
        if re.search(rf"{in_the_jvm}|OSError: \[Errno {number}\]", text):
            return CannotWrite(
                "the checkpoint, the output or Spark's scratch folder cannot be written "
                f"({said}); nothing is lost. Check checkpointLocation, the output folder and "
                "spark.local.dir, then start the query again"
            )
    return None


def _failed(what: str) -> JoinEngineError:
    return JoinEngineError(f"the query failed: {what.strip()}")


@contextmanager
def in_own_words() -> Iterator[None]:
    """Raise what ended a query, or kept it from its start, as a JoinEngineError.

    Spark's trace goes to the log.
    """
    try:
        yield
    except _OF_SPARK as error:
        LOGGER.error("the query failed", exc_info=error)
        raise plain_error(error) from None


@contextmanager
def unless_interrupted() -> Iterator[None]:
    """Stop a query inside, perhaps on the thread that runs it, as a listener does.

    Spark marks the query as ended, interrupts that thread, and waits for its end. On the thread
    itself this wait is what is interrupted, at once; the query still ends behind its batch.
    """
    try:
        yield
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() != "java.lang.InterruptedException":
            raise


class Stopped(Exception):
    """A batch was cut short because its query is being stopped."""


#: Spark takes a batch that failed with such a text for one that it has interrupted itself. Its own
#: search of a longer text, with the trace of the JVM, overflows the stack.
_INTERRUPTED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling a job: "
    "java.lang.InterruptedException"
)


@contextmanager
def short_if(stopping: Callable[[], bool]) -> Iterator[None]:
    """An error of a batch whose query is being stopped becomes a Stopped that Spark understands.

    Nothing is lost: what was not committed is done again by the next start.
    """
    try:
        yield
    except Exception as error:
        if stopping() and not isinstance(error, JoinEngineError):
            LOGGER.info("joinengine: the running batch was interrupted", exc_info=error)
            raise Stopped(_INTERRUPTED) from None
        raise
