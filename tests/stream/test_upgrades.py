"""Checkpoints of every format since 7 are kept, and later versions go on with them or refuse."""

from __future__ import annotations

from collections import Counter

import duckdb
import pytest
from filelock import FileLock

from joinengine.model.errors import CheckpointMismatch
from joinengine.state.manifests import READ
from tests.golden import kept

CUT = sorted(kept.KEPT.glob("*-cut.tar.gz"))
ALL = sorted(set(kept.KEPT.glob("*.tar.gz")) - set(CUT))
PAIRS = """from read_parquet('{home}/in/l/*') {how} join read_parquet('{home}/in/r/*')
    on lk = rk and rt - lt between interval '-5 minutes' and interval '5 minutes'"""


def asked(text, how="inner"):
    duckdb.sql("set timezone = 'UTC'")
    return Counter(duckdb.sql(text + PAIRS.format(home=kept.HOME, how=how)).fetchall())


def shown(name, columns):
    files = f"read_parquet('{kept.HOME}/{name}-out/*.parquet')"
    return Counter(duckdb.sql(f"select {columns} from {files}").fetchall())


def test_the_formats_of_this_version_have_a_kept_checkpoint():
    wanted = {f"{kept.formats()}.tar.gz", f"{kept.formats()}-cut.tar.gz"}
    assert wanted <= {path.name for path in (*ALL, *CUT)}, (
        "formats have changed: write a checkpoint of them by python -m tests.golden.kept, and tell "
        "users in CHANGELOG.md what an upgrade asks of them"
    )


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_a_query_goes_on_from_a_kept_checkpoint(spark, path):
    with FileLock(f"{kept.HOME}.lock"):
        kept.unpack(path)
        before = {name: shown(name, "*") for name in ("outer", "sums")}
        for number in range(kept.FILES, 2 * kept.FILES):
            kept.write_input(number)
        if int(path.name.split("-")[1]) not in READ:
            with pytest.raises(
                CheckpointMismatch, match="use the version that wrote the checkpoint"
            ):
                kept.run(kept.queries(spark)["outer"], "outer")
            return
        for name, query in kept.queries(spark).items():
            kept.run(query, name)
            after = shown(name, "*")
            assert before[name] and before[name] < after

        found, wanted = shown("outer", "lk, lt, lv, rk, rt, rv"), "select lk, lt, lv, rk, rt, rv "
        pairs = Counter({row: n for row, n in found.items() if None not in row})
        assert pairs == asked(wanted)
        alone = found - pairs
        assert alone and alone <= asked(wanted, "full")  # tuples may still find a match

        sums = shown("sums", "window_end, lk, n, v")
        last = max(row[0] for row in sums)
        ends = "time_bucket(interval '10 minutes', lt) + interval '10 minutes'"
        wanted = f"select e, lk, count(*), sum(lv) from (select *, {ends} e "
        wanted += f"{PAIRS.format(home=kept.HOME, how='inner')}) group by all"
        assert sums == Counter(row for row in duckdb.sql(wanted).fetchall() if row[0] <= last)


@pytest.mark.parametrize("path", CUT, ids=lambda path: path.name.removesuffix(".tar.gz"))
@pytest.mark.parametrize("name", kept.CUT)
def test_a_query_that_was_cut_short_goes_on_from_a_kept_checkpoint(spark, path, name):
    """Its last batch was logged and not done, or its disks are gone; all results come, once."""
    with FileLock(f"{kept.HOME}.lock"):
        kept.unpack(path)
        before = shown(name, "*")
        for number in range(kept.FILES, 2 * kept.FILES):
            kept.write_input(number)
        kept.run_cut(spark, name)
        assert before
        assert before < shown(name, "*")
        columns = "lk, lt, lv, rk, rt, rv"
        assert shown(name, columns) == asked(f"select {columns} ")
