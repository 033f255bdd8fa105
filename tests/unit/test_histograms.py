"""Histograms, against their definition, however their values are divided."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine import InvalidRequest, StreamAggregate, last, top, windows
from joinengine.kernels.binning import BOUND, Bins, bins_of, merged
from joinengine.model.aggregation import Grouping, Panes
from joinengine.predicates.grouping import add_parts, add_tuples, compile_aggregate
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from tests.harness import LEFT
from tests.reference.histogram import in_bins

GREAT = float(np.nextafter(BOUND, 0))
doubles = (
    st.floats(-GREAT, GREAT)
    | st.floats(-100, 100)
    | st.integers(-9, 9).map(float)
    | st.sampled_from([0.0, -0.0, 5e-324, -5e-324, GREAT, -GREAT, 2.0**53, 2.0**53 + 2])
)
parts = st.lists(st.lists(doubles, max_size=9), min_size=1, max_size=4)


def shown(bins, histogram):
    rows = zip(*(one.tolist() for one in bins), strict=True)
    return tuple(row[1:] for row in rows if row[0] == histogram)


def column(values):
    return np.array(values, np.float64)


@example(parts=[[-GREAT, -1.0], [1.0, GREAT]], most=2)
@example(parts=[[-1e-300, 1e290]], most=3)
@example(parts=[[5e-324], [-0.0]], most=2)
@given(parts=parts, most=st.integers(2, 6))
def test_a_histogram_follows_from_its_values_alone(parts, most):
    values = [value for part in parts for value in part]
    whole = bins_of(np.zeros(len(values), np.int64), column(values), most)
    apart = [bins_of(np.zeros(len(part), np.int64), column(part), most) for part in parts]
    for ones in (apart, apart[::-1]):
        together = merged(Bins(*map(np.concatenate, zip(*ones, strict=True))), most)
        assert shown(together, 0) == shown(whole, 0)
    if values:
        assert shown(whole, 0) == in_bins(values, most)
    assert whole.counts.sum() == len(values)


@given(first=st.lists(doubles, min_size=1), second=st.lists(doubles, min_size=1))
def test_histograms_side_by_side_do_not_mix(first, second):
    numbers = np.repeat([3, 8], [len(first), len(second)])
    bins = bins_of(numbers, column([*first, *second]), 4)
    assert shown(bins, 3) == in_bins(first, 4)
    assert shown(bins, 8) == in_bins(second, 4)


@example([0.99, 1.5, 2.0], 2)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40), st.integers(2, 8))
def test_how_wide_a_bin_is(values, most):
    bins = bins_of(np.zeros(len(values), np.int64), column(values), most)
    assert len(bins.counts) <= most
    reach = max(values) - min(values)
    if len(set(values)) > most:
        assert (bins.uppers - bins.lowers < 2 * reach / (most - 1)).all()
    for edge, n in zip(bins.lowers, np.cumsum(bins.counts) - bins.counts, strict=True):
        assert sum(value < edge for value in values) == n


def test_few_values_are_told_apart():
    bins = bins_of(np.zeros(6, np.int64), column([-1.5, 0.1, 7.0, 7.0, 0.1, 3e9]), 4)
    assert bins.counts.tolist() == [1, 2, 2, 1]
    assert bins.lowers.tolist() == pytest.approx([-1.5, 0.1, 7, 3e9], abs=1e-6)


def test_what_has_no_bin():
    schema = pa.schema([("x", pa.float64())])
    values = [1.0, None, float("nan"), float("inf"), float("-inf"), 2e307, 3.0]
    made = compile_aggregate("h", "histogram(x, 2)", schema, [])
    grouping = Grouping((), (made,), Panes(10, 10), ("x",))
    for ones, bins in ((values, [(1.0, 1), (3.0, 1)]), (values[1:6], None)):
        tuples = pa.record_batch([pa.array(ones, pa.float64())], schema)
        parts = add_tuples(grouping, tuples, np.zeros(len(ones), np.int64))
        (found,) = add_parts(grouping, pa.concat_tables([parts, parts])).column("p0").to_pylist()
        twice = None if bins is None else [(value, 2 * n) for value, n in bins]
        assert (None if found is None else [(one["lower"], one["n"]) for one in found]) == twice


@pytest.mark.parametrize(
    "text", ["histogram(lv)", "histogram(lv, 1)", "histogram(lv, lk)", "histogram(lv, '8')"]
)
def test_the_number_of_bins(text):
    with pytest.raises(InvalidRequest, match="needs an expression and a number of bins from 2 to"):
        compile_aggregate("h", text, LEFT, [])
    with pytest.raises(InvalidRequest, match="needs an expression and a number of bins"):
        compile_aggregate("h", "histogram(lv, 65537)", LEFT, [])
    assert compile_aggregate("h", "histogram(lv, 65536)", LEFT, []).bins == 65536


def test_histograms_of_words_are_refused():
    schema = pa.schema([("word", pa.string())])
    with pytest.raises(InvalidRequest, match="needs numbers, found values of type VARCHAR"):
        compile_aggregate("h", "histogram(word, 8)", schema, [])


SOURCE = Stream(None, {"kind": "recorded", "path": "left"}, Reading(LEFT))


def aggregate(bins, **arguments):
    return StreamAggregate(
        SOURCE,
        by="lk",
        aggregates={"n": "count(*)", "h": f"histogram(lv, {bins})"},
        window=windows("lt", "1 minute", delay="0 s"),
        instances=2,
        **arguments,
    )


def test_no_group_has_the_greatest_histogram():
    with pytest.raises(InvalidRequest, match="top: expected one of the aggregates n, found 'h'"):
        aggregate(8, top=top(3, by="h"))


def test_a_checkpoint_knows_the_number_of_bins():
    """Partial results of another number could not be merged to what was asked for."""
    accounts = [aggregate(bins).query().operators[0].account() for bins in (8, 9)]
    assert accounts[0] != accounts[1]
    running = StreamAggregate(
        SOURCE,
        aggregates={"h": "histogram(lv, 8)"},
        window=last("lt", 3, delay="0 s"),
        instances=2,
    )
    (first, *_) = running.query().operators
    assert "histograms" in first.lines(["readings"], running._choice, {})[0]
