"""Tables that somebody alters while a query delivers to them: refused before they are harmed."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.types import LongType, StringType

from joinengine.model.errors import JoinEngineError
from tests.lakes import DeltaLake, IceLake, deliver, table_of

NUMBERS = range(10)


def another_schema(lake):
    rows = table_of(NUMBERS, lake.schema).drop_columns(["s"])
    write_deltalake(lake.place, rows, mode="overwrite", schema_mode="overwrite")


def another_type(lake):
    rows = table_of(NUMBERS, lake.schema)
    rows = rows.set_column(1, "s", rows["a"])
    write_deltalake(lake.place, rows, mode="overwrite", schema_mode="overwrite")


def another_partitioning(lake):
    rows = table_of(NUMBERS, lake.schema)
    asked = {"mode": "overwrite", "schema_mode": "overwrite", "partition_by": ["s"]}
    write_deltalake(lake.place, rows, **asked)


def a_constraint(lake):
    DeltaTable(lake.place).alter.add_constraint({"positive": "a >= 0"})


def evolve(lake, change):
    with lake.opened().update_schema(allow_incompatible_changes=True) as update:
        change(update)


def a_column_less(lake):
    evolve(lake, lambda update: update.delete_column("s"))


def another_name(lake):
    evolve(lake, lambda update: update.rename_column("s", "t"))


def a_column_that_needs_values(lake):
    evolve(lake, lambda update: update.add_column("more", LongType(), required=True))


def a_column_more(lake):
    evolve(lake, lambda update: update.add_column("more", StringType()))


ALTERED = [
    (DeltaLake, another_schema, "has no column s"),
    (DeltaLake, another_type, "column s of the table .* is long, but that of the results is str"),
    (DeltaLake, another_partitioning, "the partitions of table .* have changed"),
    (DeltaLake, a_constraint, "asks of its writers delta.constraints.positive"),
    (IceLake, a_column_less, "has no column s"),
    (IceLake, another_name, "has no column s; its columns are a, t, at"),
    (IceLake, a_column_that_needs_values, "column more of the table .* is NOT NULL, and the resu"),
]


@pytest.mark.parametrize(("kind", "change", "said"), ALTERED)
def test_a_table_that_no_longer_takes_the_results_is_refused(kind, change, said, tmp_path):
    lake = kind(tmp_path)
    sink, generation = deliver(lake, NUMBERS)
    change(lake)
    commits = lake.commits()
    with pytest.raises(JoinEngineError, match=said):
        sink.deliver(1, lake.stage(sink, generation, range(10, 20)), generation)
    assert lake.commits() == commits


def test_a_column_more_is_null(tmp_path):
    lake = IceLake(tmp_path)
    sink, generation = deliver(lake, NUMBERS)
    a_column_more(lake)
    sink.deliver(1, lake.stage(sink, generation, range(10, 20)), generation)
    table = lake.opened().scan().to_arrow()
    assert table.num_rows == table["more"].null_count == 20
