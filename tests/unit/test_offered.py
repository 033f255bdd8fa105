"""Results that wait for another engine: offered once, kept until fetched, never offered again."""

from __future__ import annotations

import pytest

from joinengine.model.errors import DataLost
from joinengine.results.offered import NOTHING, Offered, OfferedSink
from joinengine.world.storage import StoredFile
from joinengine.world.world import MACHINE


@pytest.fixture
def storage(tmp_path):
    return MACHINE.storage(str(tmp_path / "offered"))


@pytest.fixture
def deliver(storage):
    """Deliver a batch with one file."""
    sink = OfferedSink(storage, "q")
    sink.target(1)

    def deliver(batch, *, again=False):
        stored = StoredFile(f"g1-{batch}.parquet", 1, 1)
        if not again:
            sink.staging.put(stored.name, b"x")
        sink.deliver(batch, [stored], 1)

    return deliver


def files(storage, after, through):
    return [one.name for one in Offered(storage).files(after, through)]


def visible(storage):
    return sorted(name for name in storage.names() if name.endswith(".parquet"))


def test_batches_are_read_by_their_numbers_again_and_again(storage, deliver):
    for batch in range(3):
        deliver(batch)
    deliver(2, again=True)
    for _ in (1, 2):
        assert files(storage, NOTHING, 1) == visible(storage)[:2]
        assert files(storage, 1, 2) == visible(storage)[2:]
    storage.put("00000003 (conflicted copy).json", b"[]")
    assert Offered(storage).batches == [0, 1, 2]


def test_what_is_fetched_goes_and_does_not_come_back(storage, deliver):
    for batch in range(3):
        deliver(batch)
    for _ in (1, 2):
        Offered(storage).forget(1)
        assert Offered(storage).batches == [1, 2]
        assert files(storage, 1, 2) == visible(storage)
    for batch in (0, 1, 2):  # a driver that starts again, and one that has slept
        deliver(batch, again=True)
    assert len(visible(storage)) == 1
    for after, through in ((NOTHING, 2), (0, 2), (2, 9)):
        with pytest.raises(DataLost, match="were fetched by another query"):
            files(storage, after, through)
    storage.at("empty").make()
    with pytest.raises(DataLost, match="results up to batch 9 were fetched by another query"):
        files(storage.at("empty"), 0, 9)
    deliver(3)
    assert len(files(storage, 1, 3)) == 2
