"""The story of a run says what its records say, however much of it is merged."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing.reasons import Balance, Cause, KeyChange, Reason
from joinengine.balancing.statistics import Interval
from joinengine.driver.settings import Settings
from joinengine.layouts import choose
from joinengine.layouts.biclique import Bi
from joinengine.layouts.matrix import Dynamic
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement, Side
from joinengine.model.windows import within
from joinengine.reporting import story as stories
from joinengine.reporting.heads import head_of
from joinengine.reporting.run_report import run_report
from joinengine.reporting.story import Story
from joinengine.reporting.words import key_change_words, placement_words, plan_words
from joinengine.state.wished import Relayout
from tests.harness import LocalQuery, two_way
from tests.laws.cases import CHOICES, EACH_ROUTER, enough, relaxed, streams


def follow(query, **limits):
    """The story of a query's records."""
    told = Story(head_of(query.query, [query.choice]), query.query, **limits)
    for record in query.records:
        told.add(record)
    return told


def run_of(folder, layout, batches, window=None, **settings):
    query = LocalQuery(
        folder,
        two_way(window, enough(layout, 3)),
        layout,
        choice=CHOICES[layout],
        settings=Settings(**settings),
    )
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    for record in query.records:  # as Spark would have told
        record.trigger_s = record.seconds["elapsed_s"]
    return query


@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@given(batches=streams(), most=st.sampled_from([2, 3, 600]), resize=st.none() | st.integers(1, 4))
def test_sums_are_those_of_the_report(layout, batches, most, resize):
    """Counts add up over the entries; state is that of the last; nothing is lost by merging."""
    schedule = {} if resize is None else {resize: [Relayout(None, 4)]}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(stories, "MOST_ENTRIES", most)
        query = run_of(folder, layout, batches, schedule=schedule)
        whole = follow(query).whole()
    report = run_report(query.records)
    entries = whole["batches"]
    assert len(entries) <= most
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole
    assert [e["first"] for e in entries[1:]] == [e["last"] + 1 for e in entries[:-1]]
    assert (entries[0]["first"], entries[-1]["last"]) == (0, len(batches) - 1)
    for name in ("input_rows", "output_rows", "late_rows", "null_rows"):
        assert sum(entry[name] for entry in entries) == report[name], name
    joins = [entry["joins"][0] for entry in entries]
    received = [sum(column) for column in zip(*_padded(joins, "received"), strict=True)]
    told = report["joins"][0]
    assert sum(received) == told["input_rows"]
    assert sum(join["moved_rows"] for join in joins) == told["moved_rows"]
    last = query.records[-1].joins[0]
    assert (joins[-1]["stored"], joins[-1]["state_rows"]) == (last.state.held, last.state.rows)
    assert sum(plan["replan"] for plan in whole["plans"]) == told["replans"]


def _padded(joins, name):
    widest = max(len(join[name]) for join in joins)
    return [[*join[name], *[0] * (widest - len(join[name]))] for join in joins]


