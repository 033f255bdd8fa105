"""The memory sink: which rows its view has, and what it says of rows that it lacks."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from joinengine.spark.query import memory_view
from joinengine.world.world import MACHINE


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A writer of batches into folders below `tmp_path`, without Spark."""
    make = lambda path: Path(path).mkdir(parents=True)  # noqa: E731
    writer = SimpleNamespace(mode=lambda mode: SimpleNamespace(parquet=make))
    view = SimpleNamespace(createOrReplaceTempView=lambda name: None)
    monkeypatch.setattr(memory_view, "read_exactly", lambda *args: view)
    frame = SimpleNamespace(write=writer, schema=None)
    seen = memory_view.view_writer(None, MACHINE.storage(str(tmp_path)), "seen")
    return lambda batch: seen(frame, batch)


def test_a_view_that_lacks_the_rows_of_a_batch_says_so_once(write, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "joinengine"):
        for batch in (4, 5, 6):
            write(batch)
        assert not caplog.messages
        shutil.rmtree(tmp_path / "batch=00000005")
        for batch in (7, 8):
            write(batch)
    assert caplog.messages == [
        "joinengine: view seen lacks the rows of batch 5: they went to another sink, or were "
        f"deleted from {tmp_path}"
    ]
