"""Tuples received, tuples stored and probe copies follow the modes' formulas, key by key."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from joinengine.driver.settings import Settings
from joinengine.kernels.hashing import hash_columns
from joinengine.layouts.biclique import Biclique
from joinengine.layouts.choices import CandidateBased
from joinengine.layouts.key_based import KeyBased
from joinengine.layouts.matrix import Grid
from joinengine.layouts.shuffle import Shuffled
from joinengine.model.keys import U_BITS, Mode
from joinengine.model.query import JoinType
from joinengine.model.windows import sliding, within
from joinengine.state.wished import Relayout
from tests.harness import LEFT, LocalQuery, two_way
from tests.laws.cases import CHOICES, EACH_ROUTER


def of_a_placement(placement, a, b):
    homes = len(placement.homes)
    match placement.mode:
        case Mode.WHOLE:
            copies = len(placement.holders) * (a + b)
            return copies, copies
        case Mode.SPLIT:
            return homes * (a + b), a + b
        case Mode.COPIED:
            larger, smaller = (a, b) if placement.split_side == 0 else (b, a)
            return larger + homes * smaller, larger + homes * smaller
        case Mode.GRID:
            copies = placement.columns * a + placement.rows * b
            return copies, copies


def messages_and_copies(layout, hash_, a, b):
    """Deliveries and stored copies of a key that brings `a` left and `b` right tuples."""
    match layout:
        case KeyBased():
            return of_a_placement(layout.place(hash_), a, b)
        case CandidateBased():
            _, bounds, _ = layout.router()._places(np.array([hash_], np.uint64))
            return int(bounds[-1]) * (a + b), a + b
        case Grid():
            rows, columns = layout.shape
            return columns * a + rows * b, columns * a + rows * b
        case Biclique():
            number = hash_ % len(layout.groups[0])
            left, right = (len(side[number]) for side in layout.groups)
            return a * (1 + right) + b * (1 + left), a + b
        case Shuffled():
            return layout.instances * (a + b), a + b
    raise AssertionError(layout)


def batches(left, right, n=6, seed=5):
    """Both sides' hot keys wander, so that planners move, split, copy and merge."""
    rng = random.Random(seed)
    serial = iter(range(10**6))

    def side(size, hot):
        keys = (hot if rng.random() < 0.5 else rng.randrange(40) for _ in range(size))
        return [(key, next(serial), 0) for key in keys]

    return [(side(left, b // 2), side(right, b // 2)) for b in range(n)]


@pytest.mark.parametrize("layout", EACH_ROUTER)
@pytest.mark.parametrize("sizes", [(90, 90), (120, 30)], ids=["even", "uneven"])
def test_counts_are_those_of_the_formulas(layout, sizes, tmp_path):
    schedule = {4: [Relayout(None, 9)]}
    query = LocalQuery(
        tmp_path,
        two_way(None, 6),
        layout,
        choice=CHOICES[layout],
        settings=Settings(schedule=schedule),
    )
    modes = set()
    for number, (left, right) in enumerate(batches(*sizes)):
        now = query.layout
        keys = [Counter(key for key, _, _ in side) for side in (left, right)]
        known = sorted(keys[0] | keys[1])
        hashes = hash_columns([pa.array(known, LEFT.field(0).type)]) >> np.uint64(U_BITS)
        expected = [
            messages_and_copies(now, hash_, keys[0][key], keys[1][key])
            for key, hash_ in zip(known, hashes.tolist(), strict=True)
        ]
        modes |= {p.mode for p in now.table.placements.values()}
        query.run_tuples(number, left, right)
        record = query.records[-1].joins[0]
        messages, copies = np.sum(expected, axis=0)
        assert sum(record.work.received) == messages
        assert sum(record.work.stored) == copies
        assert record.work.probe_copies == messages - copies
    if layout in ("mnrt", "qmmp"):
        assert (Mode.SPLIT if sizes == (90, 90) else Mode.COPIED) in modes


@pytest.mark.parametrize("how", JoinType)
@pytest.mark.parametrize("slides", [False, True])
def test_bytes_of_state_and_of_what_waits_are_those_of_the_files(tmp_path, how, slides):
    """But for what dead rows and the heads of files take: less than a third."""
    interval = within("lt", "rt", lower="-9 ms", upper="9 ms", delay="0 s")
    window = sliding("lt", "rt", "9 ms", "3 ms", delay="0 s") if slides else interval
    query = LocalQuery(tmp_path, two_way(window, 2, how=how), "hash")
    rng = random.Random(5)
    for batch in range(12):
        left, right = (
            [(rng.randrange(400), 2000 * batch + i, i) for i in range(2000)] for _ in range(2)
        )
        query.run_tuples(batch, left, right)
    state = query.records[-1].joins[0].state
    files = sum(file.stat().st_size for file in (tmp_path / "joinengine" / "runs").iterdir())
    assert 0.67 * files < state.size_bytes + state.pending_bytes <= files
    watched = how is not JoinType.INNER
    assert (state.pending_bytes > 0) is (state.pending_rows > 0) is watched
