"""The judge of `tests.chaos` sees what is lost, there twice, or alien; and a run can fail."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos.case import REACH_S, Case
from tests.chaos.run import holds
from tests.chaos.streams import _TYPES as TYPES
from tests.chaos.streams import FLUSH_ID, SIDES, Feed, tally

GOOD = {"wanted": 9, "lost": 0, "twice": 0, "alien": 0, "stuck": None, "odd": []} | {
    "reported twice": []
}


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    feed = Feed(tmp_path_factory.mktemp("streams"), 0)
    feed.start()
    while feed.rows < 400:
        time.sleep(0.05)
    feed.finish()
    return feed.folder


def joined(streams, how):
    """The results, by hand."""
    left, right = (pq.read_table(streams / side).to_pylist() for side in SIDES)
    found, reach_us = [], REACH_S * 1_000_000
    met = set()
    for one in left:
        partners = [
            other
            for other in right
            if one["lk"] == other["rk"]
            and abs((one["lt"] - other["rt"]).total_seconds()) * 1e6 <= reach_us
        ]
        met.update(other["ri"] for other in partners)
        found += [one | other for other in partners]
        if not partners and how != "inner":
            found.append(one)
    if how == "full_outer":
        found += [other for other in right if other["ri"] not in met]
    return found


def put(rows, folder):
    schema = pa.schema([(side + name, kind) for side in SIDES for name, kind in TYPES.items()])
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "part-0.parquet")
    return folder


@pytest.mark.parametrize("how", ["inner", "left_outer", "full_outer"])
def test_what_is_right_is_found_to_be_so(streams, tmp_path, how):
    rows = joined(streams, how)
    counts = tally(streams, put(rows, tmp_path / "out"), how)
    ours = sum(FLUSH_ID > (row["li"] if row.get("li") is not None else row["ri"]) for row in rows)
    assert counts == {"wanted": ours, "lost": 0, "twice": 0, "alien": 0}
    assert ours > 300


@pytest.mark.parametrize("how", ["inner", "full_outer"])
def test_each_kind_of_harm_is_counted_apart(streams, tmp_path, how):
    rows = [row for row in joined(streams, how) if (row.get("li") or row.get("ri")) < FLUSH_ID]
    out = tmp_path / "out"
    assert tally(streams, put(rows[3:], out), how)["lost"] == 3
    assert tally(streams, put(rows + rows[:2] * 2, out), how)["twice"] == 4
    whole = next(number for number, row in enumerate(rows) if len(row) > len(TYPES))
    altered = [*rows[:whole], rows[whole] | {"rw": "?"}, *rows[whole + 1 :]]
    counts = tally(streams, put(altered, out), how)
    assert (counts["lost"], counts["twice"], counts["alien"]) == (1, 0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"wanted": 0}, {"lost": 1}, {"twice": 1}, {"alien": 1}, {"stuck": "no end"}),
        *({"odd": ["driver 1: it said nothing"]}, {"reported twice": [7]}),
    ],
)
def test_a_run_fails_for_each_promise_that_is_broken(wrong):
    assert holds(GOOD)
    assert not holds(GOOD | wrong)


def test_seeds_have_cases_of_all_kinds():
    cases = [Case.of(seed) for seed in range(30)]
    assert {case.stored for case in cases} == {True, False}
    assert {case.durability for case in cases} == {"batch", "replicas"}
    assert len({case.layout for case in cases}) > 9
    assert all(case.stored and case.layout == "ftlb" for case in cases if case.executors == 3)
