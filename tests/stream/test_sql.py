"""SQL over streams has the rows of DuckDB, which runs the same text over the same files."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import parquet_stream, sql
from tests.sqls import FACTS, THIRD, WORDS
from tests.stream.cases import run

pytestmark = pytest.mark.spark

START = datetime(2026, 3, 1, tzinfo=UTC)
#: A window as DuckDB has it: its start stands for it.
MACRO = "create macro tumble(time, size) as time_bucket(size, time)"
HOUR = "between f.ts - interval 1 hour and f.ts + interval 30 minutes"
TEXTS = {
    "equality": "select id, wid, f.s as s1 from f join w on f.k = w.k where f.x > 20 and w.y < 80",
    "using": "select k, id, wid from f join w using (k) where f.j < w.l",
    "self": "select a.id as one, b.id as two from f a join f b on a.k = b.j and a.id < b.id",
    "band": "select id, wid from f join w on f.d between w.e - 1 and w.e + 1 and f.k = w.l",
    "numbers": "select id, wid from f join w on abs(f.id - w.wid) <= 1 and f.s <> w.t",
    "theta": "select id, wid from f join w on f.m > w.n + 90 or (f.s = w.t and f.k = w.k)",
    "interval": f"select id, wid, w.y * 2 as y2 from f join w on f.k = w.k and w.at {HOUR}",
    "left": f"select id, coalesce(w.y, -1) as y, wid from f left join w on f.k = w.k "
    f"and w.at {HOUR} and w.y > 30 and f.x > 10 where f.s <> 'b'",
    "right": f"select id, w.t from f right join w on f.k = w.k and w.at {HOUR} and f.x > 50",
    "full": f"select id, wid from f full join w on f.k = w.k and w.at {HOUR}",
    "semi": f"select id, s from f semi join w on f.k = w.k and w.at {HOUR} where f.x < 90",
    "anti": f"select id from f anti join w on f.k = w.k and w.at {HOUR} and w.y > 20",
    "three": "select id, wid, z from f join w on f.k = w.k join t on t.tid = w.wid where z < f.id",
    "conditions on joined rows": "select id, z from f join w on f.k = w.k join t on t.tid = w.wid "
    "and f.x > 30 and w.y < 80 and t.z > 2",
    "left, then inner": f"select id, wid, z from f left join w on f.k = w.k and w.at {HOUR} "
    "join t on t.k = f.k where f.s = 'a'",
    "inner, then left": f"select id, wid, z from f join w on f.k = w.k and w.at {HOUR} "
    "left join t on t.k = f.k and t.seen between greatest(f.ts, w.at) - interval 1 hour and "
    "greatest(f.ts, w.at) where w.y > 20",
    "brackets": "select id, wid, z from f join (w join t on t.tid = w.wid) on f.k + 0 = w.k "
    "where z < f.id",
    "subquery": "with big as (select k, x * 2 as x2, s from f where x > 30) select x2, q.t2 from "
    "big join (select k, upper(t) as t2 from w) as q on big.k = q.k and lower(q.t2) = big.s",
    "no partner": "select id, f.k from f left join w on f.k = w.k and f.s = w.t "
    f"and w.at {HOUR} where w.wid is null and f.x > 5",
    "after an outer join": "select f.k + 1 as more, w.y from f full join w on f.k = w.k and "
    "f.ts between w.at and w.at + interval 1 hour where coalesce(w.y, 3) > f.x or f.id is null",
    "after the nearest": "select id, w.y from f asof left join w on f.k = w.k and f.ts >= w.at "
    "where w.y > 20 or w.wid is null",
    "both sides": "select id, f.x + w.y as more from f join w on f.k = w.k and f.s = w.t",
    "types of the evaluator": "select id, f.m - w.n as mn, f.x / nullif(w.y, 0) as ratio, "
    "f.id / nullif(w.wid - f.id, 0) as far, f.d - w.e as days from f join w on f.k = w.k",
    "names that change places": 'select f.x + w.y as x, f.x as y, w.y - f.x as "X y" from f '
    "join w on f.k = w.k where f.x > 20",
    "filter between joins": f"select id, wid, z from f left join w on f.k = w.k and w.at {HOUR} "
    "join t on t.tid = f.id where coalesce(w.y, 0) < 40",
    "groups behind a filter": "select f.s, count(*) as n, count(w.wid) as w from f left join w "
    "on f.k = w.k and tumble(f.ts, interval 1 hour) = tumble(w.at, interval 1 hour) "
    "where w.y is null or w.y > f.x group by f.s, tumble(f.ts, interval 1 hour)",
    "groups": "select s, count(*) as n, sum(x + 1) as total, min(j) as least from f "
    "where x > 5 group by tumble(ts, interval 1 hour), s",
    "having": "select s, sum(x) / count(*) as mean from f group by s, "
    "tumble(ts, interval 2 hours) having count(*) > 3",
    "having by name": "select s as q, sum(x) as total, count(*) as n from f group by s, "
    "tumble(ts, interval 2 hours) having N > 3 and total + count(*) > 60 and s > 'a'",
    "joined groups": "select f.s, count(*) as n, max(w.y - f.x) as far from f join w on f.k = w.k "
    "and tumble(f.ts, interval 1 hour) = tumble(w.at, interval 1 hour) "
    "group by f.s, tumble(f.ts, interval 1 hour)",
}


def value(kind, rng):
    if pa.types.is_timestamp(kind):
        return START + timedelta(seconds=rng.randrange(6 * 3600))
    if pa.types.is_date(kind):
        return date(2026, 3, 1 + rng.randrange(5))
    if pa.types.is_string(kind):
        return rng.choice("abc")
    return rng.randrange(100) if pa.types.is_floating(kind) else rng.randrange(12)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three streams in two files each, without late rows; ids are numbers of rows."""
    home, rng = tmp_path_factory.mktemp("sql"), random.Random(7)
    for name, columns, rows in (("f", FACTS, 120), ("w", WORDS, 90), ("t", THIRD, 60)):
        made = {n: [value(kind, rng) for _ in range(rows)] for n, kind in columns.items()}
        made[next(iter(columns))] = list(range(rows))
        table = pa.table(made, pa.schema(columns.items()))
        (home / name).mkdir()
        for half in (0, 1):
            pq.write_table(table[half::2], home / name / f"{half}.parquet")
    return home


