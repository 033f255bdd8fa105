"""What the page says of moments that are out of the ordinary, in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.unit.stories import report

#: What stands where a figure would, if there is none.
UNKNOWN = "\u2013"


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
        expect(mark).to_contain_text("all data has been read")
        expect(mark).to_contain_text("the streams have ended")
        expect(mark).not_to_contain_text("lags")


def test_inputs_are_named_by_their_sides(watch):
    """Those of a self-join have one name."""
    one = changed(2)
    one["story"]["operators"][0]["inputs"] = ["parquet trades", "parquet trades"]
    with watch(one) as tab:
        expect(tab.locator("#state .about")).to_contain_text(
            "left parquet trades, right parquet trades · l_orderkey = o_orderkey"
        )


def test_nothing_received_is_no_even_load(watch):
    """In the line of state, in the table of operators, and in the figures of the run."""
    one = changed(2, joins={"received": [0] * 8})
    for entry in one["story"]["batches"]:
        entry["joins"][1]["received"] = [0] * 8
    one["received_per_instance"] = [0] * 8
    with watch(one) as tab:
        expect(state(tab, "load_skew")).to_have_text(UNKNOWN)
        for row in tab.locator("#operators tbody tr").all():
            expect(row.locator("td").nth(4)).to_have_text(UNKNOWN)
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


def hot_words(tab):
    return tab.locator("#keys .words").first


def test_the_busiest_instance_is_compared_with_hash(watch):
    """Nothing is praised that does no better; nothing is said where nothing was received."""
    now = "The busiest instance received 100 tuples in this batch; under hash it would have been "
    for hashed, more in (
        (250, "250 (modelled), 2.50 times as many."),
        (100, "100 (modelled)."),
        (80, "80 (modelled)."),
    ):
        with watch(changed(joins={"greatest": 100, "hash_greatest": hashed})) as tab:
            expect(hot_words(tab)).to_have_text(now + more)
            expect(tab.locator("#keys th:last-child").first).to_contain_text("tuples fewer")
    with watch(changed(joins={"greatest": 1, "hash_greatest": None})) as tab:
        expect(hot_words(tab)).to_contain_text(
            "received 1 tuple in this batch; this layout does not count"
        )
    with watch(changed(joins={"received": [0] * 8, "greatest": 0, "hash_greatest": 0})) as tab:
        expect(hot_words(tab)).to_be_empty()


def test_the_busiest_of_merged_batches_is_that_of_a_batch(watch):
    one = report(16, 8, merged=4)
    one["story"]["batches"][-1]["joins"][0] |= {"greatest": 400, "hash_greatest": 600}
    with watch(one) as tab:
        expect(hot_words(tab)).to_contain_text("received 100 tuples in a batch (means over")
        expect(hot_words(tab)).to_contain_text("150 (modelled), 1.50 times")


def test_a_condition_without_keys_has_no_hot_keys(watch):
    one = report(12, 8)
    one["story"]["operators"][0]["keyed"] = False
    with watch(one) as tab:
        expect(tab.locator("#keys .words:not(:empty)")).to_have_text("The condition has no keys.")
        expect(tab.locator("#keys table")).to_be_hidden()


def test_a_plan_is_made_after_its_batch(watch):
    one = report(12, 8)
    plan = one["story"]["plans"][-1]["batch"]
    with watch(one) as tab:
        go = tab.locator("#plans li[data-batch] button").first
        expect(go).to_have_text(f"after batch {plan}")
        go.click()
        expect(state(tab, "batch")).to_have_attribute("data-value", str(plan))


def test_a_report_opens_at_the_last_batch_with_rows(watch):
    one = report(12, 8)
    for entry in one["story"]["batches"][-2:]:
        entry["input_rows"] = 0
    batch = "[data-field=batch]"
    with watch(one) as tab:
        expect(tab.locator(batch)).to_have_attribute("data-value", "9")
        slider, end = tab.get_by_role("slider"), tab.get_by_role("button", name="to the end")
        expect(slider).to_have_attribute("max", "11")
        end.click()
        expect(tab.locator(batch)).to_have_attribute("data-value", "11")
        expect(end).to_be_disabled()
        slider.fill("10")
        expect(tab.locator(batch)).to_have_attribute("data-value", "10")
        expect(end).to_be_enabled()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("the query failed: run 17 is lost", "The query has failed at 07:00:07 UTC: run 17"),
        ("run 17 is lost", "The query has failed at 07:00:07 UTC: run 17"),
        ("the query failed", "The query has failed at 07:00:07 UTC."),
        ("the query needs more", "The query has failed at 07:00:07 UTC: it needs more"),
    ],
)
def test_the_end_is_told_once(watch, words, told):
    one = report(12, 8, ended="failed")
    one["story"]["ended"] |= {"words": words, "at": 1_732_258_807.0}
    with watch(one) as tab:
        expect(tab.locator("[data-field=banner]")).to_contain_text(told)


def test_a_run_without_a_batch_waits_for_none(watch):
    one = report(12, 8)
    one["story"] |= {"batches": [], "plans": []}
    with watch(one) as tab:
        expect(tab.get_by_text("No batch was computed.")).to_be_visible()


def test_each_part_of_the_work_is_explained(watch):
    """An operator of one's own may have parts that the page does not know."""
    known = "read route exchange open move sort probe store result merge count watch emulated"
    with watch(changed(work=dict.fromkeys([*known.split(), "ours"], 0.1))) as tab:
        rows = tab.locator("#times table").last.locator("tbody tr")
        expect(rows).to_have_count(14)
        told = rows.evaluate_all(
            "rows => rows.map(row => [row.dataset.step, row.cells[3].innerText])"
        )
        assert sorted(name for name, meaning in told if not meaning) == ["ours"]


def test_a_report_plays_to_its_end_and_stops(watch):
    one = report(5, 8)
    for entry in one["story"]["batches"][2:]:
        entry["input_rows"] = 0
    with watch(one) as tab:
        expect(state(tab, "batch")).to_have_attribute("data-value", "1")
        tab.get_by_role("button", name="play").click()
        expect(state(tab, "batch")).to_have_attribute("data-value", "4", timeout=30_000)
        expect(tab.get_by_role("button", name="play")).to_be_visible()
