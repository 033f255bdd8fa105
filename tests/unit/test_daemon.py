"""Workers whose connection Spark has closed."""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace

import pytest

from joinengine.spark.daemon import MODULE, end_quietly


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
