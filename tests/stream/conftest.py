"""One Spark session for all stream tests, and streams of Parquet files to feed it."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from contextlib import contextmanager
from decimal import Decimal
from functools import cache

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import StreamJoin, equi, parquet_stream, session
from joinengine.api import options
from joinengine.exchange.exchange import ExchangeKind
from joinengine.layouts import LAYOUTS
from joinengine.reporting.page import page
from joinengine.spark.session.session import _HELPS as HELPS
from joinengine.spark.sources.inputs import recorded_stream
from joinengine.spark.sources.types import arrow_schema
from tests.stream.cases import called

#: All layouts, of which three are tried every time and the others with the slow tests: one splits
#: keys, one chooses among candidates, one is a grid. (What tells layouts apart is tried without
#: Spark, in tests/laws.)
FAMILIES = ("mnrt", "w-choices", "dynamic")
EACH_LAYOUT = [
    pytest.param(name, marks=() if name in FAMILIES else pytest.mark.slow) for name in LAYOUTS
]

EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("o_ts", pa.timestamp("us", "UTC")),
    ]
)
ITEMS = pa.schema(
    [
        ("order_id", pa.int32()),
        ("buyer", pa.string()),
        ("amount", pa.decimal128(9, 2)),
        ("sold", pa.date32()),
        ("i_ts", pa.timestamp("us", "UTC")),
    ]
)


@pytest.fixture(scope="session")
def spark():
    with pytest.MonkeyPatch.context() as patch:
        # A later `session()`, of a page's code for example, would set more for all later tests.
        patch.setitem(HELPS, "spark.sql.shuffle.partitions", "2")
        yield session(master="local[2]")


@pytest.fixture(scope="module")
def interpreted(spark):
    """Spark compiles nothing: for hundreds of expressions over a few rows that takes far longer."""
    chosen = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    for name, value in chosen.items():
        spark.conf.set(name, value)
    yield
    for name in chosen:
        spark.conf.unset(name)


def _used(request, monkeypatch):
    monkeypatch.setattr(options, "chosen_exchange", lambda asked, state: asked or request.param)
    return request.param


@pytest.fixture(params=list(ExchangeKind), ids=str)
def each_exchange(request, monkeypatch):
    """What carries the tuples of queries that do not say it."""
    return _used(request, monkeypatch)


@pytest.fixture(
    params=[ExchangeKind.FILES, pytest.param(ExchangeKind.SHUFFLE, marks=pytest.mark.slow)], ids=str
)
def exchange(request, monkeypatch):
    """The same, in fewer tests of `make test`."""
    return _used(request, monkeypatch)


class Folders:
    """Two folders of Parquet files, batch by batch; key 0 is hot, some keys are NULL."""

    def __init__(self, root, seed=0):
        self.root = root
        self.orders, self.items = root / "orders", root / "items"
        self.orders.mkdir(parents=True)
        self.items.mkdir()
        self.rng = random.Random(seed)
        self.batches = 0

    def add(self, n_orders=40, n_items=120):
        self._write(self.orders, ORDERS, n_orders)
        self._write(self.items, ITEMS, n_items)
        self.batches += 1

    def add_orders(self):
        """A file on one side alone."""
        self._write(self.orders, ORDERS, 40)
        self.batches += 1

    def _write(self, folder, schema, n):
        rng, start = self.rng, EPOCH + dt.timedelta(seconds=10 * self.batches)
        rows = []
        for _ in range(n):
            key = 0 if rng.random() < 0.3 else rng.randrange(40)
            key = None if rng.random() < 0.04 else key
            rows.append(
                (
                    key,
                    None if key is None else f"customer {key:>{key % 9 + 1}}",
                    Decimal(rng.randrange(20)) / 4,
                    dt.date(2024, 1, 1 + rng.randrange(5)),
                    start + dt.timedelta(microseconds=rng.randrange(10_000_000)),
                )
            )
        table = pa.table(
            [
                pa.array(column, field.type)
                for column, field in zip(zip(*rows, strict=True), schema, strict=True)
            ],
            schema=schema,
        )
        draft = folder / f".{self.batches:04d}"
        pq.write_table(table, draft, row_group_size=max(1, n // 3))
        draft.rename(folder / f"{self.batches:04d}.parquet")


@pytest.fixture
def folders(tmp_path):
    made = Folders(tmp_path / "in")
    for _ in range(4):
        made.add()
    return made


@pytest.fixture(name="writer")
def joined_writer(spark, folders, tmp_path):
    """Makes writers of a join of orders and items; `name`: of the checkpoint."""

    def make(name="checkpoint", **options):
        left = parquet_stream(spark, folders.orders, rows_per_interval=40)
        right = parquet_stream(spark, folders.items, rows_per_interval=120)
        joined = StreamJoin(left, right, on=equi("id", "order_id"), instances=3)
        found = joined.writeStream.format("parquet").option("checkpointLocation", tmp_path / name)
        return found.options(**options)

    return make


def ended(spark, folders, files=1):
    """Orders and items as streams that end: at the end all state leaves.

    `files`: how many an interval has.
    """
    sides = []
    for name in ("orders", "items"):
        paths = sorted((folders.root / name).glob("*.parquet"))
        intervals = [
            [
                [str(file.relative_to(folders.root)), group, footer.row_group(group).num_rows]
                for file in paths[first : first + files]
                for footer in [pq.read_metadata(file)]
                for group in range(footer.num_row_groups)
            ]
            for first in range(0, len(paths), files)
        ]
        progress = [epoch_us(EPOCH) + 10**7 * n for n in range(0, len(paths), files)]
        index = folders.root / f"{name}.json"
        index.write_text(json.dumps({"intervals": intervals, "progress": progress}))
        schema = spark.read.parquet(str(folders.root / name)).schema
        sides.append(recorded_stream(spark, index, arrow_schema(schema)))
    return sides


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return tmp_path_factory.getbasetemp() / "home"


@pytest.fixture(scope="session")
def joinengine(spark, home):
    """The command line in the session of all tests."""

    @contextmanager
    def shared(master):
        yield spark

    return lambda *arguments, code=0: called(home, shared, *arguments, code=code)


def epoch_us(time):
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def found_in(folder):
    """The visible result rows as a multiset."""
    return sum(map(multiset, _tables_in(folder)), Counter())


def _tables_in(folder):
    return [pq.read_table(file) for file in folder.glob("*.parquet")]


def multiset(table):
    """The rows of a table; timestamps of every writer are in UTC."""
    return Counter(zip(*map(_values, table.columns), strict=True))


def _values(column):
    if not pa.types.is_timestamp(column.type):
        return column.to_pylist()
    # Arrow's own way takes four times as long.
    naive = column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).to_numpy().tolist()
    return [value and value.replace(tzinfo=dt.UTC) for value in naive]


def oracle(sql):
    """DuckDB's rows as a multiset."""
    return multiset(_answer(sql))


