"""Every link of the pages leads to a file that is there, and to a heading or an anchor in it."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```.*?^```", re.M | re.S)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
HEADING = re.compile(r"^#+ +(.+?) *$", re.M)


def slug(heading):
    """The anchor of a heading, as the sites that show Markdown make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


@cache
def anchors(page):
    text = FENCED.sub("", page.read_text())
    return [*ANCHOR.findall(text), *map(slug, HEADING.findall(text))]


def links(page):
    """The links of a page to files and anchors of the project."""
    text = CODE.sub("", FENCED.sub("", page.read_text()))
    return [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]


def broken(page):
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and anchor not in anchors(target):
            yield f"{link}: no such heading or anchor"


def test_links_lead_somewhere():
    assert len(PAGES) > 50
    found = {str(page.relative_to(ROOT)): list(broken(page)) for page in PAGES}
    assert {page: links for page, links in found.items() if links} == {}


def test_links_are_found_and_broken_ones_are_noticed(tmp_path):
    (tmp_path / "b.md").write_text('# The `b` of [c](c.md)\n<a id="word"></a>word\n')
    page = tmp_path / "a.md"
    page.write_text(
        "[1](b.md#the-b-of-c) [2](b.md#word) [3](https://x.y) `[4](no.md)`\n"
        "[5](c.md) [6](b.md#gone) ![7](b.png)\n```\n[8](no.md)\n```\n"
    )
    assert [one.split(":")[0] for one in broken(page)] == ["c.md", "b.md#gone", "b.png"]


def test_a_word_of_the_glossary_has_one_anchor():
    """Else a link to the second one leads to the first."""
    glossary = ROOT / "docs" / "glossary.md"
    found = anchors(glossary)
    assert len(found) == len(set(found))
    rows = [line for line in glossary.read_text().splitlines() if line.startswith("| ")]
    rows = [line for line in rows if not line.startswith(("| word |", "|---"))]
    assert len(rows) > 60
    assert all(ANCHOR.search(line) for line in rows if not line.startswith("| plan |"))


def test_the_readme_links_the_words_of_the_glossary():
    """Those that a reader cannot know; each once at least, where the README uses it."""
    readme = ROOT / "README.md"
    text = LINK.sub("", CODE.sub("", FENCED.sub("", readme.read_text()))).lower()
    linked = {link.partition("#")[2] for link in links(readme) if "glossary.md#" in link}
    everyday = {"side", "load", "move", "step", "report", "plan", "record", "cost", "reason"}
    everyday |= {"balance", "mode", "entry", "storage", "fact", "desk", "wish", "world", "filter"}
    everyday |= {"generation", "tick", "word", "u", "home", "feed", "block", "adopt", "marker"}
    everyday |= {"instructions", "cell", "resize", "work", "run"}
    words = ANCHOR.findall((ROOT / "docs" / "glossary.md").read_text())
    used = {one for one in words if re.search(rf"\b{one.replace('-', '[ -]')}s?\b", text)}
    assert used - everyday <= linked
    assert len(linked) > 8


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 1200


def test_the_offline_build_fetches_the_build_system_that_the_project_requires():
    (required,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert f"'{required}'" in (ROOT / "docs" / "install.md").read_text()
