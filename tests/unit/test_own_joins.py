"""Two folders of one's own, joined by the engine and by DuckDB: types, Hive folders, odd names."""

from __future__ import annotations

import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import asof, equi, tumbling
from joinengine.kernels.hashing import multiset_checksum
from joinengine.lab.queries.answers import difference, in_files, is_undecided, oracle_checksum
from joinengine.lab.queries.named_query import Options
from joinengine.lab.queries.user_folders import Folders
from joinengine.reporting.run_report import checksum_text
from joinengine.sources.feeds import FolderFeed
from joinengine.sources.listing import OnBadFile
from joinengine.sources.places import by_file
from joinengine.sources.readings import Reading, conform
from joinengine.spark.sources import types
from joinengine.spark.sources.types import arrow_schema
from tests.harness import LocalQuery

NS = pa.timestamp("ns", "UTC")
RIGHT = {"rk": [1, 2], "rt": pa.array([0, -1], pa.timestamp("us", "UTC")), "rv": [-250, 5]}
KEY = {"on": equi("k", "rk")}


def hive(*values):
    return {f"p={value}/{i}.parquet": {"k": [1, 2], "i": [i] * 2} for i, value in enumerate(values)}


CASES = {
    "hive: timestamps": (hive("2024-01-01 00%3A00%3A00", "2024-01-02 10%3A00%3A00"), KEY),
    "hive: plus": (hive("+5", "1"), KEY),
    "hive: zero": (hive("01", "2"), KEY),
    "hive: real": (hive("1.5", "2"), KEY),
    "hive: power": (hive("1e5", "2"), KEY),
    "hive: in part": ({"p=1/a.parquet": {"k": [1]}, "b.parquet": {"k": [2]}}, KEY),
    "hive: key": (hive("01", "2"), {"on": equi("p", "rk")}),
    "nanoseconds": ({"a.parquet": {"k": [1, 2], "t": pa.array([1999, -1], NS)}}, KEY),
    "nanoseconds: window": (
        {"a.parquet": {"k": [1, 2], "t": pa.array([1999, -1], NS)}},
        {**KEY, "how": "left", "within": tumbling("t", "rt", "1 us", delay="1 s")},
    ),
    "unsigned": (
        {"a.parquet": {"k": [1, 2], "u8": pa.array([1, 255], pa.uint8())}},
        {**KEY, "where": "u8 - 200 > rv"},
    ),
    "no name": ({"a.parquet": {"": [1], "v": [1]}}, {"on": equi("", "rk")}),
    "quote": ({"a.parquet": {'k"': [1], "v": [1]}}, {"on": equi('k"', "rk")}),
}


def engine(folder, query, options):
    """The plan of a join, and the folder with what the engine makes of its files."""
    plan = query.build(None, query.stream(options).record(), options)
    spec = plan.query()
    frames = []
    for number, side in enumerate((query.left, query.right)):
        feed = FolderFeed(str(side), 100, None)
        feed.discover()
        reading = Reading(types.folder_columns(side, None, OnBadFile.FAIL).readable, root=str(side))
        for groups in by_file(feed.row_groups(0, feed.end())):
            frames += [(number, batch) for batch in reading.batches(groups)]
    local = LocalQuery(str(folder), spec, "mnrt")
    local.run(0, [frames])
    local.finish(1)
    return plan, folder / "out"


def joined(tmp_path, left, arguments):
    for side, tables in (("left", left), ("right", {"a.parquet": RIGHT})):
        for file, columns in tables.items():
            path = tmp_path / side / file
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), path)
    return Folders(left=tmp_path / "left", right=tmp_path / "right", **arguments)


@pytest.mark.parametrize(("left", "arguments"), CASES.values(), ids=CASES)
def test_duckdb_reads_the_tuples_as_the_engine_does(left, arguments, tmp_path):
    query, options = joined(tmp_path, left, arguments), Options(instances=2)
    plan, out = engine(tmp_path / "made", query, options)
    schema = types.arrow_schema(plan.schema)
    found = [pq.ParquetFile(file).read() for file in out.glob("*.parquet")]
    rows = sum(table.num_rows for table in found)
    assert rows
    parts = [conform(part, schema) for table in found for part in table.to_batches()]
    total = sum(multiset_checksum(part.columns) for part in parts) % (1 << 64)
    recorded = query.stream(options).record()
    expected = oracle_checksum(schema, query.oracle(recorded, options))
    assert expected == checksum_text(rows, total)
    assert compared(out, plan, query.oracle(recorded, options)) is None


