"""Random joins against DuckDB, and theta joins against the nested loop as well.

A failure names its seed; `JOINENGINE_SEED=n pytest tests/differential` replays it alone.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import Stream, StreamJoin, theta
from joinengine.driver.settings import Settings
from joinengine.layouts import choose
from joinengine.sources.readings import Reading
from joinengine.state.wished import Relayout
from tests.differential.cases import PREDICATES, database, make, seeds
from tests.harness import LocalQuery
from tests.reference.nested_loop import nested_loop

FAST, ALL = 90, 1500


def oracle(case):
    """DuckDB's rows; under windows with edges a row stands once for each window that holds it."""
    left, right, columns, on = "left_rows", "right_rows", "", case.condition
    one_sided = case.how in ("left_semi", "left_anti")
    shown = ["l.* exclude (k)"] if one_sided else ["l.* exclude (k)", "r.* exclude (k)"]
    match case.window:
        case ("within", lower, upper):
            on += f" and epoch_us(r.rt) - epoch_us(l.lt) between {lower} and {upper}"
        case (_, size, slide):
            left, right = (
                f"(select * exclude (k), unnest(generate_series("
                f"{floored(f'epoch_us({time}) - {size}', slide)} + 1, "
                f"{floored(f'epoch_us({time})', slide)})) as k from {table})"
                for table, time in ((left, "lt"), (right, "rt"))
            )
            on += " and l.k = r.k"
            k = "l.k" if one_sided else "coalesce(l.k, r.k)"
            columns = f", {k} * {slide} as window_start, {k} * {slide} + {size} as window_end"
    kind = case.how.removeprefix("left_") if one_sided else case.how
    db = database()
    for name, table in (("left_rows", case.left), ("right_rows", case.right)):
        db.register(name, table.append_column("k", pa.nulls(table.num_rows, pa.int64())))
    sql = f"select {', '.join(shown)}{columns} from {left} l {kind} join {right} r on {on}"
    return as_rows(db.sql(sql).to_arrow_table())


def floored(number, by):
    """Whole division that rounds down; SQL's rounds towards zero."""
    return f"((({number}) - ((({number}) % {by}) + {by}) % {by}) // {by})"


def as_rows(table):
    """A multiset of rows; NaN is one value, a time is a number."""
    columns = []
    for name in table.schema.names:
        column = table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        values = column.to_pylist()
        if pa.types.is_floating(column.type):
            values = ["nan" if v is not None and math.isnan(v) else v for v in values]
        columns.append(values)
    return Counter(zip(*columns, strict=True)) if table.num_rows else Counter()


def engine(case, folder):
    """The engine's results of the case, batch by batch."""
    wishes = {
        batch: [Relayout(choose(name), instances)]
        for batch, (name, instances) in case.schedule.items()
    }
    query = LocalQuery(
        folder,
        case.join.query(),
        case.layout,
        settings=Settings(schedule=wishes, lazy=case.seed % 3 == 0),
    )
    for number, rows in enumerate(case.batches):
        sides = [
            table.take(pa.array(some, pa.int64())).combine_chunks()
            for table, some in zip((case.left, case.right), rows, strict=True)
        ]
        frame = [
            [(side, one) for side, table in enumerate(sides) for one in _dealt(table, task)]
            for task in range(2)
        ]
        query.run(number, frame)
    query.finish(len(case.batches))
    files = sorted((query.folder / "out").glob("*.parquet"))
    tables = [pq.read_table(str(file)) for file in files]
    return as_rows(pa.concat_tables(tables)) if tables else Counter(), query


def _dealt(table, task):
    rows = pa.array(range(task, table.num_rows, 2), pa.int64())
    return table.take(rows).combine_chunks().to_batches()


@pytest.mark.parametrize("seed", seeds(FAST, ALL))
def test_any_join(seed, tmp_path):
    case = make(seed)
    found, query = engine(case, tmp_path)
    wanted = oracle(case)
    assert found == wanted, f"JOINENGINE_SEED={seed} replays this\n{case}"
    assert query.state.late_rows == 0


def test_the_cases_find_something():
    """If all random joins were empty, they would prove nothing."""
    cases = [make(seed) for seed in range(FAST)]
    sizes = [oracle(case).total() for case in cases]
    assert sum(size > 0 for size in sizes) > FAST * 0.6
    assert {case.how for case, size in zip(cases, sizes, strict=True) if size} >= {
        *("inner", "left", "right", "full", "left_semi", "left_anti")
    }


@pytest.mark.parametrize("layout", ["dynamic", "bi", "shuffle"])
@pytest.mark.parametrize("number", range(len(PREDICATES)))
def test_theta_against_the_nested_loop(layout, number, tmp_path):
    """An oracle that is no SQL engine: the nested loop."""
    text, holds = PREDICATES[number]
    case = next(
        case for case in map(make, range(1000)) if case.left.num_rows * case.right.num_rows > 900
    )
    streams = [
        Stream(None, {"kind": "recorded", "path": "generated"}, Reading(table.schema))
        for table in (case.left, case.right)
    ]
    case.join = StreamJoin(*streams, on=theta(text), layout=layout, instances=4)
    case.layout, case.schedule = layout, {}
    found, _ = engine(case, tmp_path)
    rows = [
        [row for row in table.to_pylist() if row[column] is not None]
        for table, column in ((case.left, "lv"), (case.right, "rv"))
    ]
    numbered = [list(enumerate(side)) for side in rows]
    pairs = nested_loop(
        [i for i, _ in numbered[0]],
        [i for i, _ in numbered[1]],
        lambda i, j: holds(rows[0][i], rows[1][j]),
    )
    wanted = Counter((rows[0][i]["ln"], rows[1][j]["rn"]) for i, j in pairs)
    names = case.join._output_schema().names
    at = names.index("ln"), names.index("rn")
    assert wanted
    assert Counter({(row[at[0]], row[at[1]]): n for row, n in found.items()}) == wanted


def test_a_seed_is_one_case():
    with tempfile.TemporaryDirectory():
        assert str(make(7)) == str(make(7))
        assert make(7).left.equals(make(7).left)
