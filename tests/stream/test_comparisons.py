"""Layouts side by side in a browser: the page of `compare` and `make bench`."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from joinengine.lab.comparison.hues import hues_of
from joinengine.lab.comparison.tables import _values
from joinengine.reporting.page import page
from tests.browser import PHONE, faint_texts, shades, shown
from tests.unit.stories import report

pytestmark = pytest.mark.slow

VERDICT = ["zipf 1.2: <b>key 225</b> carried 23% of the load; mnrt divided it over 3 instances"]
#: What the table says of a run: the attribute that holds it, and its field among those of the table
#: of the command line.
FIELDS = {
    "layout": "layout",
    "zipf": "zipf",
    "slowest_instance_s": "slowest_instance_s",
    "elapsed_s": "elapsed_s",
    "rows_per_s": "rows_per_s",
    "first": "first",
    "later": "later",
    "stored": "stored",
    "sent": "sent",
    "moved_rows": "moved_rows",
    "replans": "replans",
    "late_rows": "late_rows",
    "valid": "valid",
}


def run(layout, *, seconds, zipf=1.2, instances=8, batches=15, **changed):
    """A report of a made-up run whose batches waited that many seconds."""
    made = report(batches, instances, layout=layout) | {"zipf": zipf, "slowest_instance_s": seconds}
    return made | changed


RUNS = [
    run("hash", seconds=17.0, valid=True),
    run("mnrt", seconds=8.6, valid=None),
    run("dynamic", seconds=9.25, valid=False, late_rows=1_234),
]


@pytest.fixture
def comparison(chromium, tmp_path):
    """Opens the page of reports in a tab."""

    def opened(reports, **context):
        file = tmp_path / "compare.html"
        hues = hues_of(report["layout"] for report in reports)
        content = {"reports": reports, "verdict": VERDICT, "hues": hues}
        file.write_text(page({"mode": "report", **content}))
        return shown(chromium, file, **context)

    return opened


def column(tab, field):
    """The exact values of a column of the table, from the top."""
    cells = tab.locator(f"tbody [data-field={field}]")
    return cells.evaluate_all("cells => cells.map(cell => cell.dataset.value)")


def exact(told):
    """A value as JavaScript holds it."""
    return float(told) if told.replace(".", "", 1).isdigit() else told


def _sums(made):
    """What the page adds up itself."""
    return {
        "stored": sum(made["stored_per_instance"]),
        "sent": sum(made["received_per_instance"]),
    }


def test_the_table_has_the_figures_of_the_reports(comparison):
    with comparison(RUNS) as tab:
        assert column(tab, "rank") == ["1", "2", "3"]
        by_layout = {made["layout"]: _values(made) | _sums(made) for made in RUNS}
        for place, layout in enumerate(column(tab, "layout")):
            for field, ours in FIELDS.items():
                told = exact(column(tab, field)[place])
                assert told == pytest.approx(by_layout[layout][ours]), (layout, field)
        expect(tab.locator("tr[data-layout=dynamic] [data-field=late_rows]")).to_have_text("1,234")


def test_what_all_runs_have_in_common_stands_at_the_top(comparison):
    with comparison([run("hash", seconds=1.0), run("mnrt", seconds=2.0, seed=8)]) as tab:
        expect(tab.locator("h1").first).to_have_text("eq5: the same join under hash and mnrt")
        facts = tab.locator(".cmp-head p")
        expect(facts).to_have_text("8 instances \u00b7 100 \u00b5s of emulated work a tuple")


def test_the_fastest_layout_stands_first(comparison):
    other = [run("hash", seconds=3.0, zipf=0.8), run("mnrt", seconds=4.0, zipf=0.8)]
    with comparison([*RUNS, *other]) as tab:
        ranks = tab.locator(".cmp-rank")
        told = [ranks.nth(n).locator("li").all_inner_texts() for n in (0, 1)]
        names = [[line.split()[0] for line in lines] for lines in told]
        assert names == [["mnrt", "dynamic", "hash"], ["hash", "mnrt"]]
        assert "8.60 s" in told[0][0]
        widths = ranks.first.locator(".cmp-bar").evaluate_all(
            "bars => bars.map(bar => bar.getBoundingClientRect().width)"
        )
        assert widths[0] / widths[2] == pytest.approx(8.6 / 17.0, rel=0.02)


def test_a_layout_has_its_colour_whichever_stands_first(comparison):
    seen = list[str]()
    for runs in (RUNS, RUNS[::-1]):
        with comparison(runs) as tab:
            bar = tab.locator("[data-layout=mnrt] .cmp-bar")
            seen.append(bar.evaluate("bar => bar.style.background"))
    assert seen == ["var(--c2)"] * 2


def test_without_emulated_work_the_whole_run_counts(comparison):
    plain = {"work_per_tuple_us": 0, "slowest_instance_s": None}
    runs = [made | plain | {"elapsed_s": n} for n, made in zip((3.5, 1.5, 2.5), RUNS, strict=True)]
    with comparison(runs) as tab:
        assert column(tab, "layout") == ["mnrt", "dynamic", "hash"]
        assert column(tab, "slowest_instance_s") == []


def test_where_instances_take_turns_their_busiest_one_counts(comparison):
    """By the clock they are alike, however their work is shared out."""
    plain = {"work_per_tuple_us": 0, "slowest_instance_s": None, "instances": 8, "cores": 2}
    runs = [
        made | plain | {"elapsed_s": 5.0 - n, "busiest_s": n}
        for n, made in zip((3.5, 1.5, 2.5), RUNS, strict=True)
    ]
    with comparison(runs) as tab:
        assert column(tab, "layout") == ["mnrt", "dynamic", "hash"]
        assert column(tab, "busiest") == ["1.5", "2.5", "3.5"]
        told = tab.locator("section[aria-labelledby=cmp-ranking] .cmp-note").first
        expect(told).to_contain_text("8 instances took turns on 2 cores, so the clock cannot show")
        expect(tab.locator(".cmp-rank").first).to_contain_text("busiest instance; dashed")
        expect(tab.locator(".cmp-rank").first).not_to_contain_text("by the clock")
    enough = [made | {"cores": 8} for made in runs]
    with comparison(enough) as tab:
        assert column(tab, "layout") == ["hash", "dynamic", "mnrt"]


def test_titles_sort_by_mouse_and_by_keyboard(comparison):
    with comparison(RUNS) as tab:
        late, name = (tab.locator(f"thead th[data-field={one}]") for one in ("late_rows", "layout"))
        late.get_by_role("button").click()
        expect(late).to_have_attribute("aria-sort", "ascending")
        figures = [float(told) for told in column(tab, "late_rows")]
        assert figures == sorted(figures) and len(set(figures)) > 1
        tab.keyboard.press("Enter")
        expect(late).to_have_attribute("aria-sort", "descending")
        assert [float(told) for told in column(tab, "late_rows")] == figures[::-1]
        name.get_by_role("button").focus()
        tab.keyboard.press("Space")
        expect(name).to_have_attribute("aria-sort", "ascending")
        assert late.get_attribute("aria-sort") is None
        assert column(tab, "layout") == ["dynamic", "hash", "mnrt"]


def test_what_is_not_known_comes_last(comparison):
    """A report of a run that was cut off has no figures; nothing stands where one would."""
    bare = {"query": "eq5", "layout": "bare", "zipf": 1.2, "work_per_tuple_us": 100}
    with comparison([bare, *RUNS]) as tab:
        assert column(tab, "layout")[-1] == "bare"
        button = tab.locator("thead th[data-field=rows_per_s] button")
        for _ in range(2):
            button.click()
            assert column(tab, "layout")[-1] == "bare"
        expect(tab.locator("tr[data-layout=bare] [data-field=rows_per_s]")).to_have_text("\u2013")


def test_the_fastest_run_is_open_and_a_row_opens_its_own(comparison):
    with comparison(RUNS) as tab:
        layout = tab.locator("#state [data-field=layout]")
        expect(layout).to_have_attribute("data-value", "mnrt")
        tab.locator("tr[data-layout=hash] button").click()
        expect(layout).to_have_attribute("data-value", "hash")
        expect(tab).to_have_url(re.compile("#run=0"))
        tab.locator("tr[data-layout=dynamic] button").click()
        expect(layout).to_have_attribute("data-value", "dynamic")
        expect(tab.locator("h1").last).to_have_text("eq5 under dynamic")


def test_the_load_of_the_greatest_skew_is_drawn_first(comparison):
    with comparison([*RUNS, run("hash", seconds=1.0, zipf=0.0)]) as tab:
        figures = tab.locator(".cmp-loads figure")
        expect(figures).to_have_count(3)
        expect(figures.first.locator(".cmp-line")).to_have_count(8)
        tab.get_by_label("Runs of").select_option("eq5, Zipf 0")
        expect(figures).to_have_count(1)


def test_figures_of_a_batch_are_read_by_arrow_keys(comparison):
    loads = RUNS[1]["story"]["batches"][-2]["joins"][0]["received"]
    with comparison(RUNS) as tab:
        tab.locator(".cmp-chart").first.focus()
        tab.keyboard.press("End")
        tab.keyboard.press("ArrowLeft")
        said = tab.locator(".cmp-read").first
        expect(said).to_contain_text(f"batch 13: most {max(loads):,} (instance")
        expect(said).to_contain_text(f"mean {round(sum(loads) / 8):,}")


def test_a_thousand_instances_are_a_heat_strip(comparison):
    runs = [run(name, seconds=2.0, instances=1_000, batches=6) for name in ("hash", "mnrt")]
    with comparison(runs) as tab:
        canvas = tab.locator(".cmp-chart canvas")
        expect(canvas).to_have_count(2)
        assert shades(canvas.first) > 10
        expect(tab.locator(".cmp-line")).to_have_count(0)
        expect(tab.get_by_text("a row per instance")).to_be_visible()
        expect(tab.get_by_text("a line per instance")).to_have_count(0)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_can_be_read(comparison, dark):
    with comparison(RUNS, dark=dark) as tab:
        assert faint_texts(tab) == []


def test_a_phone_shows_all_of_it(comparison):
    with comparison(RUNS * 7, size=PHONE, dark=True) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") == 400


def test_texts_are_no_markup(comparison):
    """A layout of the user's own may have any name; sentences hold keys."""
    name = '<img src=x onerror="alert(1)">'
    with comparison([run(name, seconds=1.0), *RUNS]) as tab:
        assert column(tab, "layout")[0] == name
        expect(tab.locator(".cmp-verdict li")).to_have_text(VERDICT)
        expect(tab.locator("main img, main b")).to_have_count(0)


def test_a_run_that_received_nothing_has_no_skew(comparison):
    idle = run("idle", seconds=1.0, received_per_instance=[0] * 8)
    with comparison([idle, *RUNS]) as tab:
        expect(tab.locator("tr[data-layout=idle] [data-field=later]")).to_have_text("\u2013")
        expect(tab.locator("tr[data-layout=hash] [data-field=later]")).not_to_have_text("\u2013")
