"""Converts the error that ended a query into an error of joinengine.

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

# A separate logger below `joinengine`: traces are for users who have set up logging. Silencing them
# on the parent would also silence its warnings (for example, that another driver was first).
LOGGER = logging.getLogger("joinengine.failures")
LOGGER.addHandler(logging.NullHandler())
#: Spark's name for the error of two drivers that write the same entry of its log.
_CONCURRENT = "CONCURRENT_STREAM_LOG_UPDATE"
#: The line that ends a Python trace: the class of the error, with its module, and its message.
_PYTHON_ERROR = re.compile(
    r"^(?:[\w.]+: )?((?:\w+\.)*\w*(?:Error|Exception|Invalid|Exit)): (.+)$", re.M
)
#: A cause of an error in the JVM: its class and message.
_CAUSE = re.compile(r"^\s*Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.M)
#: The error of a call from Python into the JVM: its class and message.
_THROWN = re.compile(r"^: (?:[\w$]+\.)*([\w$]+: .+)$", re.M)
#: The file that Spark was reading; the cause of the error does not name it.
_READING = re.compile(r"Encountered error while reading file (\S+)\.(?:\s|$)")
#: Errors from the JVM, whose text holds the traces of tasks.
_OF_SPARK = (StreamingQueryException, Py4JJavaError, CapturedException)
_OURS = re.compile(rf"{re.escape(errors.__name__)}\.(\w+): (.*)")


def plain_error(error: BaseException) -> JoinEngineError:
    """The JoinEngineError that ended the query; if none did, the last line of Python or Spark."""
    if isinstance(error, JoinEngineError):
        return error
    if not isinstance(error, _OF_SPARK):
        text = "".join(traceback.format_exception(error))
        failure = _disk_of(text) or _failed(f"{type(error).__name__}: {error}")
        failure.__cause__ = error  # the user's own function may have raised it
        return failure
    return told_by_spark(str(error))


def told_by_spark(text: str) -> JoinEngineError:
    """The error that an error text of Spark's, with the traces of tasks, reports."""
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
    if said and causes and said[-1][0].endswith("Py4JJavaError"):  # it only points to the cause
        file = [f"{reading[1]} cannot be read"] if (reading := _READING.search(text)) else []
        return _failed(": ".join([*file, *causes[-1]]))
    if said:
        return _failed(": ".join(said[-1]))
    thrown = _THROWN.search(text)
    return _failed(thrown[1] if thrown else text.strip().splitlines()[0])


def _disk_of(text: str) -> CannotWrite | None:
    """The error for a disk problem outside the engine's storage; None: the disk is not the cause.

    Spark writes its logs to the checkpoint, and scratch files to `spark.local.dir`; libraries of
    tasks may write other files.
    """
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        said = os.strerror(number)
        # If a file cannot be opened, the JVM says only `path (reason)`; Spark omits the class.
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
    """Raise an error inside, at the start of a query or from its end, as a JoinEngineError.

    Spark's trace goes to the log.
    """
    try:
        yield
    except _OF_SPARK as error:
        LOGGER.error("the query failed", exc_info=error)
        raise plain_error(error) from None


@contextmanager
def unless_interrupted() -> Iterator[None]:
    """For stopping a query inside, perhaps on the thread that runs it, as a listener may do.

    Spark marks the query as ended, interrupts its thread, and waits for it. On that very thread,
    the interrupt ends the wait at once; the query still ends after its batch.
    """
    try:
        yield
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() != "java.lang.InterruptedException":
            raise


class Stopped(Exception):
    """A batch was cut short because its query is being stopped."""


#: The text by which Spark recognises a batch that it has interrupted itself. Spark's search of a
#: longer text, with the trace of the JVM, overflows the stack.
_INTERRUPTED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling a job: "
    "java.lang.InterruptedException"
)


@contextmanager
def short_if(stopping: Callable[[], bool]) -> Iterator[None]:
    """Turns an error of a batch whose query is being stopped into a Stopped that Spark understands.

    Nothing is lost: the next start repeats a batch that was not committed.
    """
    try:
        yield
    except Exception as error:
        if stopping() and not isinstance(error, JoinEngineError):
            LOGGER.info("joinengine: the running batch was interrupted", exc_info=error)
            raise Stopped(_INTERRUPTED) from None
        raise
