"""Workers whose connection Spark has closed."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from joinengine.spark.daemon import end_quietly


def lost(sock, authenticated):
    raise BrokenPipeError


@pytest.mark.parametrize(("module", "changes"), [("pyspark.daemon", True), ("pytest", False)])
def test_a_worker_that_lost_its_connection_ends_quietly(module, changes, monkeypatch):
    main = SimpleNamespace(__spec__=SimpleNamespace(name=module), worker=lost)
    monkeypatch.setitem(sys.modules, "__main__", main)
    end_quietly()
    end_quietly()
    assert (main.worker is not lost) == changes
    if changes:
        assert main.worker(None, True) == 1
        assert main.worker.plain is lost
