"""The value of a key, found in the state by its hash."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from joinengine.exchange.keying import Keying
from joinengine.lab.commands import inspection
from joinengine.model.keys import U_BITS, Side
from joinengine.state.run import OpenRun, Run, excluded_rows
from joinengine.state.run_file import Page
from tests.harness import LocalQuery, two_way

#: Row i of the run has key hash i // 2: two tuples of each key.
HASHES = np.repeat(np.arange(4, dtype=np.uint64), 2)
WORDS = (HASHES << np.uint64(U_BITS)) + np.tile(np.array([5, 9], np.uint64), 4)
COLUMNS = pa.record_batch({"amount": list(range(8)), "user": list("aabbccdd")})


@pytest.fixture
def checkpoint(monkeypatch, tmp_path):
    """A checkpoint whose only run has lost the tuples of hash 1 to another instance."""
    gone = [(int(WORDS[2]), int(WORDS[3]) + 1)]
    run = Run("f", 0, Side.RIGHT, 0, 0, 8, 100, group=0).without(gone, WORDS)
    opened = OpenRun(run, Page(WORDS, COLUMNS), 0, excluded_rows(WORDS, run.exclusions))
    shelves = SimpleNamespace(state={run.ident: run}, files={"f": None})
    manifest = SimpleNamespace(operators=[SimpleNamespace(shelves=shelves)])
    monkeypatch.setattr(inspection.manifests, "newest", lambda folder: manifest)
    store = SimpleNamespace(open=lambda run, stored: opened)
    monkeypatch.setattr(inspection, "RunStore", lambda storage: store)
    return tmp_path


def operator(keying):
    return SimpleNamespace(admission=lambda side: SimpleNamespace(keying=keying))


@pytest.mark.parametrize(("hash_", "value"), [(0, "a"), (1, None), (2, "c"), (3, "d"), (4, None)])
def test_a_key_is_told_as_a_tuple_that_is_held_has_it(checkpoint, hash_, value):
    keying = Keying((("buyer",), ("user",)))
    found = inspection.key_held(checkpoint, 0, hash_, operator(keying))
    assert found == (None if value is None else (value,))


def test_a_side_without_the_key_columns_tells_nothing(checkpoint):
    keying = Keying((("user",), ("id",)))
    assert inspection.key_held(checkpoint, 0, 2, operator(keying)) is None


def test_rows_that_wait_for_a_match_are_told(tmp_path):
    query = LocalQuery(tmp_path, two_way(how="left", instances=2), "hash")
    query.run_tuples(0, [(1, 7, 0)], [])
    (state,) = query.runner.manifest.operators
    told = inspection._join(0, state, {"on": "k"})
    assert told["pending_bytes"] == state.shelves.pending_bytes > 0
    about = {"checkpoint": "/c", "format": 1, "query": "q", "batch": 0, "generation": 1}
    lines = inspection.state_lines({**about, "full_batch": 0, "joins": [told]})
    assert (
        lines[-1]
        == f"  {told['pending_bytes']:,} bytes of rows that wait for a match, and of marks"
    )