@relaxed
@given(batches=streams(), most=st.sampled_from([2, 3, 600]))
def test_who_takes_what_is_newest_has_the_whole(batches, most):
    """A viewer that replaces entries and plans as told, and starts anew after a merge."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(stories, "MOST_ENTRIES", most)
        query = run_of(folder, "mnrt", batches)
        told = Story(head_of(query.query, [query.choice]), query.query)
        seen, plans = {}, {}
        for record in query.records:
            if told.add(record):
                whole = told.whole()
                seen = {entry["first"]: entry for entry in whole["batches"]}
            else:
                corrected, entry = told.newest()["corrected"], told.newest()["batch"]
                if corrected is not None:
                    seen[corrected["first"]] = corrected
                seen[entry["first"]] = entry
            record.trigger_s += 0.5  # Spark tells it later
            for plan in told.newest()["plans"]:
                plans[plan["batch"], plan["join"]] = plan
        # Of the last batch nobody is told before the next one comes.
        entries = told.whole()["batches"]
        assert list(seen.values())[:-1] == entries[:-1]
        assert list(seen.values())[-1]["joins"] == entries[-1]["joins"]
        taken = sum(record.trigger_s for record in query.records)
        assert sum(entry["elapsed_s"] for entry in entries) == pytest.approx(taken, abs=1e-3)
        other = sum(entry["steps"]["other"] for entry in entries)
        assert other >= 0.5 * len(query.records)
        assert list(plans.values()) == told.whole()["plans"]


def test_a_story_stays_small(tmp_path):
    """Merging goes on until the limit holds."""
    query = run_of(tmp_path, "hash", [([(i, i, 0)], []) for i in range(40)])
    full, short = follow(query), follow(query, limit_bytes=12_000)
    assert len(full.whole()["batches"]) == 40
    assert len(json.dumps(short.whole()["batches"])) < 14_000
    assert short.whole()["batches_per_entry"] >= 4
    assert sum(entry["input_rows"] for entry in short.whole()["batches"]) == 40


def test_a_plan_is_told_in_words_with_what_it_moved(tmp_path):
    hot = [[(7, 100 * batch + i, 0) for i in range(90)] for batch in range(3)]
    query = run_of(tmp_path, "mnrt", [(left, [(i, i, 0) for i in range(40)]) for left in hot])
    whole = follow(query).whole()
    plan = whole["plans"][0]
    moved = query.records[1].joins[0].moved.rows
    assert moved
    assert plan["moved_rows"] == moved
    held = [entry["joins"][0]["hot"][0]["state_share"] for entry in whole["batches"]]
    words = (
        f"key 7 carried 71% of the load, 70% of this batch's rows and {held[0]:.0%} of the state"
    )
    assert plan["words"].startswith(f"{words}, at instance ")
    assert 0.6 < min(held) <= max(held) < 0.9
    assert f"; {moved} rows moved in " in plan["words"]
    assert plan["keys"][0]["key"] == "7"
    first, second = (entry["joins"][0]["hot"][0] for entry in whole["batches"][:2])
    assert (first["key"], first["done"], first["since"]) == ("7", "kept", None)
    assert (second["key"], second["since"]) == ("7", 1)
    assert second["done"] in ("split", "copied")
    assert len(second["homes"]) > 1


def test_a_change_of_the_number_of_instances_is_told(tmp_path):
    schedule = {1: [Relayout(None, 5)]}
    query = run_of(tmp_path, "hash", [([(i, i, 0)], []) for i in range(3)], schedule=schedule)
    (plan,) = follow(query).whole()["plans"]
    assert (plan["batch"], plan["cause"], plan["instances"]) == (0, "resize", [3, 5])
    assert "the number of instances changed from 3 to 5" in plan["words"]


def test_a_switch_is_told_and_the_key_lies_elsewhere_since(tmp_path):
    schedule = {2: [Relayout(choose("dynamic"))]}
    batches = [([(7, i, 0)], []) for i in range(4)]
    query = run_of(tmp_path, "hash", batches, schedule=schedule)
    whole = follow(query).whole()
    assert [plan["cause"] for plan in whole["plans"] if not plan["replan"]] == ["switch"]
    keys = [entry["joins"][0]["hot"][0] for entry in whole["batches"]]
    assert [(key["done"], key["since"]) for key in keys] == [
        *[("kept", None)] * 2,
        *[("any", 2)] * 2,
    ]


def test_the_forecast_is_told_once_it_is_known(tmp_path):
    window = within("lt", "rt", lower="0 us", upper="50 us", delay="0 us")
    batches = [([(i, 1000 * n + i, 100 * n + i) for i in range(20)],) * 2 for n in range(6)]
    batches = [(left, [(k, v + 500, t) for k, v, t in left]) for left, _ in batches]
    query = run_of(tmp_path, "hash", batches, window)
    joins = [entry["joins"][0] for entry in follow(query).whole()["batches"]]
    assert joins[0]["forecast_rows"] is None
    assert joins[-1]["forecast_rows"] > 0
    assert joins[-1]["forecast_bytes"] > joins[-1]["forecast_rows"]
    newest = replace(query.choice)
    rates = stories.rates_seen(query.records)
    ours = {side: flow for (_, side), flow in rates.items()}
    text = query.query.operators[0].lines(["l", "r"], newest, ours)
    said = [line.split("forecast: about ")[1] for line in text if "forecast: about " in line]
    assert all("copies of rows per second of event time" in line for line in said)
    told = sum(int(line.split(" rows")[0]) for line in said)
    assert joins[-1]["forecast_rows"] == pytest.approx(told, abs=1)


def test_after_a_resize_no_key_lies_as_at_the_start(tmp_path):
    """A key that is first seen after it may have moved; one that has not moved keeps its batch."""
    schedule = {2: [Relayout(None, 5)]}
    batches = [([(i % 8, 100 * n + i, 0) for i in range(n + 4)], []) for n in range(6)]
    query = run_of(tmp_path, "hash", batches, schedule=schedule)
    entries = follow(query).whole()["batches"]
    before = {key["key"]: key for key in entries[1]["joins"][0]["hot"]}
    assert {key["since"] for key in before.values()} == {None}
    for key in entries[-1]["joins"][0]["hot"]:
        stays = key["key"] in before and before[key["key"]]["homes"] == key["homes"]
        assert key["since"] == (None if stays else 2)
    assert any(key["since"] == 2 for key in entries[-1]["joins"][0]["hot"])


def test_a_key_that_stays_hot_is_not_forgotten(tmp_path, monkeypatch):
    """Of all keys that were ever hot those are forgotten that were not for longest."""
    monkeypatch.setattr(stories, "MOST_PLANS", 1)
    hot = [[(7, 1000 * batch + i, 0) for i in range(90)] for batch in range(3)]
    light = [[(100 + 60 * n + i, i, 0) for i in range(60)] for n in range(12)]
    batches = [(left, [(i, i, 0) for i in range(40)]) for left in hot]
    batches += [(hot[0], others) for others in light]
    query = run_of(tmp_path, "mnrt", batches)
    told = [entry["joins"][0]["hot"][0] for entry in follow(query).whole()["batches"][2:]]
    assert {key["key"] for key in told} == {"7"}
    assert None not in {key["since"] for key in told}


def test_an_aggregation_has_no_sides():
    placement = Placement(
        Mode.COPIED, (Fragment(0, 0, 1 << 23), Fragment(1, 1 << 23, U_ONE)), Side.LEFT
    )
    assert placement_words(placement, sided=False) == ("split", "split over instances 0, 1")
    assert "rows copied to each" in placement_words(placement)[1]


def test_a_plan_is_told_by_a_key_that_lives_elsewhere():
    """Not by a heavier one that only has other shares."""

    def half(*homes):
        cut = U_ONE // len(homes)
        parts = [Fragment(home, cut * n, cut * (n + 1)) for n, home in enumerate(homes)]
        return Placement(Mode.SPLIT, tuple(parts))

    other = Placement(Mode.SPLIT, (Fragment(0, 0, 5), Fragment(1, 5, U_ONE)))
    changes = (
        KeyChange(1, Cause.OVERLOAD, half(0, 1), other, 90.0, None),
        KeyChange(2, Cause.OVERLOAD, Placement.whole(0), half(2, 3), 10.0, None),
    )
    reason = Reason(Cause.OVERLOAD, Balance(60.0, 50.0), keys=changes)
    words = plan_words(reason, {1: "a", 2: "b"}, 2)
    assert words.startswith("key b carried 10% of the load, at instance 0; split over instances 2")
    assert key_change_words(changes[0]).startswith("its shares changed; split over")


@pytest.mark.parametrize(
    ("planner", "words"),
    [
        (
            Dynamic(),
            "the grid changed from 2 x 2 to 4 x 1 instances; the fullest instance held 430 rows, "
            "and should now hold 260",
        ),
        (
            Bi(),
            "the shape changed from 2 left and 2 right instances to 3 left and 1 right instances; "
            "the fullest instance held 400 rows, and should now hold 267",
        ),
    ],
)
def test_a_new_shape_is_told_with_the_old_one(planner, words):
    """800 left and 60 right tuples at four instances."""
    layout = planner.start(4)
    both = np.array([[800.0], [60.0]])
    copies = np.array(layout.shape[::-1])[:, None] if isinstance(planner, Dynamic) else 1
    state = np.hstack([both * copies, np.zeros((2, 3))])
    arrived = np.vstack([[800.0], [60.0]])
    interval = Interval(np.zeros(1, np.uint64), arrived, arrived, np.zeros(4), state=state)
    plan = planner.plan(layout, [interval])
    assert plan_words(plan.reason, {}, 4).split("; about")[0] == words
