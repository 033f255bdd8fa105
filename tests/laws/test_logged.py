"""What a log says in columns is what its entries say one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.sources import positions as logged
from joinengine.sources.positions import Logged, RowGroup, table_of
from tests.laws.cases import relaxed

ENTRIES = st.lists(
    st.builds(
        lambda file, size, rows, reason: (
            {"file": f"/in/{file}ü.parquet", "size": size, "modified_ns": 7 * size}
            | ({"rows": rows} if reason is None else {"rows": [], "skipped": reason})
        ),
        st.integers(0, 40),
        st.integers(0, 9),
        st.lists(st.integers(0, 4), max_size=4),
        st.sampled_from([None, None, None, "is bad"]),
    ),
    max_size=30,
)


def groups_of(entries):
    """The row groups that take positions."""
    for one in entries:
        told = one["file"], one["size"], one["modified_ns"]
        if "skipped" in one:
            yield RowGroup(told[0], 0, 0, *told[1:], one["skipped"])
        for group, rows in enumerate(one["rows"]):
            if rows:
                yield RowGroup(told[0], group, rows, *told[1:])


def taken_up(entries, cut):
    found = Logged()
    for part in (entries[:cut], entries[cut:]):
        found.add(table_of(part))
    return found


@pytest.fixture(params=[None, lambda text: 7], ids=["hashes", "one hash for all"])
def few_at_once(request, monkeypatch):
    """Paths are sorted in by threes, and perhaps all have one hash."""
    monkeypatch.setattr(logged, "_AT_ONCE", 3)
    if request.param is not None:
        monkeypatch.setattr(logged, "hash", request.param, raising=False)


@relaxed
@given(entries=ENTRIES, cut=st.integers(0, 30), rows=st.integers(1, 12))
def test_columns_say_what_the_entries_say(few_at_once, entries, cut, rows):
    found, groups = taken_up(entries, cut), list(groups_of(entries))
    assert (found.files, found.end) == (len(entries), len(groups))
    for start in range(len(groups) + 1):
        for end in range(start, len(groups) + 1):
            assert list(found.between(start, end)) == groups[start:end]
        total, end = 0, start
        while total < rows and end < len(groups):
            total, end = total + groups[end].rows, end + 1
        assert found.advance(start, rows) == end
    assert found.advance(len(groups) + 3, rows) == len(groups)


@relaxed
@given(entries=ENTRIES, cut=st.integers(0, 30))
def test_a_path_is_known_if_it_is_logged_for_reading(few_at_once, entries, cut):
    found = taken_up(entries, cut)
    read = {one["file"] for one in entries if "skipped" not in one}
    asked = [f"/in/{number}ü.parquet" for number in range(42)] * 2
    assert found.unknown(asked) == [path for path in asked if path not in read]
    bad = [one for one in entries if "skipped" in one]
    assert found.skipped == {one["file"]: (one["size"], one["modified_ns"]) for one in bad}


@relaxed
@given(entries=ENTRIES, cut=st.integers(0, 30), first=st.integers(0, 30), last=st.integers(0, 30))
def test_a_part_of_the_columns_is_a_log_of_its_own(few_at_once, entries, cut, first, last):
    first, last = sorted((min(first, len(entries)), min(last, len(entries))))
    if first == last:
        return
    part = Logged()
    part.add(taken_up(entries, cut).table(first, last))
    assert list(part.between(0, part.end)) == list(groups_of(entries[first:last]))
    assert part.files == last - first
