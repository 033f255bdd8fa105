"""Kernels against slow twins."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.kernels.comparing import equal_at, latest_time
from joinengine.kernels.expanding import expand_pairs, rows_of_hits
from joinengine.kernels.hashing import (
    any_null,
    draw_u,
    hash_columns,
    key_hash,
    make_words,
    multiset_checksum,
    u_of,
)
from joinengine.kernels.probing import (
    exclude,
    find,
    group_keys,
    live_rows,
    rows_between,
    sort_order,
)
from joinengine.kernels.scattering import group_rows
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import U_BITS, U_ONE

COLUMNS = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "decimal": (pa.decimal128(20, 3), st.integers(-(10**16), 10**16).map(Decimal)),
    "string": (pa.string(), st.text(max_size=40)),
    "binary": (pa.binary(), st.binary(max_size=40)),
    "float": (pa.float64(), st.floats()),
}


@pytest.mark.parametrize("kind", COLUMNS)
@given(st.data())
def test_equal_values_hash_alike_wherever_they_stand(kind, data):
    """In slices, in other arrays, among NULLs; and different values hash differently."""
    arrow_type, values = COLUMNS[kind]
    drawn = data.draw(st.lists(st.none() | values, min_size=1, max_size=12))
    column = pa.array(drawn, arrow_type)
    hashes = hash_columns([column])
    alone = [hash_columns([pa.array([None, value], arrow_type)[1:]])[0] for value in drawn]
    assert hashes.tolist() == [int(h) for h in alone]
    plain = column.to_pylist()
    distinct = {repr(v + 0.0 if isinstance(v, float) else v) for v in plain}
    assert len(set(hashes.tolist())) == len(distinct)


def test_hashes_are_what_they_were():
    """Stored state is found by the hashes: they must never change."""
    assert hash_columns([pa.array([0, 1, -1, None])]).tolist() == [
        16294208416658607535,
        10451216379200822465,
        16490336266968443936,
        7640891576956012809,
    ]
    strings = pa.array(["", "a", "12345678", "123456789"])
    assert hash_columns([strings]).tolist() == [
        16294208416658607535,
        6774081908283191102,
        9501447833425779875,
        9003943604911055402,
    ]
    assert hash_columns([pa.array([1]), pa.array(["a"])]).tolist() == [17634654667470901702]


def test_int_and_bigint_of_equal_value_hash_alike():
    wide, narrow = pa.array([-5, 7], pa.int64()), pa.array([-5, 7], pa.int32())
    assert hash_columns([wide]).tolist() == hash_columns([narrow]).tolist()


def test_the_order_of_columns_counts():
    a, b = pa.array([1]), pa.array([2])
    assert hash_columns([a, b])[0] != hash_columns([b, a])[0]


def test_a_type_without_a_hash_is_refused_by_name():
    with pytest.raises(InvalidRequest, match="list"):
        hash_columns([pa.array([[1]])])


def test_checksum_ignores_order_and_counts_repeats():
    column = pa.array([1, 2, 2, 3])
    assert multiset_checksum([column]) == multiset_checksum([column[::-1]])
    assert multiset_checksum([column]) != multiset_checksum([pa.array([1, 2, 3, 3])])


def test_any_null():
    assert any_null([pa.array([1]), pa.array(["a"])]) is None
    assert any_null([pa.array([1, None]), pa.array([None, "a"])]).tolist() == [True, True]


def test_u_is_uniform_for_one_key_and_differs_by_seed():
    hashes = np.full(100_000, 12345, np.uint64)
    u = draw_u(hashes, seed=3) / U_ONE
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, bins=20, range=(0, 1))[0]
    # 5,000 a bin, standard deviation 69: within five of them.
    assert np.abs(counts - 5000).max() < 5 * 69
    assert (draw_u(hashes, seed=4) != draw_u(hashes, seed=3)).mean() > 0.99


@given(st.lists(st.integers(0, 5), max_size=50))
def test_group_rows(groups):
    order, bounds = group_rows(np.array(groups, np.int64), 6)
    for group in range(6):
        expected = [row for row, g in enumerate(groups) if g == group]
        assert order[bounds[group] : bounds[group + 1]].tolist() == expected


# Small hash and u spaces, so that keys repeat and ranges meet; the last hash of all is among them.
hashes = st.sampled_from([0, 1, 2, 7, (1 << 40) - 1])
us = st.sampled_from([0, 1, 2, U_ONE - 1])
words = st.lists(st.tuples(hashes, us).map(lambda p: p[0] << U_BITS | p[1]), max_size=30)


def sorted_words(values):
    return np.sort(np.array(values, np.uint64))


@st.composite
def word_ranges(draw):
    cuts = sorted(draw(st.sets(st.tuples(hashes, us), max_size=6)))
    ends = [h << U_BITS | u for h, u in cuts]
    if len(ends) % 2:
        ends.append(1 << 64)
    return list(zip(ends[::2], ends[1::2], strict=True))


@given(words, words, word_ranges())
def test_find_and_expand_against_a_loop(run, probing, ranges):
    run_words, probe_words = sorted_words(run), sorted_words(probing)
    lower = np.array([low for low, _ in ranges], np.uint64)
    upper = np.array([high % (1 << 64) for _, high in ranges], np.uint64)
    gone = exclude(run_words, lower, upper)
    dead = {
        row for row, w in enumerate(run_words.tolist()) if any(lo <= w < hi for lo, hi in ranges)
    }
    assert (gone.rows if gone else 0) == len(dead)
    needles = group_keys(probe_words)
    hits = find(run_words, needles, gone)
    pairs = set()
    for rows, ranks in expand_pairs(*rows_of_hits(hits, needles), limit=3):
        assert len(rows) <= 3
        stored = ranks if gone is None else live_rows(gone, ranks)
        pairs |= set(zip(rows.tolist(), stored.tolist(), strict=True))
    assert pairs == {
        (i, j)
        for i, a in enumerate(probe_words.tolist())
        for j, b in enumerate(run_words.tolist())
        if a >> U_BITS == b >> U_BITS and j not in dead
    }


@given(words, word_ranges(), word_ranges())
def test_rows_between_against_a_loop(run, ranges, dead_ranges):
    run_words = sorted_words(run)

    def ends(pairs):
        return (
            np.array([low for low, _ in pairs], np.uint64),
            np.array([high % (1 << 64) for _, high in pairs], np.uint64),
        )

    found = rows_between(run_words, *ends(ranges), exclude(run_words, *ends(dead_ranges)))

    def inside(word, pairs):
        return any(low <= word < high for low, high in pairs)

    assert found.tolist() == [
        row
        for row, w in enumerate(run_words.tolist())
        if inside(w, ranges) and not inside(w, dead_ranges)
    ]


def test_words_hold_hash_and_u():
    made = make_words(np.array([0xFFFFFFFFFF123456], np.uint64), np.array([5], np.uint64))
    assert key_hash(made).tolist() == [0xFFFFFFFFFF]
    assert u_of(made).tolist() == [5]


@pytest.mark.parametrize("n", [0, 3, 10_000])
def test_sort_order(n):
    """Few words are sorted by comparison, many by radix."""
    values = np.random.default_rng(1).integers(0, 1 << 63, n).astype(np.uint64) * np.uint64(2)
    order = sort_order(values)
    assert values[order].tolist() == sorted(values.tolist())
    assert sorted(order.tolist()) == list(range(n))


def test_equal_at_compares_by_value():
    rows = np.array([0, 1, 1])
    left, right = pa.array([1, 2], pa.int32()), pa.array([2, 2], pa.int64())
    assert equal_at(left, rows, right, rows).tolist() == [False, True, True]
    names, others = pa.array(["a", "b"]), pa.array(["a", "c"])
    assert equal_at(names, rows, others, rows).tolist() == [True, False, False]


def test_latest_time_over_columns():
    kind = pa.timestamp("us", "UTC")
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 9], kind), pa.array([5, 2], kind)], names=["a", "b"]
    )
    assert latest_time(batch, ["a"]).tolist() == [1, 9]
    assert latest_time(batch, ["a", "b"]).tolist() == [5, 9]


def test_freed_memory_is_kept_where_the_allocator_can():
    """In a process of its own, whose arrays then stay where they were: no page is faulted anew."""
    program = """
import resource, sys
import numpy as np
from joinengine.kernels.allocating import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit("another allocator")
np.ones(1 << 18)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    np.ones(1 << 18)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    faults = {}
    for how in ("kept", "given back"):
        command = [sys.executable, "-c", program, how]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "another allocator" in done.stderr:
            pytest.skip("this allocator takes no such settings")
        faults[how] = int(done.stdout)
    assert faults["kept"] * 10 < faults["given back"]