#: Times of right rows of each key, in seconds; of left rows there are some at and between them.
RIGHTS = {1: [10, 20, 26, 40], 2: [15], 3: [], None: [12]}
NEAREST = [
    pytest.param(
        {"direction": direction, "strict": strict, "tolerance": tolerance, "by": by},
        id=f"{direction}-{strict}-{tolerance}",
        marks=pytest.mark.slow if tolerance == "3 s" else (),
    )
    for direction in ("backward", "forward", "nearest")
    for strict in (False, True)
    for tolerance in (None, "3 s", "6 s")
    for by in (equi("k", "rk"), "k", None)
    if by is not None or (tolerance, strict) == ("6 s", True)
]


def moments(seconds):
    return pa.array([None if s is None else s * 10**6 for s in seconds], pa.timestamp("us", "UTC"))


def nearest_rows(tmp_path, how, right_where=None, **on):
    """An as-of join of left rows at each second, and the engine's own names for its columns."""
    by = on.pop("by")
    key = "k" if by == "k" else "rk"
    lefts = [(k, t) for k in (1, 2, 3, None) for t in (*range(8, 45), None)]
    rights = [(k, t) for k, times in RIGHTS.items() for t in (*times, None)]
    if by is None:  # one time for each, as there is one key
        rights = [(k, t) for k, t in rights if k in (1, 2)]
    (tmp_path / "left").mkdir(exist_ok=True)
    (tmp_path / "right").mkdir(exist_ok=True)
    left = {"k": [k for k, _ in lefts], "lt": moments(t for _, t in lefts)}
    right = {key: [k for k, _ in rights], "rt": moments(t for _, t in rights)}
    right["v"] = list(range(len(rights)))
    pq.write_table(pa.table(left), tmp_path / "left" / "a.parquet")
    pq.write_table(pa.table(right), tmp_path / "right" / "a.parquet")
    suffixes = ("_l", "_r") if by is None and key == "k" else None
    return Folders(
        left=tmp_path / "left",
        right=tmp_path / "right",
        on=asof("lt", "rt", by=by, delay="1 hour", **on),
        how=how,
        right_where=right_where,
        suffixes=suffixes,
    )


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("on", NEAREST)
def test_duckdb_finds_the_nearest_rows(on, how, tmp_path):
    query = nearest_rows(tmp_path, how, right_where="v <> 2", **on)
    options = Options(instances=2)
    plan, out = engine(tmp_path / "made", query, options)
    recorded = query.stream(options).record()
    assert not is_undecided(query.oracle(recorded, options))
    rows = sum(pq.ParquetFile(file).metadata.num_rows for file in out.glob("*.parquet"))
    assert (rows == 4 * 38) if how == "left" else (0 < rows < 4 * 37)
    assert compared(out, plan, query.oracle(recorded, options)) is None


def test_right_rows_of_one_time_decide_nothing(tmp_path):
    query, options = nearest_rows(tmp_path, "inner", by="k"), Options(instances=2)
    recorded = query.stream(options).record()
    for values, tied in (([7, 7], False), ([7, 8], True)):
        right = {"k": [1, 1], "rt": moments([3, 3]), "v": values}
        pq.write_table(pa.table(right), tmp_path / "right" / "a.parquet")
        assert is_undecided(query.oracle(recorded, options)) is tied


def compared(out, plan, oracle):
    """How the files of a folder differ from DuckDB's rows; None: they do not."""
    return difference(in_files(out, arrow_schema(plan.schema)), plan, oracle, by_value=True)


@pytest.mark.parametrize("name", ["o'x", "o[1]"])
def test_a_folder_of_results_has_any_name(name, tmp_path):
    query, options = joined(tmp_path, {"a.parquet": {"k": [1, 2]}}, KEY), Options(instances=2)
    plan, out = engine(tmp_path / "made", query, options)
    kept = shutil.copytree(out, tmp_path / name)
    oracle = query.oracle(query.stream(options).record(), options)
    assert compared(kept, plan, oracle) is None
    (file, *_) = kept.glob("*.parquet")
    twice = pa.concat_tables([pq.read_table(file)] * 2)
    pq.write_table(twice, file)
    oracle = query.oracle(query.stream(options).record(), options)
    assert re.match(r"\d rows? too many, such as '\(", compared(kept, plan, oracle))


def test_the_first_rows_have_the_columns_of_folders_names(tmp_path):
    query = joined(tmp_path, hive("1.5", "2"), {**KEY, "where": "p > rv"})
    (tmp_path / "head").mkdir()
    head = query.head(str(tmp_path / "head"))
    recorded = head.stream(Options()).record()
    assert recorded.rows == {"left": 2, "right": 2}
