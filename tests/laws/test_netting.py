"""Changes that are applied to a table by key, batch by batch, leave their net there."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.results.netting import DELETE, INSERT, OP, UPDATE, KeyConflict, net_by_key
from tests.laws.cases import tries

ROWS = pa.schema([("a", pa.int64()), ("v", pa.float64()), ("B b", pa.string())])
CHANGES = ROWS.append(pa.field("_change", pa.int64()))
KEYS = ("a", "B b")


def table_of(rows, schema=CHANGES):
    columns = list(zip(*rows, strict=True)) or [[]] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema)


class Table:
    """A table by key in memory."""

    def __init__(self):
        self.rows = {}

    def read(self, near):
        content = table_of([(key[0], v, key[1]) for key, v in self.rows.items()], ROWS)
        for name, (low, high) in near.items():
            field = pc.field(name)
            content = content.filter((field >= pc.scalar(low)) & (field <= pc.scalar(high)))
        return content

    def apply(self, changes):
        for row in net_by_key(table_of(changes), KEYS, self.read).to_pylist():
            key, value, op = (row["a"], row["B b"]), row["v"], row[OP]
            assert (key in self.rows) == (op in {UPDATE, DELETE})
            assert op in {INSERT, UPDATE, DELETE}
            if op == DELETE:
                del self.rows[key]
            else:
                self.rows[key] = value


keys = st.tuples(st.none() | st.integers(-2, 2), st.none() | st.sampled_from("xy"))
values = st.none() | st.sampled_from([0.5, 1.5, float("inf")])


@tries(40)
@given(st.lists(st.lists(st.tuples(keys, st.booleans(), values), max_size=12), max_size=5))
def test_a_table_by_key_is_the_net_of_its_changes(batches):
    """In a batch a row may come and go several times, in any order, and as several at once."""
    truth, table, rng = {}, Table(), random.Random(str(batches))
    for steps in batches:
        changes = []
        for (a, b), deletes, value in steps:
            if (a, b) in truth:
                changes.append((a, truth.pop((a, b)), b, -1))
            if not deletes:
                truth[a, b] = value
                changes += [(a, value, b, 3), (a, value, b, -2)]
        rng.shuffle(changes)
        table.apply(changes)
        assert table.rows == truth


@pytest.mark.parametrize(
    ("there", "changes", "said"),
    [
        ([], [(1, 0.5, "x", 1), (1, 1.5, "x", 1)], "2 rows are left of key a = 1, B b = 'x'; "),
        ([], [(1, 0.5, "x", 3)], "3 rows are left of key a = 1"),
        ([(1, 0.5, "x", 1)], [(1, 0.5, "x", -2)], "2 rows are taken back of key a = 1"),
        ([(1, 0.5, "x", 1)], [(1, 1.5, "x", 1)], "another row of key a = 1, B b = 'x' is there"),
        ([(1, 0.5, "x", 1)], [(1, 1.5, "x", -1)], "the row of key a = 1, .* is not there"),
        ([], [(None, 1.5, None, -1)], "the row of key a = None, B b = None that is taken back"),
    ],
)
def test_what_a_table_by_key_cannot_take(there, changes, said):
    table = Table()
    table.apply(there)
    before = Counter(table.rows)
    with pytest.raises(KeyConflict, match=said):
        table.apply(changes)
    with pytest.raises(KeyConflict, match=r"key \(a, B b\)"):
        net_by_key(table_of(changes), KEYS, table.read, shown=False)
    assert Counter(table.rows) == before
