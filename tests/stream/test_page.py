"""The page of a run in a browser: its figures are those of the story, its texts stay texts."""

from __future__ import annotations

import math

import pytest
from playwright.sync_api import expect

from tests.browser import PHONE, faint_texts, shades
from tests.unit.stories import report

BATCHES = 40
REPORT = report(BATCHES, 8, plans=200, resize_to=10)
STORY = REPORT["story"]
HOSTILE = """</script><img src=x onerror="alert(1)"><b>'&amp;"""
#: Figures of the line of state that are an operator's, and those that are the batch's.
OF_JOIN = ("layout", "instances", "watermark", "state_rows", "state_bytes", "forecast_rows")


def told(tab, field):
    """The exact value of a figure in the line of state."""
    return tab.locator(f"#state [data-field={field}]").get_attribute("data-value")


def the_batch(tab):
    return tab.locator("#state [data-field=batch]")


def go(tab, batch):
    """Move the slider to the entry of a batch, as a reader does who drags it."""
    tab.get_by_role("slider").fill(str(batch))
    expect(the_batch(tab)).to_have_attribute("data-value", str(batch))


def bars(tab):
    values = "bars => bars.map(bar => Number(bar.dataset.value))"
    return tab.locator("#load rect[data-instance]").evaluate_all(values)


def check_moment(tab, entry):
    """All that stands in the line of state, the bars and the hot keys is that of an entry."""
    join = entry["joins"][0]
    for field in OF_JOIN:
        known = "" if join[field] is None else str(join[field])
        assert told(tab, field) == known, field
    assert told(tab, "batch") == str(entry["last"])
    rate = entry["input_rows"] / entry["elapsed_s"]
    assert math.isclose(float(told(tab, "rows_per_s")), rate)
    late = sum(one["late_rows"] for one in STORY["batches"] if one["last"] <= entry["last"])
    assert told(tab, "late_rows") == str(late)
    assert bars(tab) == join["busy"]
    waiting = tab.locator("#topics [data-field=behind_rows]")
    assert waiting.get_attribute("data-value") == str(entry["behind_rows"])
    parts = tab.locator("#topics tbody tr td:nth-child(3)").all_inner_texts()
    assert [int(text.replace(",", "")) for text in parts] == [
        one["rows"] for one in entry["behind"]
    ]
    hot = tab.locator("#keys tbody tr")
    keys = hot.evaluate_all("rows => rows.map(row => [row.dataset.key, Number(row.dataset.rows)])")
    assert keys == [[one["key"], one["rows"]] for one in join["hot"]]


def test_it_opens_at_the_last_batch(watch):
    with watch(REPORT) as tab:
        check_moment(tab, STORY["batches"][-1])
        lag = STORY["batches"][-1]["joins"][0]
        assert float(told(tab, "lag")) == (lag["newest"] - lag["watermark"]) / 1e6


def test_the_slider_goes_back_in_time(watch):
    with watch(REPORT) as tab:
        for batch in (10, 0, 31):  # in two of them tuples are late
            go(tab, batch)
            check_moment(tab, STORY["batches"][batch])


def test_arrow_keys_go_from_batch_to_batch(watch):
    with watch(REPORT) as tab:
        for key, batch in (("ArrowLeft", 38), ("ArrowLeft", 37), ("ArrowRight", 38)):
            tab.keyboard.press(key)
            expect(the_batch(tab)).to_have_attribute("data-value", str(batch))


def test_a_click_into_a_chart_chooses_the_batch_under_the_pointer(watch):
    with watch(REPORT) as tab:
        chart = tab.locator("#times svg.chart")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        tab.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
        expect(tab.locator(".tip")).to_contain_text("batch ")
        named = tab.locator(".tip strong").inner_text()
        assert 10 < int(told(tab, "batch")) < 30
        assert named.startswith(f"batch {told(tab, 'batch')} ")


def test_a_link_keeps_the_view(watch):
    with watch(REPORT) as tab:
        go(tab, 12)
        tab.locator("[data-measure=stored]").click()
        tab.wait_for_url("**#batch=12&measure=stored")
        other = tab.context.new_page()
        other.goto(tab.url)
        expect(the_batch(other)).to_have_attribute("data-value", "12")
        assert bars(other) == STORY["batches"][12]["joins"][0]["stored"]
        other.close()


def test_what_a_batch_waits_for_comes_first(watch):
    """Seconds that instances worked; what they received and hold stands beside it."""
    with watch(REPORT) as tab:
        first = tab.locator("[data-measure]").first
        expect(first).to_have_text("busy")
        expect(first).to_have_attribute("aria-pressed", "true")
        busy = STORY["batches"][-1]["joins"][0]["busy"]
        assert math.isclose(float(told(tab, "busy_skew")), max(busy) * len(busy) / sum(busy))


@pytest.mark.parametrize("measure", ["received", "stored"])
def test_bars_show_what_the_reader_asks_for(watch, measure):
    with watch(REPORT) as tab:
        tab.locator(f"[data-measure={measure}]").click()
        expect(tab.locator(f"[data-measure={measure}]")).to_have_attribute("aria-pressed", "true")
        assert bars(tab) == STORY["batches"][-1]["joins"][0][measure]


