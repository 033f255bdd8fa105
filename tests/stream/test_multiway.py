"""Chains on one key in a session: against DuckDB, before other operators, on old checkpoints."""

from __future__ import annotations

from collections import Counter

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from joinengine import (
    StreamAggregate,
    StreamJoin,
    equi,
    parquet_stream,
    windows,
    within,
)
from joinengine.lab.cli import cli

pytestmark = pytest.mark.spark

TIME = pa.timestamp("us", "UTC")
NAMES, N = ("orders", "payments", "parcels"), 1200
SQL = """
    select o_id, p_id, s_id from '{0}/orders/*.parquet'
    join '{0}/payments/*.parquet' on o_key = p_key
        and p_ts between o_ts and o_ts + interval 60 second
    join '{0}/parcels/*.parquet' on o_key = s_key
        and s_ts between p_ts and p_ts + interval 90 second
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Streams in order of time, with a hot key."""
    home = tmp_path_factory.mktemp("multiway")
    rng = np.random.default_rng(7)
    for name, prefix in zip(NAMES, "ops", strict=True):
        times = np.sort(rng.integers(0, 12_000, N)) * 1_000_000
        keys = np.where(rng.random(N) < 0.4, 0, rng.integers(0, 20, N))
        columns = [pa.array(keys), pa.array(np.arange(N)), pa.array(times).cast(TIME)]
        table = pa.table(columns, [f"{prefix}_{what}" for what in ("key", "id", "ts")])
        (home / name).mkdir()
        for part in range(4):
            piece = table.slice(part * N // 4, N // 4)
            pq.write_table(piece, home / name / f"{part}.parquet")
    return home


def joined(spark, folders, layout="auto", *, multiway=True):
    streams = [
        parquet_stream(spark, str(folders / name), rows_per_interval=N // 4) for name in NAMES
    ]
    told = {"layout": layout, "instances": 4}
    paid = within("o_ts", "p_ts", lower="0 s", upper="60 seconds", delay="5 seconds")
    sent = within("p_ts", "s_ts", lower="0 s", upper="90 seconds", delay="5 seconds")
    first = StreamJoin(*streams[:2], on=equi("o_key", "p_key"), within=paid, **told)
    on = equi("p_key", "s_key")
    select = ["o_id", "p_id", "s_id", "s_ts"]
    return StreamJoin(
        first, streams[2], on=on, within=sent, select=select, multiway=multiway, **told
    )


def run(plan, checkpoint, out, **trigger):
    writer = plan.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(**trigger or {"availableNow": True}).start(str(out))
    query.awaitTermination()
    return query


def triples(out):
    table = duckdb.sql(f"select o_id, p_id, s_id from '{out}/*.parquet'")
    return Counter(table.fetchall())


@pytest.fixture(scope="module")
def wanted(folders):
    found = Counter(duckdb.sql(SQL.format(folders)).fetchall())
    assert len(found) > 1000
    return found


@pytest.mark.parametrize("layout", ["auto", "mnrt", "mixed"])
def test_the_results_are_those_of_duckdb(spark, folders, wanted, tmp_path, layout):
    query = run(joined(spark, folders, layout), tmp_path / "c", tmp_path / "o")
    assert triples(tmp_path / "o") == wanted
    assert "multiway inner join" in query.explain()
    shown = CliRunner().invoke(cli, ["state", str(tmp_path / "c"), "--key", "0"])
    held = [line.split() for line in shown.output.splitlines() if " rows: " in line]
    assert [side for side, *_ in held] == ["left", "right", "third"]
    assert all(int(count) > 0 for _, _, count, *_ in held)


def test_each_start_goes_on_where_the_last_has_ended(spark, folders, wanted, tmp_path):
    for _ in range(3):
        run(joined(spark, folders), tmp_path / "c", tmp_path / "o", once=True)
    run(joined(spark, folders), tmp_path / "c", tmp_path / "o")
    assert triples(tmp_path / "o") == wanted


def test_a_checkpoint_of_a_chain_goes_on_as_a_chain(spark, folders, wanted, tmp_path):
    first = joined(spark, folders, multiway=False)
    run(first, tmp_path / "c", tmp_path / "o", once=True)
    query = run(joined(spark, folders), tmp_path / "c", tmp_path / "o")
    assert triples(tmp_path / "o") == wanted
    assert "operator 1: inner join" in query.explain()


def test_results_are_counted_in_windows(spark, folders, wanted, tmp_path):
    plan = joined(spark, folders)
    window = windows("s_ts", "1000 seconds")
    total = StreamAggregate(plan, by=[], aggregates={"n": "count(*)"}, window=window, instances=2)
    run(total, tmp_path / "c", tmp_path / "o")
    out = f"select epoch_us(window_end), n from '{tmp_path}/o/*.parquet'"
    ended = dict(duckdb.sql(out).fetchall())
    times = SQL.format(folders).replace("o_id, p_id, s_id", "epoch(s_ts)::int // 1000 + 1 k")
    whole = f"select k::bigint * 1000000000, count(*) from ({times}) group by all"
    whole = dict(duckdb.sql(whole).fetchall())
    assert len(ended) > 8
    assert ended == {end: n for end, n in whole.items() if end <= max(ended)}
