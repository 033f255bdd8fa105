"""Files and folders that are removed or altered while a query runs: named by DamagedState."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from joinengine.model.errors import DamagedState
from joinengine.world.local import LocalStorage
from tests.harness import LocalQuery, two_way


@pytest.fixture
def query(tmp_path):
    """A query after three batches; the folders of its checkpoint are there."""
    query = LocalQuery(tmp_path, two_way(None, 3), "hash")
    for batch in range(3):
        run_batch(query, batch)
    return query


def run_batch(query, batch):
    rng = random.Random(batch)
    left, right = (
        [(rng.randrange(9), 1000 * batch + i, i) for i in range(rows)] for rows in (80, 20)
    )
    query.run_tuples(batch, left, right)


@pytest.mark.parametrize("name", ["manifest", "boundary"])
def test_a_folder_that_is_gone_is_named(query, name):
    shutil.rmtree(Path(query.checkpoint.storage.folder) / name)
    with pytest.raises(DamagedState, match=f"/{name} was removed or moved while the query ran"):
        for batch in range(3, 60):  # the boundary rises with each full manifest
            run_batch(query, batch)


def test_a_missing_folder_is_no_obstacle_to_a_removal(tmp_path):
    storage = LocalStorage(str(tmp_path / "gone"))
    storage.delete("file")
    with pytest.raises(DamagedState, match="/gone was removed or moved"):
        storage.put("file", b"")


@pytest.mark.parametrize("place", [8, 100, 200, 300, -12, -40])
def test_a_run_file_that_is_altered_where_it_lies_is_named(query, place):
    """Also if this process has written it, and so trusts it: here Arrow cannot read it."""
    newest = max(run.file for run in query.state.shelves.state.values())
    path = Path(query.checkpoint.runs.folder) / newest
    with path.open("r+b") as file:
        file.seek(place, os.SEEK_SET if place > 0 else os.SEEK_END)
        file.write(b"\xff" * 8)
    with pytest.raises(DamagedState, match=newest):
        run_batch(query, 3)