@cache
def _database():
    """One for all answers: to open one takes as long as many an answer."""
    opened = duckdb.connect(":memory:")
    opened.execute("set timezone = 'UTC'")
    return opened


def _answer(sql):
    return _database().sql(sql).to_arrow_table()


def same(folder, sql):
    """Compare as multisets; two empty sides prove nothing."""
    same_rows(pa.concat_tables(_tables_in(folder) or [_answer(sql).slice(0, 0)]), sql)


def same_rows(shown, sql):
    """The same of a table."""
    expected = _answer(sql)
    assert expected.num_rows, "the oracle is empty"
    if not _equal(shown, expected):
        assert multiset(shown) == multiset(expected)


def _equal(shown, expected):
    """Whether DuckDB finds two tables equal; it makes no value in Python, which would take long."""
    kinds = zip(map(_kind, shown.schema), map(_kind, expected.schema), strict=True)
    if shown.num_rows != expected.num_rows or any(one != other for one, other in kinds):
        return False
    more = _database().sql("select * from shown except all select * from expected limit 1")
    return not more.fetchall()


def _kind(field):
    """What a type is compared as: DuckDB would also find 1 and '1' equal."""
    return "integer" if pa.types.is_integer(field.type) else str(field.type)


@pytest.fixture(scope="module")
def tab(chromium):
    """A tab for the pages of many tests: a new one takes as long as three pages."""
    return chromium.new_context().new_page()


@pytest.fixture
def watch(chromium, tab, tmp_path):
    """Opens the page of one report; in a new tab, if that has to be another one."""
    from tests.browser import WIDE, shown, shown_in  # noqa: PLC0415 (others load no Playwright)

    def opened(one, *, size=WIDE, dark=False, **context):
        file = tmp_path / "run.html"
        file.write_text(page({"mode": "report", "reports": [one]}))
        if context:
            return shown(chromium, file, size=size, dark=dark, **context)
        tab.mouse.move(0, 0)  # where it was, something of this page may be
        tab.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
        tab.emulate_media(color_scheme="dark" if dark else "light")
        return shown_in(tab, file)

    return opened
