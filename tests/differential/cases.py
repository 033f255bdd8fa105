"""Random joins, all from a seed: schemas, values, conditions, windows, types, layouts, batches."""

from __future__ import annotations

import datetime as dt
import math
import os
import random
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache

import duckdb
import pyarrow as pa
import pytest

from joinengine import StreamJoin, band, equi, sliding, theta, tumbling, within
from joinengine.api.column_checks import JOIN_TYPES
from joinengine.layouts import LAYOUTS
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream

TIME = pa.timestamp("us", "UTC")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
#: Event time goes through 1970, in microseconds.
START, STEP, DISORDER = -2_000_000, 700_000, 400_000

#: Values of each type, with its extremes; few of them, so that they meet.
VALUES = {
    pa.int8(): [-128, -1, 0, 1, 2, 127],
    pa.int16(): [-(1 << 15), -1, 0, 1, 2, (1 << 15) - 1],
    pa.int32(): [-(1 << 31), -1, 0, 1, 2, (1 << 31) - 1],
    pa.int64(): [-(1 << 63), -(1 << 63) + 1, -1, 0, 1, 2, (1 << 63) - 2, (1 << 63) - 1],
    pa.string(): ["", "a", "b", "ä", "a" * 40, "nul\0", "A"],
    pa.bool_(): [True, False],
    pa.date32(): [
        dt.date(1, 1, 1),
        dt.date(1969, 12, 31),
        dt.date(1970, 1, 1),
        dt.date(9999, 12, 31),
    ],
    pa.decimal128(9, 2): [
        Decimal("-9999999.99"),
        Decimal("-0.01"),
        Decimal("0.00"),
        Decimal("0.01"),
        Decimal("1.10"),
        Decimal("9999999.99"),
    ],
    TIME: [
        EPOCH + dt.timedelta(microseconds=n) for n in (-86_400_000_000, -1, 0, 1, 5, 86_400_000_000)
    ],
    pa.float64(): [
        -math.inf,
        -1e308,
        -1.5,
        -0.0,
        0.0,
        0.1,
        0.3,
        1e-320,
        1.5,
        1e308,
        math.inf,
        math.nan,
    ],
    pa.float32(): [-math.inf, -1.5, -0.0, 0.0, 0.25, 1.5, math.inf, math.nan],
}
KEYS = [kind for kind in VALUES if not pa.types.is_floating(kind)]
INTEGERS = [kind for kind in VALUES if pa.types.is_integer(kind)]
FLOATS = [kind for kind in VALUES if pa.types.is_floating(kind)]
#: (SQL over both sides, the same in Python over rows as dictionaries of non-NULL numbers)
PREDICATES = [
    ("left.lv < right.rv", lambda a, b: a["lv"] < b["rv"]),
    ("(lv + rv) % 3 = 0", lambda a, b: math.fmod(a["lv"] + b["rv"], 3) == 0),
    ("abs(lv - rv) <= 2 and not lv = 3", lambda a, b: abs(a["lv"] - b["rv"]) <= 2 and a["lv"] != 3),
    (
        "greatest(lv, rv) between 2 and 5 and lv + rv > 0",
        lambda a, b: 2 <= max(a["lv"], b["rv"]) <= 5,
    ),
]


@dataclass
class Case:
    """One random join: the request to the engine, and the same in DuckDB's SQL."""

    seed: int
    left: pa.Table
    right: pa.Table
    batches: list[tuple[list[int], list[int]]]  # rows of each side, batch by batch
    join: StreamJoin
    condition: str  # in SQL, over l and r
    window: tuple[str, int, int] | None
    how: str
    layout: str
    schedule: dict[int, tuple[str, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.how} on {self.condition}, window {self.window}, under "
            f"{self.layout}, {self.left.num_rows} x {self.right.num_rows} rows in "
            f"{len(self.batches)} batches, changes {self.schedule}"
        )


@cache
def database():
    """DuckDB for all cases, which register their tables anew: to start it takes longer."""
    db = duckdb.connect()
    db.execute("set timezone = 'UTC'")
    return db


