"""The kernels on one core: `make bench-kernels`.

Each benchmark gives in `extra_info` the rows of a round, and the rows per second.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from joinengine.kernels.expanding import expand_pairs, rows_of_hits
from joinengine.kernels.hashing import draw_u, hash_columns, make_words
from joinengine.kernels.probing import Exclusions, find, group_keys, sort_order
from joinengine.kernels.scattering import group_rows
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement, Side
from joinengine.routing.base_functions import Modulo
from joinengine.routing.table import RoutingTable

ROWS = 250_000
RNG = np.random.default_rng(0)
KEYS = RNG.integers(0, ROWS, ROWS)
HASHES = hash_columns([pa.array(KEYS)])
WORDS = make_words(HASHES, draw_u(HASHES, 1))
SORTED = np.sort(WORDS)


@pytest.fixture
def rows(benchmark):
    """Name the number of rows of a round."""

    def run(function, n=ROWS):
        result = benchmark(function)
        benchmark.extra_info["rows"] = n
        benchmark.extra_info["rows_per_s"] = n / benchmark.stats.stats.median
        return result

    return run


def test_hash_integers(rows):
    column = pa.array(KEYS)
    rows(lambda: hash_columns([column]))


def test_hash_strings(rows):
    column = pa.array([f"Customer#{key:09d}" for key in KEYS])
    rows(lambda: hash_columns([column]))


def test_draw_u(rows):
    rows(lambda: make_words(HASHES, draw_u(HASHES, 1)))


def test_scatter(rows):
    instances = (HASHES % np.uint64(16)).astype(np.uint16)
    rows(lambda: group_rows(instances, 16))


def test_route_by_hash_alone(rows):
    router = RoutingTable().router(Modulo(16))
    rows(lambda: router.route(Side.LEFT, WORDS))


def test_route_by_a_table(rows):
    """A thousand keys in the table, the hottest of them split."""
    half = U_ONE // 2
    split = Placement(Mode.COPIED, (Fragment(0, 0, half), Fragment(1, half, U_ONE)))
    hashes = (np.unique(HASHES)[:1000] >> np.uint64(24)).tolist()
    table = RoutingTable({h: split if i < 10 else Placement.whole(3) for i, h in enumerate(hashes)})
    router = table.router(Modulo(16))
    rows(lambda: router.route(Side.LEFT, WORDS))


def test_sort(rows):
    rows(lambda: sort_order(WORDS))


@pytest.mark.parametrize("run", [ROWS // 8, ROWS, ROWS * 8])
def test_probe(rows, run):
    """Each key of a batch against a run of the same, or of eight times or an eighth its size."""
    hashes = hash_columns([pa.array(RNG.integers(0, run, run))])
    words = np.sort(make_words(hashes, draw_u(hashes, 2)))
    needles = group_keys(SORTED)
    rows(lambda: find(words, needles))


def test_probe_with_exclusions(rows):
    starts = np.arange(0, ROWS, 1000)
    shifts = np.arange(len(starts) + 1) * 100
    gone = Exclusions(starts, starts + 100, np.append(0, starts + 100) - shifts, shifts)
    needles = group_keys(SORTED)
    rows(lambda: find(SORTED, needles, gone))


def test_expand(rows):
    needles = group_keys(SORTED)
    hits = find(SORTED, needles)
    pairs = sum(len(part) for part, _ in expand_pairs(*rows_of_hits(hits, needles), 1 << 18))
    rows(lambda: list(expand_pairs(*rows_of_hits(hits, needles), 1 << 18)), pairs)


def test_gather(rows):
    """One column of eight bytes is gathered, as results and runs are made."""
    column, order = pa.array(KEYS), pa.array(sort_order(WORDS))
    rows(lambda: column.take(order))
