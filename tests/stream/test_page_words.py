"""What the page says of moments that are out of the ordinary, in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from joinengine.reporting.page import page
from tests.browser import shown
from tests.unit.stories import report

#: What stands where a figure would, if there is none.
UNKNOWN = "\u2013"


@pytest.fixture
def watch(chromium, tmp_path):
    """Opens the page of one report in a tab."""

    def opened(one, **context):
        file = tmp_path / "run.html"
        file.write_text(page({"mode": "report", "reports": [one]}))
        return shown(chromium, file, **context)

    return opened


def changed(operators=1, *, batches=12, joins=None, **entry):
    """A report whose last batch has other figures; `joins`: those of its first operator."""
    one = report(batches, 8, operators=operators)
    last = one["story"]["batches"][-1]
    last |= entry
    last["joins"][0] |= joins or {}
    return one


def state(tab, field):
    return tab.locator(f"#state [data-field={field}]")


def about(tab, term):
    """All that the line of state says under a term."""
    return tab.locator("#state dl > div", has=tab.locator(f"dt:text-is('{term}')"))


def test_a_watermark_ahead_of_the_tuples_lags_by_nothing(watch):
    newest = 800_000_000_000_000
    with watch(changed(joins={"newest": newest, "watermark": newest + 5_000_000})) as tab:
        expect(state(tab, "lag")).to_have_text("0 s")


def test_after_the_end_of_the_streams_there_is_no_watermark(watch):
    ended = {"watermark": None, "newest": None, "ended": True}
    with watch(changed(joins=ended)) as tab:
        mark = about(tab, "watermark")
        expect(mark).to_contain_text("all has been read")
        expect(mark).to_contain_text(f"lags {UNKNOWN}: the streams have ended")


def test_nothing_received_is_no_even_load(watch):
    """In the line of state, in the table of operators, and in the figures of the run."""
    one = changed(2, joins={"received": [0] * 8})
    for entry in one["story"]["batches"]:
        entry["joins"][1]["received"] = [0] * 8
    one["received_per_instance"] = [0] * 8
    with watch(one) as tab:
        expect(state(tab, "load_skew")).to_have_text(UNKNOWN)
        for row in tab.locator("#operators tbody tr").all():
            expect(row.locator("td").nth(3)).to_have_text(UNKNOWN)
        expect(tab.locator("#whole")).to_contain_text(f"load skew{UNKNOWN}; last half {UNKNOWN}")


def test_one_is_not_said_in_the_plural(watch):
    one = changed(input_rows=1)
    hot = one["story"]["batches"][-1]["joins"][0]["hot"]
    hot[0]["saved_rows"], hot[1]["saved_rows"] = 1, 2
    with watch(one) as tab:
        saved = tab.locator("#keys tbody td:last-child")
        expect(saved.nth(0)).to_have_text("1 tuple")
        expect(saved.nth(1)).to_have_text("2 tuples")
        assert about(tab, "batch").locator(".more").inner_text() == "1 row"
