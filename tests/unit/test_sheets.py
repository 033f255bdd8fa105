"""Runs on one page: searched together as each would be alone, and read from their files."""

from __future__ import annotations

import re
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinengine.balancing.counting import Asked, KeysAt, count_keys
from joinengine.kernels.expanding import expand_pairs, rows_of_hits
from joinengine.kernels.probing import live_rows
from joinengine.kernels.seating import find_seated, group_seated, keys_of, seated_order, seats_of
from joinengine.model.errors import DamagedState
from joinengine.model.keys import U_BITS, U_ONE, Side
from joinengine.state.gathering import sheets_of
from joinengine.state.run import OpenRun, Run, RunStore, excluded_rows
from joinengine.state.run_file import (
    RUN_FORMAT,
    Allowance,
    Page,
    RunWriter,
)
from joinengine.world.world import MACHINE

SEATS = 4
# Few hashes, the first and the last of all among them, so that keys repeat and neighbours meet.
hashes = st.sampled_from([0, 1, 2, (1 << 40) - 1])
words = st.tuples(hashes, st.sampled_from([0, 1, U_ONE - 1])).map(lambda p: p[0] << U_BITS | p[1])
ranges = st.sampled_from(
    [(), (), ((0, 1),), ((0, 1 << 25),), ((1 << 24, 1 << 64),), ((5, 1 << 64),)]
)
#: Per run its seat, words and exclusions; runs of one page.
pages = st.lists(
    st.lists(
        st.tuples(st.integers(0, SEATS - 1), st.lists(words, min_size=1, max_size=6), ranges),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=3,
)
probing = st.lists(st.tuples(st.integers(0, SEATS - 1), words), max_size=20)


def opened(pages):
    """Per seat the runs of all pages."""
    spines = [[] for _ in range(SEATS)]
    for number, drawn in enumerate(pages):
        runs = sorted(drawn, key=lambda one: one[0])
        parts = [np.sort(np.array(some, np.uint64)) for _, some, _ in runs]
        whole = np.concatenate(parts)
        page = Page(whole, pa.record_batch({"row": np.arange(len(whole)) + 1000 * number}))
        start = 0
        for place, ((seat, _, cut), mine) in enumerate(zip(runs, parts, strict=True)):
            run = Run(f"{number}", place, Side.LEFT, seat, 0, len(mine), 0, place)
            run = run.without(cut, mine)
            if run.live:
                gone = excluded_rows(mine, run.exclusions)
                spines[seat].append(OpenRun(run, page, start, gone))
            start += len(mine)
    return spines


@settings(max_examples=50)
@given(pages, probing, st.sampled_from([0, 1024]))
def test_runs_of_a_team_are_searched_as_each_alone(pages, asked, small):
    spines = opened(pages)
    seats = np.array([seat for seat, _ in asked], np.uint16)
    mine = np.array([word for _, word in asked], np.uint64)
    order = seated_order(mine, seats)
    seats, mine = seats[order], mine[order]
    needles = group_seated(mine, seats)
    assert list(zip(seats_of(needles.hashes), keys_of(needles.hashes), strict=True)) == sorted(
        {(seat, word >> U_BITS) for seat, word in asked}
    )
    found = []
    with patch("joinengine.kernels.seating._SMALL_PART", small):
        for sheet in sheets_of(spines):
            assert sheet.parts.seats.tolist() == sorted(set(sheet.parts.seats.tolist()))
            hits = find_seated(*sheet.stretch[:2], needles, sheet.gone)
            for rows, ranks in expand_pairs(*rows_of_hits(hits, needles), limit=3):
                theirs = ranks if sheet.gone is None else live_rows(sheet.gone, ranks)
                names = sheet.page.columns.column(0).to_numpy()[theirs]
                found += zip(rows.tolist(), names.tolist(), strict=True)
    assert sorted(found) == sorted(
        (row, int(one.columns.column(0)[place].as_py()))
        for row, (seat, word) in enumerate(zip(seats.tolist(), mine.tolist(), strict=True))
        for one in spines[seat]
        for place in one.live_rows().tolist()
        if int(one.words[place]) >> U_BITS == word >> U_BITS
    )


@settings(max_examples=50)
@given(pages, pages, probing, st.booleans(), st.data())
def test_keys_of_a_team_are_counted_as_at_each_instance(left, right, stored, whole, data):
    """Light or whole; keys are heavy from a third of what an instance stored on."""
    team, state = [10, 11, 12, 17], [opened(left), opened(right)]
    asked = Asked(data.draw(keys_at(team)), data.draw(keys_at(team)), whole, part=3)
    arrived = [sorted(stored), sorted(stored[::2])]

    def counted(seats):
        named = [team[seat] for seat in seats]
        needles = [
            needles_of([(seats.index(seat), word) for seat, word in some if seat in seats])
            for some in arrived
        ]
        sheets = [sheets_of([some[seat] for seat in seats]) for some in state]
        stretches = [[one.stretch for one in some] for some in sheets]
        counts = count_keys(named, needles, stretches, asked)
        return sorted(zip(*(column.tolist() for column in counts[:5]), strict=True))

    with patch("joinengine.balancing.counting.MOST_LIGHT", 1):
        alone = [row for seat in range(SEATS) for row in counted([seat])]
        assert counted(list(range(SEATS))) == alone


def keys_at(team):
    """Keys at instances of the team, and at one of another task."""
    pairs = st.lists(st.tuples(st.sampled_from([*team, 13]), hashes), unique=True)
    return pairs.map(
        lambda some: KeysAt(
            np.array([one for one, _ in sorted(some)], np.int64),
            np.array([key for _, key in sorted(some)], np.uint64),
        )
    )


def needles_of(stored):
    seats = np.array([seat for seat, _ in stored], np.uint16)
    return group_seated(np.array([word for _, word in stored], np.uint64), seats)


def page_of(*values):
    return Page(
        np.array(values, np.uint64), pa.record_batch({"v": [7 * value for value in values]})
    )


def values_of(store, stored, run):
    one = store.open(run, stored)
    return one.words.tolist(), one.columns.column("v").to_pylist()


def test_runs_of_a_page_are_read_one_by_one(tmp_path):
    storage = MACHINE.storage(str(tmp_path))
    writer, schema = RunWriter(storage, "f"), pa.schema([("v", pa.int64())])
    parts = [part for part, _ in writer.add(page_of(3, 5, 1, 2, 9), np.array([0, 2, 5]), schema)]
    parts += [part for part, _ in writer.add(page_of(4), np.array([0, 1]), schema)]
    stored, store = writer.close(), RunStore(storage)
    assert len(set(parts)) == 3
    for part, expected in zip(parts, ([3, 5], [1, 2, 9], [4]), strict=True):
        run = Run("f", part, Side.LEFT, 0, 0, len(expected), 0, 0)
        assert values_of(store, stored, run) == (expected, [7 * one for one in expected])


def test_both_sides_lie_in_one_file_each_with_its_columns(tmp_path):
    storage = MACHINE.storage(str(tmp_path))
    writer, texts = RunWriter(storage, "f"), pa.record_batch({"t": ["one", None, "three"]})
    ((first, _),) = writer.add(page_of(3, 5), np.array([0, 2]), pa.schema([("v", pa.int64())]))
    words = np.array([1, 2, 9], np.uint64)
    ((second, _),) = writer.add(Page(words, texts), np.array([0, 3]), texts.schema)
    stored, store = writer.close(), RunStore(storage)
    assert values_of(store, stored, Run("f", first, Side.LEFT, 0, 0, 2, 0, 0)) == ([3, 5], [21, 35])
    found = store.open(Run("f", second, Side.RIGHT, 0, 0, 3, 0, 0), stored)
    assert (found.words.tolist(), found.columns) == ([1, 2, 9], texts)
    assert found.words.__array_interface__["data"][0] % 8 == 0


def test_a_run_is_as_large_as_its_own_rows(tmp_path):
    """Its columns may be a part of longer ones."""
    writer = RunWriter(MACHINE.storage(str(tmp_path)), "f")
    longer = pa.record_batch({"v": np.arange(100), "t": ["x" * 8] * 100})
    part = Page(np.arange(3, dtype=np.uint64), longer.slice(40, 3))
    ((_, size),) = writer.add(part, np.array([0, 3]), longer.schema)
    assert 3 * 24 <= size <= 3 * 24 + 4 * 4  # words, values, texts and where these begin


def test_a_small_file_is_inlined_as_long_as_the_task_may(tmp_path):
    storage, schema = MACHINE.storage(str(tmp_path / "runs")), pa.schema([("v", pa.int64())])
    allowance, found = Allowance(3000), []
    for name, n_rows in (("small", 2), ("large", 500), ("next", 2)):
        writer = RunWriter(storage, name, allowance)
        ((part, _),) = writer.add(page_of(1), np.array([0, 1]), schema)
        ((part, _),) = writer.add(page_of(*range(n_rows)), np.array([0, n_rows]), schema)
        found.append((n_rows, part, writer.close()))
    assert storage.names() == ["large"]
    assert [stored.content is None for _, _, stored in found] == [False, True, False]
    sizes = [stored.size_bytes for _, _, stored in found]
    assert allowance.left == 3000 - sizes[0] - sizes[2] and sizes[1] > 3000
    writer = RunWriter(storage, "last", Allowance(allowance.left - 1500))
    writer.add(page_of(1), np.array([0, 1]), schema)
    assert writer.close().content is None  # the directory is what does not fit any more
    for n_rows, part, stored in found:
        run = Run(stored.name, part, Side.LEFT, 0, 0, n_rows, 0, 0)
        rows = list(range(n_rows))
        assert values_of(RunStore(storage), stored, run) == (rows, [7 * row for row in rows])
        RunStore(storage).check(stored)


def test_an_inlined_file_that_was_altered_is_refused(tmp_path):
    storage = MACHINE.storage(str(tmp_path))
    writer = RunWriter(storage, "f", Allowance(10_000))
    writer.add(page_of(3, 5), np.array([0, 2]), pa.schema([("v", pa.int64())]))
    stored = writer.close()
    altered = replace(stored, content=stored.content[:-1] + b"x")
    with pytest.raises(DamagedState, match=r"run file .*/f does not match its CRC"):
        RunStore(storage).open(Run("f", 0, Side.LEFT, 0, 0, 2, 0, 0), altered)


@pytest.mark.parametrize("head", [b"joinengine run 3", b"joinengine run 5", b"ARROW1" + bytes(10)])
def test_files_of_other_formats_are_refused(tmp_path, head):
    storage = MACHINE.storage(str(tmp_path))
    with storage.output("f") as sink:
        sink.write(head + b" and what comes then")
    with pytest.raises(DamagedState, match=re.escape(f"has format {head!r}, not {RUN_FORMAT!r}")):
        RunStore(storage).open(Run("f", 0, Side.LEFT, 0, 0, 2, 0, 0), storage.seal("f"))
