"""Instructions and reports come out of the codec as they went in, and name no code."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.driver.settings import Settings
from joinengine.exchange.route import RoutePlan
from joinengine.lab.inline import inline_jobs, inline_tasks
from joinengine.layouts import LAYOUTS
from joinengine.model.keys import PAIR, Side
from joinengine.model.windows import tumbling, within
from joinengine.operators.base import OperatorTask
from joinengine.operators.spines import Stored
from joinengine.routing.moves import Moves
from joinengine.state.run import Run
from joinengine.state.upkeep import Changes
from joinengine.state.wished import Relayout
from joinengine.wire.codec import decode, encode
from joinengine.wire.reports import InstanceReport, OperatorReport, RouteReport
from tests.harness import LocalQuery, two_way
from tests.laws.cases import CHOICES, enough, feed, relaxed, skewed_batches


def same(one, other):
    """Equal values of equal types; arrays in dtype and shape too."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and (one == other).all()
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    if is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other


WINDOWS = {
    "interval": within("lt", "rt", lower="-300 us", upper="300 us", delay="1000 us"),
    "windows": tumbling("lt", "rt", size="200 us", delay="1000 us"),
}


#: Every layout has routers of its own; the window and lazy moves concern none of them.
CASES = [*((layout, "interval") for layout in LAYOUTS), ("mnrt", "windows"), ("bi-k", "windows")]


@pytest.mark.parametrize(("layout", "window"), CASES)
def test_what_travels_arrives(layout, window, tmp_path, monkeypatch):
    """All that a run sends: a full join that is resized, and gets a layout of another kind."""
    seen = []

    def checked(content, kind):
        value = decode(content, kind)
        assert same(value, sent[content])
        assert encode(value) == content
        assert b"joinengine." not in content
        seen.append(kind)
        return value

    sent = {}

    def noted(value):
        content = encode(value)
        sent[content] = value
        return content

    monkeypatch.setattr(inline_jobs, "encode", noted)
    for module in (inline_jobs, inline_tasks):
        monkeypatch.setattr(module, "decode", checked)
    other = CHOICES["bi" if layout == "mnrt" else "mnrt"]
    schedule = {1: (Relayout(instances=5),), 2: (Relayout(choice=other),)}
    query = LocalQuery(
        tmp_path,
        two_way(window=WINDOWS[window], instances=enough(layout, 3), how="full"),
        layout,
        choice=CHOICES[layout],
        settings=Settings(schedule=schedule, lazy=window == "windows"),
    )
    feed(query, skewed_batches(4))
    assert set(seen) == {RoutePlan, RouteReport, OperatorTask, OperatorReport}


class Mode(StrEnum):
    ONE = "one"
    TWO = "two words"


@dataclass(frozen=True)
class Small:
    number: float


@dataclass(frozen=True)
class Other:
    text: str | None


@dataclass(frozen=True)
class Lone:
    array: int


class Named(NamedTuple):
    words: np.ndarray
    some: np.ndarray | None


@dataclass(frozen=True)
class Everything:
    floats: tuple[float, ...]
    choice: Small | Other
    perhaps: Small | Other | None
    mode: Mode
    side: Side
    by_place: dict[tuple[int, Side], tuple[Small, ...]]
    by_name: dict[str, int]
    lone: Lone
    names: set[tuple[str, int]]
    named: Named
    schema: pa.Schema


numbers = st.floats() | st.integers(-(1 << 63), 1 << 64)
small = st.builds(Small, numbers)
others = st.builds(Other, st.none() | st.text())
arrays = st.builds(
    lambda kind, shape, start: (
        (np.arange(start, start + math.prod(shape)) % 2).astype(kind).reshape(shape)
    ),
    st.sampled_from(["u8", "i8", "f8", "u1", "?", "u2"]),
    st.lists(st.integers(0, 4), min_size=1, max_size=2).map(tuple),
    st.integers(0, 3),
)


@relaxed
@given(
    value=st.builds(
        Everything,
        floats=st.lists(numbers).map(tuple),
        choice=small | others,
        perhaps=st.none() | small | others,
        mode=st.sampled_from(Mode),
        side=st.sampled_from(PAIR),
        by_place=st.dictionaries(
            st.tuples(st.integers(), st.sampled_from(PAIR)), st.lists(small).map(tuple)
        ),
        by_name=st.dictionaries(st.sampled_from(["array", "[]"]) | st.text(), st.integers()),
        lone=st.builds(Lone, st.integers()),
        names=st.sets(st.tuples(st.text(), st.integers())),
        named=st.builds(Named, arrays, st.none() | arrays),
        schema=st.just(pa.schema([pa.field("a", pa.timestamp("us", "UTC"), False)])),
    )
)
def test_any_value_arrives(value):
    assert same(decode(encode(value), Everything), value)


@st.composite
def some_runs(draw):
    """Runs by name, some without times, and with word ranges up to the end of all words."""
    maybe = st.none() | st.sampled_from([-(2**63), 0, 2**63 - 1]) | st.integers(-(2**62), 2**62)
    whole = st.integers(0, 2**40)
    ends = st.lists(st.integers(0, 2**64), unique=True, max_size=6).map(sorted)
    runs = st.builds(
        Run,
        *(st.sampled_from("abc"), st.integers(0, 9), st.sampled_from(Side)),
        *(whole, whole, whole, whole, whole),
        *(maybe, maybe, maybe, maybe),
        ends.map(lambda some: tuple(zip(some[::2], some[1::2], strict=False))),
        whole,
    )
    return {run.ident: run for run in draw(st.lists(runs, max_size=6))}


pairs = st.lists(st.integers(0, 2**40), min_size=2, max_size=2)
instances = st.builds(
    InstanceReport,
    *(pairs, pairs, pairs),
    *[st.integers(0, 2**60)] * 5,
    st.floats(0, 1e6),
    st.lists(st.floats(0, 1e6), max_size=6).map(tuple),
)


@relaxed
@given(some_runs(), st.dictionaries(st.integers(0, 2**16), instances, max_size=4))
def test_runs_and_instances_arrive(runs, reports):
    report = OperatorReport(3, dict(reports), {"state": Changes(runs)})
    again = decode(encode(report), OperatorReport)
    assert same(again, report)
    assert [*again.changes["state"].runs] == [*runs]
    assert all(type(run.side) is Side for run in again.changes["state"].runs.values())
    spread = {}
    for run in runs.values():
        spread[run.instance, run.side] = (*spread.get((run.instance, run.side), ()), run)
    stored = Stored(spread, Moves(), None, (0,))
    assert same(decode(encode(stored), Stored), stored)


def test_arrays_arrive_read_only():
    arrived = decode(encode(Named(np.arange(3), None)), Named)
    with pytest.raises(ValueError, match="read-only"):
        arrived.words[0] = 1


@pytest.mark.parametrize("content", [b"", b"{}", pickle.dumps(Small(1.0))])
def test_other_content_is_refused(content):
    with pytest.raises(ValueError, match="this version of joinengine"):
        decode(content, Small)


def test_a_value_that_is_not_plain_is_refused():
    with pytest.raises(TypeError, match="not a value that the codec knows"):
        encode(Other(object()))
