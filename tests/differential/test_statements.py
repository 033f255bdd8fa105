"""Random statements against DuckDB, which runs the same text over the same rows.

Keys of other widths and scales, NULL keys, NaN, -0.0, wide numbers and bytes; subqueries with
columns that are computed under the name of another one; outer joins, and WHERE on their results.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest

from joinengine import Stream, sql
from joinengine.sources.readings import Reading
from joinengine.sources.transforms import stepped
from tests.differential.cases import EPOCH, TIME, database, seeds
from tests.harness import LocalQuery

FAST, ALL = 30, 1000
COMMON = {
    **{"x": pa.float64(), "d": pa.date32(), "s": pa.string(), "b": pa.bool_()},
    **{"bin": pa.binary(), "n": pa.timestamp("us"), "ts": TIME},
}
SCHEMAS = {
    "f": pa.schema({"k": pa.int64(), "j": pa.int32(), "m": pa.decimal128(9, 2), **COMMON}),
    "w": pa.schema({"k": pa.int32(), "j": pa.int64(), "m": pa.decimal128(12, 4), **COMMON}),
}
VALUES = {
    **{"k": [0, 1, 2, 2**31 - 2], "j": [0, 1, 2, -1]},
    **{"m": [Decimal(text) for text in ("0", "1.50", "-1", "2")]},
    **{"x": [0.0, -0.0, 1.5, math.nan, math.inf, -2.5], "s": ["", "a", "ab", "A%", "a_"]},
    **{"d": [dt.date(2024, 1, 31), dt.date(2024, 2, 29)], "b": [True, False]},
    **{"bin": [b"", b"a", b"\0\xff"], "n": [dt.datetime(2024, 1, 31, 12), dt.datetime(2024, 2, 1)]},
}
KEYS = (
    *(
        "a.k = b.k",
        "a.k = b.k",
        "a.j = b.j",
        "a.m = b.m",
        "a.s = b.s",
        "a.d = b.d",
        "a.bin = b.bin",
    ),
    *("a.n = b.n", "b.k + 1 = a.k", "lower(a.s) = b.s", "coalesce(a.k, 1) = b.k", "a.b = b.b"),
)
NEAR = (
    "b.ts between a.ts - interval 20 seconds and a.ts + interval 5 seconds",
    "b.ts >= a.ts + interval 3 second and a.ts + interval 30 second > b.ts",
)
#: Of both sides, or of one if the other has no columns.
CONDITIONS = (
    *("abs(a.j - b.j) <= 1", "a.m - b.m between -1 and 0.5", "a.x - b.x <= 0.5", "not (a.x = b.x)"),
    *("a.j < b.j or b.s is null", "a.s like b.s", "not (a.j = b.j)", "a.j not in (1, b.j, null)"),
    *("a.b is distinct from b.b", "a.x >= b.x", "a.m between b.m and 2", "a.bin <> b.bin"),
    *("coalesce(a.j, b.j) in (0, 1)", "case when a.b then b.j else a.k end > 0", "a.n < b.n"),
    *("a.b", "not (a.j = 1 and a.b)"),
)
ALONE = ("a.b", "a.s like 'a%'", "a.x > 0", "a.j in (1, null)", "b.b", "b.j > 0", "b.s is null")
ITEMS = (
    *("a.k + 1", "coalesce(a.k, b.j)", "a.m + b.m", "a.x", "b.x", "a.bin", "b.s || 'x'", "a.n"),
    *("case when b.b then a.j end", "nullif(a.j, b.j)", "a.ts + interval 1 month", "b.d", "b.k"),
    *("greatest(a.j, b.k)", "length(a.s)", "year(a.d)", "a.j is null", "a.k", "a.s"),
)
INSIDE = ("z.j", "coalesce(z.j, 5)", "z.j + 1")


def rows_of(rng, name):
    """Rows of a stream, which may have no more than a few values for each column."""
    rows = []
    for number in range(rng.choice([3, 12, 25])):
        row = {c: None if rng.random() < 0.15 else rng.choice(v) for c, v in VALUES.items()}
        if rng.random() < 0.1:
            row["k" if name == "f" else "j"] = 2**53 + rng.choice([0, 1])
        moment = EPOCH + dt.timedelta(seconds=rng.randint(0, 60), microseconds=number)
        rows.append({**row, "ts": None if rng.random() < 0.06 else moment})
    return pa.RecordBatch.from_pylist(rows, SCHEMAS[name])


def entry(rng, name, alias):
    """An entry of FROM, perhaps a subquery whose j hides that of the stream."""
    if rng.random() < 0.6:
        return f"{name} {alias}"
    where = rng.choice(["", " where z.b or z.k > 0", " where z.s like 'a%'"])
    names = ", ".join(column for column in SCHEMAS[name].names if column != "j")
    return f"(select {names}, {rng.choice(INSIDE)} as j from {name} z{where}) {alias}"


def statement(rng):
    how = rng.choice(["", "", "left", "right", "full", "semi", "anti"])
    conditions = [rng.choice(KEYS)] if rng.random() < 0.8 else []
    if how not in ("", "semi") or not conditions:
        conditions.append(rng.choice(NEAR))
    conditions += rng.sample(CONDITIONS, rng.choice([0, 0, 1])) + rng.sample(
        ALONE, rng.choice([0, 1])
    )
    rng.shuffle(conditions)
    hidden = how in ("semi", "anti")
    shown, wheres = (
        [text for text in texts if not (hidden and "b." in text.replace("ab.", ""))]
        for texts in (ITEMS, CONDITIONS)
    )
    items = ", ".join(f"{text} as c{n}" for n, text in enumerate(rng.sample(shown, 3)))
    where = " and ".join(f"({text})" for text in rng.sample(wheres, rng.choice([0, 0, 1, 2])))
    right = entry(rng, rng.choice("ffww"), "b")
    return (
        f"select {items} from {entry(rng, 'f', 'a')} {how} join {right} on "
        f"{' and '.join(conditions)}{where and f' where {where}'}"
    )


def comparable(value):
    if isinstance(value, float):
        return "nan" if math.isnan(value) else round(value, 9) + 0.0
    if isinstance(value, dt.datetime) and value.tzinfo:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value


def counted(tables, names):
    rows = (row for t in tables for row in zip(*(t[n].to_pylist() for n in names), strict=True))
    return Counter(tuple(map(comparable, row)) for row in rows)


def results(plan, data, folder, n_batches):
    """The results of a plan over the rows in some batches, to the end."""
    query = LocalQuery(folder, plan.query(), "hash", choices=plan._planned().choices)
    for batch in range(n_batches):
        frame = []
        for number, source in enumerate(plan._flat()[1]):
            rows, reading = data[source.place], source.reading
            first, end = (rows.num_rows * at // n_batches for at in (batch, batch + 1))
            read = stepped(rows.slice(first, end - first), reading.steps, rows.schema)
            frame.append((number, read.select(reading.schema.names)))
        query.run(batch, [frame])
    query.finish(n_batches, most=20)
    return query._tables("out")


def oracle(text, data):
    for name, rows in data.items():
        database().register(name, pa.Table.from_batches([rows]))
    return database().sql(text).to_arrow_table()


@pytest.mark.parametrize("seed", seeds(FAST, ALL))
def test_any_statement(seed, tmp_path):
    rng = random.Random(seed)
    text, data = statement(rng), {name: rows_of(rng, name) for name in SCHEMAS}
    streams = {
        name: Stream(None, {"kind": "recorded", "path": name}, Reading(schema))
        for name, schema in SCHEMAS.items()
    }
    layout = rng.choice(["shuffle", "dynamic", "auto"])  # each serves every condition
    plan = sql(text, streams, delay="1 day", layout=layout, instances=3)
    found = results(plan, data, tmp_path, rng.randint(1, 4))
    wanted = oracle(text, data)
    names = plan._results.schema.names
    told = f"JOINENGINE_SEED={seed} replays this\n{text}\n{plan.explain()}"
    assert counted(found, names) == counted([wanted], names), told


def test_the_statements_find_something():
    sizes = []
    for seed in range(FAST):
        rng = random.Random(seed)
        text = statement(rng)
        sizes.append(oracle(text, {name: rows_of(rng, name) for name in SCHEMAS}).num_rows)
    assert sum(size > 0 for size in sizes) > FAST * 0.5
