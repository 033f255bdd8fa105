"""Settings of layouts as text: `NAME:key=value,..`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

import joinengine
from joinengine.lab.commands.run_options import split_layouts
from joinengine.lab.commands.showing import list_layouts
from joinengine.lab.simulation.command import simulate
from joinengine.layouts import LAYOUTS, Bi, BiK, Chosen, DChoices, Hash, Mixed, choose
from joinengine.layouts.layout_settings import settings_of
from joinengine.model.errors import InvalidRequest
from tests.harness import LocalQuery, two_way
from tests.laws.cases import check_results, skewed_batches

#: A value that no layout has by default, by the name of the setting.
OTHER = {
    **{"base": "ring", "intervals": 3, "imbalance": 0.2, "min_gain": 0.5, "sigma": 0.1},
    **{"degree": 4, "beta": 1.25, "table_limit": 7, "threshold": 9.5, "backups": 2},
    **{"gamma": 2.0, "backup_work": 0.25, "refill_rows": 99, "underload": 0.5, "standby": True},
    **{"domains": 3, "choices": 3, "d": 5, "tolerance": 2.0, "resize": False},
    **{"subgroup_count": 3, "payback": 4.0, "most_moved": 0.75, "spread": 1},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_label_is_what_makes_the_layout_again(name):
    """Of one changed setting, of all, and of none; as text and in a manifest."""
    known = [one.name for one in settings_of(LAYOUTS[name])]
    made = [choose(name)]
    made += [replace(made[0], **{one: OTHER[one]}) for one in known]
    made.append(replace(made[0], **{one: OTHER[one] for one in known}))
    assert made[0].label == name
    for choice in made:
        assert choose(choice.label) == choice
    assert len({choice.label for choice in made}) == len(set(made))
    filed = Chosen.start(choose(made[1].label) if known else made[0], 8).to_json()
    assert Chosen.from_json(json.loads(json.dumps(filed))).choice.label == made[bool(known)].label


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_setting_says_what_it_means(name):
    told = settings_of(LAYOUTS[name])
    assert all(one.meaning and not one.meaning.endswith(".") for one in told)
    hidden = {one.name for one in fields(LAYOUTS[name])} - {one.name for one in told}
    assert hidden <= {"levels", "keyless", "left_only"}


def test_a_number_in_the_name_and_settings_go_together():
    assert choose("bi-6:tolerance=2") == BiK(6, 2.0)
    assert BiK(6, 2.0).label == "bi-6:tolerance=2.0"
    assert choose(" mixed : table_limit = 300 , beta=1.2") == Mixed(table_limit=300, beta=1.2)
    assert choose("bi:resize=false") == Bi(resize=False)


def test_a_list_of_layouts_keeps_their_settings_together():
    text = "auto,hash,mnrt:imbalance=0.02,base=ring, dynamic,bi:resize=false,"
    found = split_layouts(text)
    assert found == ["auto", "hash", "mnrt:imbalance=0.02,base=ring", "dynamic", "bi:resize=false"]
    assert split_layouts("") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mnrt:foo=1", "layout mnrt: its settings are base, intervals, imbalance, min_gain; found"),
        ("mnrt:imbalance=much", "layout mnrt: imbalance must be a number, found 'much'"),
        ("mixed:degree=x", "layout mixed: degree must be a whole number or none, found 'x'"),
        ("bi:resize=no", "layout bi: resize must be true or false, found 'no'"),
        ("mnrt:", "layout mnrt: expected settings such as base=modulo, found ''"),
        ("mnrt:base=", "layout mnrt: expected settings such as base=modulo, found 'base='"),
        ("mnrt:base=ring,base=cells", "layout mnrt: base is given twice"),
        ("shuffle:x=1", "layout shuffle has no settings, found 'x=1'"),
        ("ftlb:levels=3", "layout ftlb: levels cannot be written as text: use --levels FILE"),
        ("auto:keyless=true", "layout auto: keyless cannot be written as text: it follows from"),
        ("mnrt:base=zig", "mnrt: base must be one of modulo, ring, cells, found 'zig'"),
        ("d-choices:d=0", "d-choices: d must be from 1 to 65536, or None, found 0"),
        ("has:base=ring", "layout: expected one of auto, hash"),
    ],
)
def test_wrong_settings_are_refused_by_name(text, said):
    with pytest.raises(InvalidRequest) as refusal:
        choose(text)
    assert str(refusal.value).startswith(said)


def test_a_layout_of_ones_own_needs_no_meanings():
    @dataclass(frozen=True)
    class Own(Hash):
        name: ClassVar[str] = "own"
        seed: int = 1
        table: tuple[int, ...] = ()

    assert Own(seed=2, table=(3,)).label == "own:seed=2"


def test_a_biclique_as_in_its_paper_keeps_its_sizes(tmp_path):
    batches = [(left, right[:6]) for left, right in skewed_batches(5)]
    sizes = {}
    for text in ("bi", "bi:resize=false"):
        query = LocalQuery(tmp_path / text, two_way(None, 6), text)
        for number, (left, right) in enumerate(batches):
            query.run_tuples(number, left, right)
        sizes[text] = [len(group) for side in query.layout.groups for group in side]
        check_results(query, batches)
    assert sizes["bi:resize=false"] == [3, 3] != sizes["bi"]


def test_the_heaviest_keys_have_as_many_candidates_as_asked():
    assert DChoices(d=3).degree([0.9], 8) == 3
    assert DChoices(d=30).degree([0.9], 8) == 8
    assert DChoices().degree([0.9], 8) > 3


def test_simulate_shows_layouts_with_their_settings_whole(tmp_path):
    """An option counts for the layouts whose name does not set it."""
    report = tmp_path / "s.json"
    names = ["mnrt:imbalance=0.02,base=ring", "mixed"]
    sizes = ["--keys", "300", "--intervals", "3", "--imbalance", "0.5", "--json", str(report)]
    done = CliRunner().invoke(simulate, [*names, *sizes], catch_exceptions=False)
    assert done.exit_code == 0
    shown = ["mnrt:base=ring,imbalance=0.02", "mixed:imbalance=0.5"]
    assert [run["planner"] for run in json.loads(report.read_text())["runs"]] == shown
    assert all(name in done.output for name in shown)
    assert "\u2026" not in done.output
    refused = CliRunner().invoke(simulate, ["d-choices:d=3"])
    assert "simulate gives d-choices no settings" in str(refused.exception)


def test_the_command_lists_the_settings_of_a_layout(tmp_path):
    report = tmp_path / "mnrt.json"
    done = CliRunner().invoke(list_layouts, ["mnrt:imbalance=0.02", "--json", str(report)])
    assert done.exit_code == 0, done.output
    found = json.loads(report.read_text())
    assert found["name"] == "mnrt"
    assert [one["name"] for one in found["settings"]] == [
        "base",
        "intervals",
        "imbalance",
        "min_gain",
    ]
    assert found["settings"][2]["default"] == "0.05"
    assert found["settings"][2]["source"] == "theta_max of Fang 2016, 2017, 2019"
    assert found["settings"][2]["values"] == "0 or more"
    assert "a plan is due above (1 + imbalance) means (0 or more)" in done.output
    assert "[theta_max of Fang 2016, 2017, 2019]" in done.output
    assert CliRunner().invoke(list_layouts, ["shuffle"]).exit_code == 0


@pytest.mark.parametrize(
    ("name", "setting", "value", "said"),
    [
        *[("auto", "payback", value, "0 or more") for value in (-1.0, math.nan)],
        *[("auto", "most_moved", value, "above 0") for value in (0.0, -0.5)],
        ("auto", "most_moved", 0, r"above 0, found 0; 1 means no limit"),
        *[("bi-k", "subgroup_count", value, "from 1 to 32768, or None") for value in (0, 32769)],
        *[(n, "tolerance", 0.99, "a number from 1 on") for n in ("bi", "bi-k", "dynamic")],
        *[(n, "tolerance", math.inf, "a number from 1 on") for n in ("bi", "bi-k", "dynamic")],
        *[("pkg", "choices", value, "from 1 to 65536") for value in (0, 65537)],
        *[("d-choices", "d", value, "from 1 to 65536, or None") for value in (0, 65537)],
        *[("mixed", "degree", value, "from 0 to 16, or None") for value in (-1, 17)],
        *[("mixed", "beta", value, "a number from 0 on") for value in (-1.0, math.inf)],
        *[("ftlb", "gamma", value, "a number from 0 on") for value in (-1.0, math.inf, math.nan)],
        *[("ftlb", "backup_work", value, "from 0 to 1") for value in (-0.1, 1.1)],
        *[("ftlb", "backups", value, "from 1 to 65535") for value in (0, 65536)],
        *[("ftlb", "domains", value, "from 1 to 65536, or None") for value in (0, 65537)],
        ("mixed", "table_limit", -1, "0 or more"),
        ("readj", "sigma", 0.0, "above 0, or None"),
        *[("dlb-h", name, -1.0, "0 or more") for name in ("threshold", "min_gain")],
        *[(name, "intervals", 0, "at least 1") for name in ("pkg", "auto", "mnrt", "ftlb")],
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused(name, setting, value, said):
    with pytest.raises(InvalidRequest, match=f"^{name}: {setting} must be {said}"):
        LAYOUTS[name](**{setting: value})


def test_the_ends_of_a_range_are_within():
    LAYOUTS["ftlb"](backup_work=1.0, domains=65536, gamma=0.0, refill_rows=1)
    LAYOUTS["mixed"](degree=16, table_limit=0)
    LAYOUTS["readj"](sigma=1e-9)
    LAYOUTS["bi-k"](subgroup_count=32768, tolerance=1.0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_setting_has_a_source_and_the_table_fits(name):
    """A paper as docs/layouts.md names it, or `ours`; no source is broken over two lines."""
    page = (Path(joinengine.__file__).parents[1] / "docs" / "layouts.md").read_text()
    papers = re.compile(r"[A-Z][a-z]+ 20\d\d")
    done = CliRunner().invoke(list_layouts, [name])
    lines = done.output.splitlines()[3:]
    assert max(map(len, lines), default=0) <= 100
    for one in settings_of(LAYOUTS[name]):
        assert f"[{one.source}]" in done.output
        assert "ours" in one.source or papers.search(one.source)
        assert all(f" {paper} " in page for paper in papers.findall(one.source))
