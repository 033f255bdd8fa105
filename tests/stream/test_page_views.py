"""What the page chooses to show by itself, in a browser."""

from __future__ import annotations

import copy

import pytest
from playwright.sync_api import expect

from joinengine.reporting.page import page
from tests.browser import shown
from tests.unit.stories import report


@pytest.fixture
def watch(chromium, tmp_path):
    """Opens the page of one report in a tab."""

    def opened(one):
        file = tmp_path / "run.html"
        file.write_text(page({"mode": "report", "reports": [one]}))
        return shown(chromium, file)

    return opened


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
        expect(tab.locator("#times .legend")).to_contain_text("above the chart, to 1 min at most")
        texts = tab.locator("#times .chart .frame g text").all_text_contents()
        assert "500 ms" in texts


def test_a_batch_without_tuples_has_no_busiest_instance(watch):
    one = report(12, 8)
    one["story"]["batches"][-1]["joins"][0]["received"] = [0] * 8
    with watch(one) as tab:
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