def test_hovering_tells_the_figure_of_a_bar(watch):
    with watch(REPORT) as tab:
        tab.locator("[data-measure=received]").click()
        tab.locator("#load rect[data-instance='3']").hover()
        load = STORY["batches"][-1]["joins"][0]["received"][3]
        expect(tab.locator(".tip")).to_be_visible()
        expect(tab.locator(".tip")).to_contain_text("instance 3")
        expect(tab.locator(".tip")).to_contain_text(f"{load:,}")


def test_the_keyboard_reaches_the_same_figures(watch):
    with watch(REPORT) as tab:
        tab.locator("[data-measure=received]").click()
        tab.locator("#load svg.bars").focus()
        tab.keyboard.press("ArrowUp")
        expect(tab.locator(".tip")).to_be_visible()
        expect(tab.locator(".tip")).to_contain_text("instance 1")
        load = STORY["batches"][-1]["joins"][0]["received"][1]
        expect(tab.locator(".tip")).to_contain_text(f"{load:,}")


def test_plans_are_told_in_words_the_newest_first(watch):
    with watch(REPORT) as tab:
        items = tab.locator("#plans li[data-batch]")
        assert len(STORY["plans"]) > 3
        expect(items).to_have_count(len(STORY["plans"]))
        for plan, item in zip(reversed(STORY["plans"]), items.all(), strict=True):
            assert item.get_attribute("data-batch") == str(plan["batch"])
            assert plan["words"] in item.inner_text()


def test_each_operator_of_a_chain_has_its_figures(watch):
    chain = report(12, 8, operators=3)
    with watch(chain) as tab:
        tab.get_by_role("group", name="operator").get_by_role("button").nth(2).click()
        last = chain["story"]["batches"][-1]["joins"][2]
        expect(tab.locator("#state [data-field=state_rows]")).to_have_attribute(
            "data-value", str(last["state_rows"])
        )
        assert bars(tab) == last["busy"]


def test_merged_batches_show_a_batch_on_average(watch):
    merged = report(64, 8, merged=4)
    with watch(merged) as tab:
        entry = merged["story"]["batches"][-1]
        assert told(tab, "batch") == "63"
        assert bars(tab) == [load / 4 for load in entry["joins"][0]["busy"]]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_can_be_read(watch, dark):
    with watch(REPORT, dark=dark) as tab:
        paper = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        assert (sum(tab.evaluate(paper)) < 3 * 128) == dark
        assert faint_texts(tab) == []


@pytest.mark.parametrize("instances", [8, 1_000])
def test_a_phone_needs_no_sideways_scrolling(watch, instances):
    with watch(report(10, instances, operators=2, key="k" * 64), size=PHONE, has_touch=True) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") == PHONE[0]
        assert told(tab, "batch") == "9"


def test_a_thousand_instances_are_a_heat_map(watch):
    many = report(12, 1_000)
    with watch(many) as tab:
        loads = many["story"]["batches"][-1]["joins"][0]["busy"]
        assert bars(tab) == []
        rows = tab.locator("#load tr[data-instance]")
        top = rows.evaluate_all("rows => rows.map(row => Number(row.dataset.value))")
        assert top == sorted(loads, reverse=True)[: len(top)] and len(top) == 10
        assert shades(tab.locator("#load .heat canvas")) > 10


def test_a_key_of_markup_stays_text(watch):
    """Nothing of it runs or is loaded: `shown` would have noticed a dialog or a request."""
    with watch(report(12, 8, key=HOSTILE)) as tab:
        go(tab, 5)
        first = tab.locator("#keys tbody tr").first
        assert first.get_attribute("data-key") == HOSTILE
        expect(first).to_contain_text(HOSTILE)
        expect(tab.locator('img, main b:text-is("\'&")')).to_have_count(0)
        expect(tab.locator("#plans li[data-batch]").last).to_contain_text(HOSTILE)


def test_hidden_keys_are_shown_by_their_hashes(watch):
    hidden = report(12, 8, show_keys=False)
    with watch(hidden) as tab:
        hashes = [one["hash"] for one in hidden["story"]["batches"][-1]["joins"][0]["hot"]]
        rows = tab.locator("#keys tbody tr")
        assert rows.evaluate_all("rows => rows.map(row => row.dataset.hash)") == hashes
        assert rows.evaluate_all("rows => rows.map(row => row.dataset.key ?? null)") == [None] * 5
        expect(rows.first).to_contain_text(hashes[0])


def test_figures_that_are_missing_are_no_error(watch):
    """A run that was stopped before its first batch; a report of folders of one's own."""
    for story in (STORY | {"batches": [], "plans": []}, STORY):
        one = {"format": 2, "query": None, "story": story}
        with watch(one) as tab:
            expect(tab.locator("main")).to_be_visible()


def test_how_the_run_ended_stands_there(watch):
    with watch(report(12, 8, ended="failed")) as tab:
        expect(tab.locator("body")).to_contain_text("join 0 failed: run 17 is lost")
