"""Buckets and truncated values of Iceberg: each row where a reader of its partition looks."""

from __future__ import annotations

import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform, DayTransform, TruncateTransform
from pyiceberg.types import LongType, StringType

from joinengine.kernels.murmur import buckets
from joinengine.model.errors import JoinEngineError
from tests.lakes import IceLake, deliver, rows_of, table_of


@pytest.fixture
def ice(tmp_path):
    return IceLake(tmp_path)


SIZED = [
    ("a", BucketTransform(4)),
    ("s", BucketTransform(3)),
    ("at", BucketTransform(5)),
    ("a", TruncateTransform(10)),
    ("s", TruncateTransform(1)),
]


@pytest.mark.parametrize(("column", "transform"), SIZED, ids=str)
def test_buckets_and_truncated_values(ice, column, transform):
    """The partition of each row is that of the package, which finds a value in its file alone."""
    ice.spec = ((column, transform, "part"), ("at", DayTransform(), "at_day"))
    ice.again()
    deliver(ice, range(-15, 10), range(10, 30))
    assert ice.rows() == rows_of(table_of(range(-15, 30)))
    kind = ice.opened().schema().find_field(column).field_type
    part_of = transform.transform(kind)
    seen, files = set(), Counter()
    for one in ice.opened().scan().plan_files():
        batch = re.search(r"part-(\d+)-", one.file.file_path)[1]
        files[batch, str(one.file.partition)] += 1
        rows = pq.read_table(one.file.file_path.removeprefix("file://"))
        assert {part_of(value) for value in rows[column].to_pylist()} == {one.file.partition[0]}
        seen.add(one.file.partition[0])
    assert len(seen) > 1
    assert max(files.values()) == 2  # each of two tasks has one
    found = ice.opened().scan(row_filter=f"{column} = {'1' if column == 'a' else repr('s1')}")
    if column != "at":
        assert found.to_arrow().num_rows == (1 if column == "a" else 15)
        assert len(list(found.plan_files())) < len(list(ice.opened().scan().plan_files()))


def test_buckets_that_have_changed_are_refused(ice):
    """The folder of a staged file says of how many buckets its number is."""
    ice.spec = (("a", BucketTransform(4), "part"),)
    ice.again()
    sink, generation = deliver(ice, range(10))
    files = ice.stage(sink, generation, range(10, 20))
    with ice.opened().update_spec() as update:
        update.remove_field("part")
        update.add_field("a", BucketTransform(8), "more")
    with pytest.raises(JoinEngineError, match=r"the partitions of table .* have changed"):
        sink.deliver(1, files, generation)


INTEGERS = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=30)
@given(
    texts=st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=20), max_size=8),
    numbers=st.lists(st.none() | INTEGERS, max_size=8),
    first=st.integers(0, 3),
)
def test_buckets_are_those_of_the_package(texts, numbers, first):
    for values, kind, of in ((texts, pa.string(), StringType()), (numbers, pa.int64(), LongType())):
        column = pa.array(values, kind).slice(first)
        bucket = BucketTransform(1000).transform(of)
        assert buckets(column, 1000).to_pylist() == [bucket(one) for one in column.to_pylist()]