def streams_in(spark, folders):
    """Streams that end, so that every row without a partner, and every window, is a result."""
    found = {name: parquet_stream(spark, folders / name) for name in "fwt"}
    return {n: replace(one, feed=one.feed | {"ends": True}) for n, one in found.items()}


def rows_of(folders, text):
    here = duckdb.connect()
    here.execute(f"set timezone = 'UTC'; {MACRO}")
    for name in "fwt":
        here.execute(f"create view {name} as from '{folders}/{name}/*.parquet'")
    return here.execute(text).fetchall()


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_sql_has_the_rows_of_duckdb(spark, folders, tmp_path, text):
    query = sql(text, streams_in(spark, folders), delay="1 day", instances=3)
    run(query, tmp_path)
    found = duckdb.sql(f"from '{tmp_path}/out/*.parquet'").fetchall()
    wanted = rows_of(folders, text)
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert len(wanted) > 3


def test_groups_of_columns_whose_names_could_be_expressions(spark, folders, tmp_path):
    odd = ("user-id", "user", "id", "1", "true", "page url", "order")
    columns = ", ".join(f'(id % {n + 2})::int as "{name}"' for n, name in enumerate(odd))
    (tmp_path / "o").mkdir()
    duckdb.sql(
        f"copy (select {columns}, ts from '{folders}/f/*.parquet') to '{tmp_path}/o/0.parquet'"
    )
    shown = ", ".join(f'"{name}" as c{n}' for n, name in enumerate(odd))
    keys = ", ".join(f'"{name}"' for name in odd)
    text = (
        f"select {shown}, count(*) * 10 as n from o group by tumble(ts, interval 3 hours), {keys} "
        'having "page url" > 0 and "1" < 4'
    )
    stream = parquet_stream(spark, tmp_path / "o")
    run(sql(text, {"o": replace(stream, feed=stream.feed | {"ends": True})}, delay="1 s"), tmp_path)
    found = duckdb.sql(f"from '{tmp_path}/out/*.parquet'").fetchall()
    here = duckdb.connect()
    here.execute(f"set timezone = 'UTC'; {MACRO}; create view o as from '{tmp_path}/o/0.parquet'")
    assert sorted(found) == sorted(here.execute(text).fetchall())
    assert len(found) > 20


def test_a_dataframe_and_a_table_are_streams_of_sql(spark, folders, tmp_path):
    reader = spark.readStream.schema(spark.read.parquet(str(folders / "f")).schema)
    frame, table = reader.parquet(str(folders / "f")), spark.read.parquet(str(folders / "w"))
    for number, text in enumerate(
        (
            "select id, f.k + 1 as more, wid from f join w on f.k + 1 = w.k where f.s = 'a'",
            "select k, id, wid, coalesce(y, -1) as y from f left join w using (k) where f.s = 'a'",
        )
    ):
        run(sql(text, {"f": frame, "w": table}, instances=3), tmp_path, f"out{number}")
        found = duckdb.sql(f"from '{tmp_path}/out{number}/*.parquet'").fetchall()
        assert sorted(found, key=repr) == sorted(rows_of(folders, text), key=repr)
        assert len(found) > 3
