"""Keys of two types meet as in Spark: both are compared in the type that holds either."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine import InvalidRequest, StreamJoin, band, equi, tumbling
from joinengine.kernels.comparing import equal_at
from joinengine.kernels.hashing import hash_columns, scaled
from joinengine.lab.commands import inspection
from joinengine.model.columns import wider
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from tests.harness import TIME, LocalQuery
from tests.laws.cases import relaxed

WINDOW = tumbling("lt", "rt", "1 hour", delay="0 s")
NAN = float("nan")
OTHER_NAN = float(np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0])
#: Per pair of types some values of each; equal ones look different.
D = Decimal
KINDS = {
    "scales": (
        *(pa.decimal128(10, 2), pa.decimal128(12, 4)),
        *([D("1.50"), D("-7.25"), D("0")], [D("1.5000"), D("-7.2500"), D("1.5001"), D("0")]),
    ),
    "long": (
        *(pa.decimal128(38, 10), pa.decimal128(20, 10)),
        *([D(10) ** 27, D("0.0000000001")], [D("0.0000000001"), D(1)]),
    ),
    "int": (pa.int32(), pa.decimal128(9, 2), [1, -7, 2**31 - 1], [D("1.00"), D("-7"), D("1.01")]),
    "bigint": (
        *(pa.decimal128(20, 4), pa.int64()),
        *([D(2**53), D("1.0000"), D("1.0001")], [2**53, 1, -(2**63)]),
    ),
    "floats": (
        *(pa.float64(), pa.float32()),
        *([0.0, NAN, 0.5, math.inf, 0.1], [-0.0, OTHER_NAN, 0.5, math.inf, -math.inf, 0.1]),
    ),
}


def stream(name, kind):
    schema = pa.schema([(f"{name}k", kind), (f"{name}v", pa.int64()), (f"{name}t", TIME)])
    return Stream(None, {"kind": "recorded", "path": name}, Reading(schema))


def alike(a, b):
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return a == b


class Typed(LocalQuery):
    def run_keys(self, batch, keys):
        tuples = [
            pa.RecordBatch.from_arrays(
                [
                    pa.array(some, schema.types[0]),
                    pa.array(range(100 * batch, 100 * batch + len(some)), pa.int64()),
                    pa.array([batch] * len(some), TIME),
                ],
                schema=schema,
            )
            for some, schema in zip(keys, self.query.operators[0].schemas, strict=True)
        ]
        self.run(batch, [list(enumerate(tuples))])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["mnrt", "dynamic", "pkg", "bi-k"])
@relaxed
@example(seed=[(list(range(5)), list(range(5))), (list(range(5)), list(range(5)))])
@given(seed=st.lists(st.tuples(*[st.lists(st.integers(0, 9), max_size=8)] * 2), max_size=4))
def test_equal_values_of_two_types_meet(kind, layout, seed):
    left, right, *values = KINDS[kind]
    keys = [
        [[some[i % len(some)] for i in chosen] for chosen, some in zip(batch, values, strict=True)]
        for batch in seed
    ]
    on = equi("lk", "rk", floats="normalised")
    plan = StreamJoin(
        *(stream("l", left), stream("r", right)),
        on=on,
        within=WINDOW,
        how="full",
        layout=layout,
        instances=4,
    )
    with tempfile.TemporaryDirectory() as folder:
        query = Typed(folder, plan.query(), layout)
        for number, batch in enumerate(keys):
            query.run_keys(number, batch)
        query.finish(len(keys))
        found = Counter((row[1], row[4]) for row in query.output().elements())
    sides = [[(100 * b + i, k) for b, one in enumerate(keys) for i, k in enumerate(one[s])]
             for s in range(2)]  # fmt: skip
    met = [(a, b) for a, x in sides[0] for b, y in sides[1] if alike(x, _read(y, right))]
    alone = [[v for v, _ in side if v not in {m[n] for m in met}] for n, side in enumerate(sides)]
    assert found == Counter([*met, *((a, None) for a in alone[0]), *((None, b) for b in alone[1])])


def _read(value, kind):
    """The value as a column of its type holds it: a float has fewer digits than a double."""
    return float(np.float32(value)) if pa.types.is_float32(kind) else value


def test_the_type_of_two_is_that_of_spark():
    d = pa.decimal128
    assert wider(d(10, 2), d(12, 4)) == d(12, 4)
    assert wider(d(10, 4), d(12, 2)) == d(14, 4)
    assert wider(pa.int8(), d(5, 4)) == d(7, 4)
    assert wider(d(9, 0), pa.int64()) == d(20, 0)
    assert wider(pa.float32(), pa.float64()) == pa.float64()
    assert wider(d(38, 0), d(38, 1)) is None
    assert wider(pa.int64(), pa.float64()) is None
    assert wider(pa.date32(), pa.timestamp("us")) is None


def test_what_38_digits_do_not_hold_is_refused():
    sides = stream("l", pa.decimal128(38, 2)), stream("r", pa.decimal128(20, 4))
    with pytest.raises(InvalidRequest, match=r"takes more than 38 digits. Cast them"):
        StreamJoin(*sides, on=equi("lk", "rk"), instances=2)


def test_equal_numbers_hash_alike_and_are_equal():
    one, other = pa.array([D("1.50"), None], pa.decimal128(10, 2)), pa.array([2, 3], pa.int8())
    other = pa.array([D("1.5000"), D("2")], pa.decimal128(20, 4))
    hashes = [hash_columns([scaled(column, 4)]) for column in (one, other)]
    assert hashes[0][0] == hashes[1][0]
    rows = np.array([0])
    assert equal_at(one, rows, other, rows).all()
    assert not equal_at(one, rows, other, np.array([1])).any()
    floats = pa.array([-0.0, OTHER_NAN, 1.0]), pa.array([0.0, NAN, 2.0], pa.float32())
    rows = np.arange(3)
    assert equal_at(floats[0], rows, floats[1], rows).tolist() == [True, True, False]


def test_a_using_column_has_the_type_that_holds_both():
    sides = (stream("k", pa.decimal128(10, 2)), stream("k", pa.decimal128(12, 4)))
    plan = StreamJoin(
        *sides,
        on="kk",
        how="full",
        within=tumbling("kt", "kt", "1 s", delay="0 s"),
        suffixes=("_l", "_r"),
        instances=2,
    )
    assert plan._output_schema().field("kk").type == pa.decimal128(12, 4)


def test_a_band_beside_keys_of_two_types(tmp_path):
    on = [equi("lk", "rk"), band("lv", "rv", lower=0, upper=0)]
    sides = stream("l", pa.int32()), stream("r", pa.decimal128(9, 2))
    plan = StreamJoin(*sides, on=on, instances=3)
    query = Typed(tmp_path, plan.query(), "mnrt")
    query.run_keys(0, ([1, 2, 3], [D("1.00"), D("2.5"), D(3)]))
    assert {(row[1], row[4]) for row in query.output()} == {(0, 0), (2, 2)}


def test_the_hash_of_a_key_that_is_asked_for_is_that_of_the_wider_type():
    sides = stream("l", pa.int32()), stream("r", pa.decimal128(9, 2))
    (join,) = StreamJoin(*sides, on=equi("lk", "rk"), instances=3).query().operators
    key = pa.array([D("7.00")], pa.decimal128(12, 2))
    assert inspection._hash_of("7", join.account()) == int(hash_columns([key])[0]) >> 24
