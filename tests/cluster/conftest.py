"""One cluster for all tests of this folder, and what they run on it."""

from __future__ import annotations

import pytest

from tests.cluster.machines import obstacle
from tests.cluster.spark import N_WORKERS, Cluster


@pytest.fixture(scope="session", autouse=True)
def _machines_can_be_made():
    if (reason := obstacle()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def shared():
    """A folder that all machines see, as NFS would show it; None: they share nothing."""
    return None


@pytest.fixture(scope="module")
def running(tmp_path_factory, shared):
    folders = [] if shared is None else [shared]
    made = Cluster(tmp_path_factory.mktemp("machines"), folders)
    yield made
    made.close()


@pytest.fixture
def cluster(running):
    """The cluster with its workers; the test fails if one has opened a path of another machine."""
    while len(running.workers) < N_WORKERS:
        running.add_worker()
    yield running
    assert running.trespasses() == {}
