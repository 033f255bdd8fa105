"""Workers whose connection Spark has closed."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import traceback
from types import SimpleNamespace

import pytest

from joinengine.spark.session import daemon
from joinengine.spark.session.daemon import MODULE, end_quietly


def told(error):
    """What the daemon prints of an error that ended a worker."""
    try:
        raise error
    except BaseException:
        traceback.print_exc()


@pytest.mark.parametrize(
    ("module", "quiet"), [("pyspark.daemon", True), (MODULE, True), ("pytest", False)]
)
def test_a_worker_that_lost_its_connection_ends_quietly(module, quiet, monkeypatch, capsys):
    main = SimpleNamespace(__spec__=SimpleNamespace(name=module))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(traceback, "print_exc", traceback.print_exc)
    end_quietly()
    end_quietly()
    told(BrokenPipeError(32, "Broken pipe"))
    assert ("BrokenPipeError" in capsys.readouterr().err) != quiet
    told(ValueError("another error"))
    assert capsys.readouterr().err.count("ValueError: another error") == 1


@pytest.mark.parametrize(("module", "quiet"), [(daemon._LOOKER, True), ("pytest", False)])
def test_what_looks_for_data_ends_quietly_too(module, quiet, monkeypatch, capsys):
    monkeypatch.setitem(
        sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name=module))
    )
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    end_quietly()
    for error in (BrokenPipeError(32, "Broken pipe"), ConnectionResetError(104, "reset")):
        sys.excepthook(type(error), error, None)
    assert ("Error" in capsys.readouterr().err) != quiet
    sys.excepthook(ValueError, ValueError("another error"), None)
    assert "ValueError: another error" in capsys.readouterr().err


def test_a_worker_that_gets_no_first_words_ends_quietly():
    daemon_process = subprocess.Popen(
        [sys.executable, "-m", MODULE, "pyspark.worker"],
        env=os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "secret", "SPARK_REUSE_WORKER": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert daemon_process.stdout is not None
    (port,) = struct.unpack("!i", daemon_process.stdout.read(4))
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        assert len(connection.recv(4)) == 4  # the worker's number: it runs
        connection.shutdown(socket.SHUT_WR)
        assert not connection.recv(1)  # it has ended
    _, printed = daemon_process.communicate(timeout=20)
    assert b"Traceback" not in printed, printed.decode()
