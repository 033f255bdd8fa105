"""What the page chooses to show by itself, in a browser."""

from __future__ import annotations

import copy

import pytest
from playwright.sync_api import expect

from tests.unit.stories import report


def pressed(tab):
    return tab.locator("#operators button[aria-pressed=true]")


def test_of_a_chain_the_operator_that_does_the_work_is_shown(watch):
    """Here the first join gets a tuple a batch, as a join of two small tables does."""
    one = report(12, 8, operators=2)
    for entry in one["story"]["batches"]:
        entry["joins"][0]["received"] = [1, 0, 0, 0, 0, 0, 0, 0]
    with watch(one) as tab:
        expect(pressed(tab)).to_have_text("join 1")
        tab.get_by_role("button", name="join 0").click()
        expect(pressed(tab)).to_have_text("join 0")


def test_of_alike_operators_the_first_is_shown(watch):
    with watch(report(12, 8, operators=3)) as tab:
        expect(pressed(tab)).to_have_text("join 0")


def test_a_slow_first_batch_does_not_hide_the_others(watch):
    """It goes on above the chart, whose scale is that of the others."""
    plain = report(30, 4)
    slow = copy.deepcopy(plain)
    slow["story"]["batches"][0]["steps"]["route"] = 60.0
    with watch(plain) as tab:
        expect(tab.locator("#times text.above")).to_have_count(0)
    with watch(slow) as tab:
        expect(tab.locator("#times text.above")).to_have_count(1)
        expect(tab.locator("#times .legend")).to_contain_text("above the chart (maximum 1 min)")
        texts = tab.locator("#times .chart .frame g text").all_text_contents()
        assert texts[1:2] == ["0.5 s"]


def test_a_batch_without_tuples_has_no_busiest_instance(watch):
    one = report(12, 8)
    one["story"]["batches"][-1]["joins"][0]["received"] = [0] * 8
    with watch(one) as tab:
        tab.locator("[data-measure=received]").click()
        words = tab.locator("#load .words")
        expect(words).to_have_text("No instance received any tuple in batch 11.")


def test_the_plan_of_a_batch_comes_into_sight(watch):
    """The list scrolls by itself; the page stays where it is."""
    one = report(400, 8, hot=30)
    first = one["story"]["plans"][0]["batch"]
    with watch(one) as tab:
        item = tab.locator(f".plans [data-batch='{first}']").last
        tab.get_by_role("slider").fill(str(first))
        expect(item).to_have_class("here")
        inside = "item => item.offsetTop >= item.parentNode.scrollTop - 1"
        below = "item => item.offsetTop < item.parentNode.scrollTop + item.parentNode.clientHeight"
        assert item.evaluate(inside)
        assert item.evaluate(below)
        assert tab.evaluate("scrollY") == 0


def small(tab, title):
    """A small chart, by its title."""
    return tab.locator("#figures figure", has=tab.get_by_text(title, exact=False))


def labels(chart):
    return chart.locator(".frame g text").all_text_contents()


@pytest.mark.parametrize(
    ("lag_s", "axis"),
    [
        (0.4, ["0 ms", "200 ms", "400 ms"]),
        (45.0, ["0 s", "20 s", "40 s"]),
        (100.0, ["0 s", "50 s", "100 s"]),
        (3_960.0, ["0 min", "25 min", "50 min"]),
        (11_160.0, ["0 h", "2 h"]),
        (1e10, ["0 d", "50K d", "100K d"]),
    ],
)
def test_an_axis_of_durations_has_short_labels_in_one_unit(watch, lag_s, axis):
    one = report(12, 8)
    for entry in one["story"]["batches"]:
        join = entry["joins"][0]
        join["watermark"] = join["newest"] - lag_s * 1e6
    with watch(one) as tab:
        chart = small(tab, "Lag of the watermark")
        assert labels(chart) == axis
        inside = "texts => texts.every(text => text.getBBox().x >= 0)"
        assert chart.locator(".frame g text").evaluate_all(inside)


def test_a_chart_without_a_value_is_left_out(watch):
    """And so is a line of a chart, from its legend."""
    one = report(12, 8)
    nothing = {"watermark": None, "forecast_rows": None}
    for entry in one["story"]["batches"]:
        entry["joins"][0] |= nothing
    with watch(one) as tab:
        expect(small(tab, "Lag of the watermark")).to_be_hidden()
        expect(small(tab, "State rows").locator(".legend")).to_have_text("state rows")
    with watch(report(20, 8)) as tab:
        expect(small(tab, "Lag of the watermark")).to_be_visible()
        expect(small(tab, "State rows").locator(".legend")).to_have_text("state rowsforecast")


@pytest.mark.parametrize("width", [1_200, 1_000, 700, 400])
def test_the_line_of_state_has_room_for_all_of_it(watch, width):
    """A long name wraps, and nothing stands alone in the last row of a wide page."""
    one = report(12, 8)
    one["story"]["query"] = "clicks join purchases_of_the_last_twelve_months"
    one["story"]["batches"][-1]["joins"][0]["state_rows"] = 1_234_567_890
    with watch(one, size=(width, 900)) as tab:
        cells = tab.locator("#state dl > div")
        wide = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth).length"
        assert cells.evaluate_all(wide) == 0
        tops = cells.evaluate_all("cells => cells.map(cell => cell.offsetTop)")
        if width >= 700:
            assert len(set(tops)) == (1 if width == 1_200 else 2)
            assert tops.count(tops[-1]) > 1
