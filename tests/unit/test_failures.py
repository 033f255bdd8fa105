"""The message that a user gets when a running query fails."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException

from joinengine.model.errors import (
    CannotWrite,
    CheckpointMismatch,
    DamagedState,
    InvalidRequest,
    JoinEngineError,
)
from joinengine.spark.jobs.failures import in_own_words, plain_error
from joinengine.spark.query import starting

WRAPPED = """[STREAM_FAILED] Query [id = 4f, runId = 5e] terminated with exception: An exception was
raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 641, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "batch.py", line 100, in __call__
    raise error
{last}

SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 4f, runId = 5e]"""


def failed(last):
    return StreamingQueryException(WRAPPED.format(last=last))


@pytest.mark.parametrize(
    "kind", [CheckpointMismatch, DamagedState, InvalidRequest, JoinEngineError]
)
def test_an_error_of_ours_is_itself_again(kind):
    found = plain_error(failed(f"joinengine.model.errors.{kind.__name__}: run file x is damaged"))
    assert type(found) is kind
    assert str(found) == "run file x is damaged"


def test_an_error_of_a_library_is_named_with_its_class():
    found = plain_error(failed("pyarrow.lib.ArrowInvalid: Float value 1.5 was truncated"))
    assert type(found) is JoinEngineError
    assert str(found) == (
        "the query failed: pyarrow.lib.ArrowInvalid: Float value 1.5 was truncated"
    )


def test_an_error_in_the_jvm_is_its_last_cause():
    last = """py4j.protocol.Py4JJavaError: An error occurred while calling o1.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE] Encountered error while reading file x.
\tat org.apache.spark.rdd.RDD.run(RDD.scala:1)
Caused by: org.apache.spark.SparkException: the job was aborted
Caused by: java.lang.RuntimeException: x.parquet is not a Parquet file. Expected more
\t... 1 more"""
    assert str(plain_error(failed(last))) == (
        "the query failed: x cannot be read: RuntimeException: x.parquet is not a Parquet file. "
        "Expected more"
    )


@pytest.mark.parametrize(
    "cause",
    [
        "java.io.IOException: No space left on device",
        "org.apache.hadoop.fs.FSError: java.io.IOException: Disk quota exceeded",
        "java.nio.file.FileSystemException: /c/offsets/.7.tmp: Read-only file system",
    ],
)
def test_a_disk_on_which_spark_cannot_write_is_named_as_such(cause):
    last = f"py4j.protocol.Py4JJavaError: An error occurred.\nCaused by: {cause}\n\t... 1 more"
    found = plain_error(failed(last))
    assert type(found) is CannotWrite
    assert cause.rpartition(": ")[2] in str(found)
    assert "spark.local.dir" in str(found)


def test_a_disk_that_a_library_of_a_task_finds_full_is_named_as_such():
    last = (
        "Traceback:\n  x\nOSError: [Errno 28] Error writing bytes. Detail: [errno 28] No space left"
    )
    found = plain_error(failed(last))
    assert type(found) is CannotWrite
    assert "(No space left on device); nothing is lost" in str(found)


@pytest.mark.parametrize("said", ["Read-only file system", "No space left on device"])
def test_a_log_of_spark_that_cannot_be_opened_is_named_as_such(said):
    path = "/c/query/commits/.2.20a3.tmp"
    text = f"[STREAM_FAILED] Query [id = c9] terminated with exception: {path} ({said}) SQLSTATE: 1"
    found = plain_error(StreamingQueryException(f"{text}\n=== Streaming Query ===\n"))
    assert type(found) is CannotWrite
    assert f"({said}); nothing is lost" in str(found)


class JavaError(Py4JJavaError):
    """What py4j raises, without a JVM."""

    def __init__(self, trace):
        Exception.__init__(self, trace)
        self.trace = trace

    def __str__(self):
        return f"An error occurred while calling o245.load.\n: {self.trace}"


@pytest.mark.parametrize(
    ("trace", "kind", "said"),
    [
        (
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider"
            "\n\tat org.apache\nCaused by: java.io.EOFException\n\tat java.io",
            JoinEngineError,
            r"^the query failed: SparkException: Python worker exited unexpectedly \(crashed\)",
        ),
        (
            "org.apache.spark.SparkException: Error from worker\nTraceback (most recent call last):"
            "\njoinengine.model.errors.DamagedState: source log x is cut off\n\tat org.apache",
            DamagedState,
            "^source log x is cut off$",
        ),
        ("java.nio.file.FileSystemException: /c/a: Read-only file system", CannotWrite, "Read-onl"),
    ],
)
def test_what_spark_meets_at_a_start_is_told_in_a_sentence(trace, kind, said, caplog):
    with (
        caplog.at_level(logging.ERROR, "joinengine"),
        pytest.raises(kind, match=said) as caught,
        in_own_words(),
    ):
        raise JavaError(trace)
    assert type(caught.value) is kind
    assert "o245.load" in caplog.text and "o245" not in str(caught.value)


def test_a_start_that_spark_fails_is_told_in_a_sentence(monkeypatch):
    def fails(spark):
        raise JavaError("org.apache.spark.SparkException: Python worker exited unexpectedly")

    monkeypatch.setattr(starting.session, "check_classic", fails)
    with pytest.raises(JoinEngineError, match=r"^the query failed: SparkException: Python worker"):
        starting.start(SimpleNamespace(spark=None), None)


def test_an_error_of_spark_is_its_first_line():
    found = plain_error(StreamingQueryException("[STREAM_FAILED] Job aborted.\nmore"))
    assert str(found) == "the query failed: [STREAM_FAILED] Job aborted."


def test_the_trace_goes_to_the_log_and_not_to_the_user(caplog):
    with (
        caplog.at_level(logging.ERROR, "joinengine"),
        pytest.raises(DamagedState, match=r"^run file x$") as caught,
        in_own_words(),
    ):
        raise failed("joinengine.model.errors.DamagedState: run file x")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "Streaming Query" in caplog.text


def test_without_logging_set_up_warnings_are_seen_and_traces_are_not():
    program = (
        "import logging; from joinengine.spark.jobs.failures import LOGGER\n"
        "logging.getLogger('joinengine').warning('taken over')\n"
        "LOGGER.error('a page of traces')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "taken over"