def seeds(fast, most):
    """The seeds to try: that of JOINENGINE_SEED, or all, of which `fast` are not slow tests."""
    chosen = os.environ.get("JOINENGINE_SEED")
    if chosen is not None:
        return [int(chosen)]
    slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(fast, most)]
    return [*range(fast), *slow]


def make(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    keys = rng.choices(KEYS, k=rng.choice([1, 1, 2]))
    kinds = {"equi": (), "band": _band_types(rng), "both": _band_types(rng), "theta": ()}
    on_kind = rng.choice(list(kinds))
    n_batches = rng.randint(1, 6)
    left, left_batches = _side(rng, "l", keys, kinds[on_kind][:1], n_batches)
    right, right_batches = _side(rng, "r", _partners(rng, keys), kinds[on_kind][1:], n_batches)
    on, condition = _condition(rng, on_kind, keys, kinds[on_kind])
    where = rng.choice([None, *(text for text, _ in PREDICATES)]) if on_kind != "theta" else None
    if where is not None:
        condition += f" and {_in_sql(where)}"
    how = rng.choice(JOIN_TYPES)
    full_history = how in ("inner", "left_semi") and rng.random() < 0.3
    window, account = (None, None) if full_history else _window(rng)
    serving = [n for n, one in LAYOUTS.items() if one.serves_theta or not _any_pair(on_kind, on)]
    layout = rng.choice(serving)
    join = StreamJoin(
        _stream(left),
        _stream(right),
        on=on,
        within=window,
        how=how,
        where=where,
        layout=layout,
        instances=rng.randint(4, 6),
    )
    schedule = {
        rng.randint(1, 5): (rng.choice(serving), rng.randint(4, 7))
        for _ in range(rng.randint(0, 2))
    }
    batches = list(zip(left_batches, right_batches, strict=True))
    return Case(seed, left, right, batches, join, condition, account, how, layout, schedule)


def _any_pair(on_kind, on):
    open_band = on_kind == "band" and (on.lower is None or on.upper is None)
    return on_kind == "theta" or open_band


def _stream(table):
    return Stream(None, {"kind": "recorded", "path": "generated"}, Reading(table.schema))


def _side(rng, side, keys, bands, n_batches):
    """A table of one side, and which of its rows come in which batch."""
    fields = [(f"{side}{i}", kind) for i, kind in enumerate(keys)]
    fields += [(f"{side}b", kind) for kind in bands]
    fields += [(f"{side}v", pa.int64()), (f"{side}t", TIME), (f"{side}n", pa.int64())]
    hot = rng.choice([0.0, 0.5, 1.0])
    lucky = [rng.choice(VALUES[kind]) for _, kind in fields[: len(keys)]]
    rows, batches = [], []
    for batch in range(n_batches):
        size = rng.choice([0, 1, rng.randint(0, 25)])
        batches.append(list(range(len(rows), len(rows) + size)))
        for _ in range(size):
            is_hot = rng.random() < hot
            row = [
                lucky[i] if i < len(keys) and is_hot else rng.choice(VALUES[kind])
                for i, (_, kind) in enumerate(fields[:-3])
            ]
            row = [None if rng.random() < 0.04 else value for value in row]
            late = START + STEP * batch + rng.randint(-DISORDER, DISORDER)
            time = None if rng.random() < 0.04 else EPOCH + dt.timedelta(microseconds=late)
            value = None if rng.random() < 0.05 else rng.randint(0, 6)
            rows.append((*row, value, time, len(rows)))
    columns = zip(*rows, strict=True) if rows else [[] for _ in fields]
    arrays = [pa.array(list(c), kind) for c, (_, kind) in zip(columns, fields, strict=True)]
    return pa.table(arrays, schema=pa.schema(fields)), batches


def _partners(rng, keys):
    """Keys of the other side: integers may be of another width."""
    return [rng.choice(INTEGERS) if pa.types.is_integer(kind) else kind for kind in keys]


def _band_types(rng):
    group = rng.choice([INTEGERS, INTEGERS, FLOATS, [pa.decimal128(9, 2)], [pa.date32()], [TIME]])
    return rng.choice(group), rng.choice(group)


def _condition(rng, on_kind, keys, bands):
    equal = equi([f"l{i}" for i in range(len(keys))], [f"r{i}" for i in range(len(keys))])
    equal_sql = " and ".join(f"l.l{i} = r.r{i}" for i in range(len(keys)))
    if on_kind == "equi":
        return equal, equal_sql
    if on_kind == "theta":
        text, _ = rng.choice(PREDICATES)
        return theta(text), _in_sql(text)
    lower, upper = _bounds(rng, bands[0])
    on = band("lb", "rb", lower=lower, upper=upper)
    sql = _band_sql(bands, lower, upper)
    return (on, sql) if on_kind == "band" else ([equal, on], f"{equal_sql} and {sql}")


def _bounds(rng, kind):
    """Two bounds, perhaps one of them open."""
    if pa.types.is_date32(kind):
        low, high = sorted(dt.timedelta(days=rng.randint(-3, 3)) for _ in range(2))
    elif pa.types.is_timestamp(kind):
        low, high = sorted(dt.timedelta(microseconds=rng.randint(-6, 6)) for _ in range(2))
    elif pa.types.is_floating(kind):
        low, high = sorted(rng.choice([-1e300, -1.5, -0.2, 0.0, 0.2, 3.0]) for _ in range(2))
    elif pa.types.is_decimal(kind):
        low, high = sorted(Decimal(rng.randint(-150, 150)) / 100 for _ in range(2))
    else:
        low, high = sorted(rng.randint(-3, 3) for _ in range(2))
    return rng.choice([(low, high), (low, high), (low, high), (low, None), (None, high)])


def _band_sql(kinds, lower, upper):
    if pa.types.is_floating(kinds[0]):
        difference, unit = "(r.rb::double - l.lb::double)", float
        tests = [f"not isnan{difference}"]
    elif pa.types.is_decimal(kinds[0]):
        difference, unit, tests = "(r.rb::decimal(18,2) - l.lb::decimal(18,2))", str, []
    elif pa.types.is_timestamp(kinds[0]):
        difference, tests = "(epoch_us(r.rb) - epoch_us(l.lb))", []
        unit = lambda bound: bound // dt.timedelta(microseconds=1)  # noqa: E731
    elif pa.types.is_date32(kinds[0]):
        difference, tests = "datediff('day', l.lb, r.rb)", []
        unit = lambda bound: bound.days  # noqa: E731
    else:
        difference, unit, tests = "(r.rb::hugeint - l.lb::hugeint)", int, []
    cast = "::double" if unit is float else ""
    if lower is not None:
        tests.append(f"{difference} >= ({unit(lower)}){cast}")
    if upper is not None:
        tests.append(f"{difference} <= ({unit(upper)}){cast}")
    return " and ".join(tests)


def _in_sql(text):
    return f"({text.replace('left.', 'l.').replace('right.', 'r.')})"


def _window(rng):
    """A window with a delay that makes nothing late, and the account that the oracle needs."""
    delay = f"{2 * DISORDER + STEP * 6} us"
    kind = rng.choice(["within", "tumbling", "sliding"])
    if kind == "within":
        lower = rng.choice([-900_000, -100_000, 0, 0, 200_000])
        upper = lower + rng.choice([0, 100_000, 1_200_000])
        window = within("lt", "rt", lower=f"{lower} us", upper=f"{upper} us", delay=delay)
        return window, (kind, lower, upper)
    size = rng.choice([1, 300_000, 1_000_000])
    slide = size if kind == "tumbling" else rng.choice([170_000, 300_000, 1_500_000])
    if kind == "tumbling":
        return tumbling("lt", "rt", f"{size} us", delay=delay), (kind, size, slide)
    return sliding("lt", "rt", f"{size} us", f"{slide} us", delay=delay), (kind, size, slide)
