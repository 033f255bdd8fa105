"""The site of the documentation builds, its links lead somewhere, and each page is in it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="`make docs` installs mkdocs"
)
def test_the_site_builds_with_all_pages(tmp_path):
    built = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    listed = (built / "llms.txt").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs")
        assert (built / place.with_suffix(".html")).exists()
        assert f"]({place})" in listed
        assert "<!--" not in (built / place).read_text()
    assert not [one for one in built.rglob("*.md") if ":::" in one.read_text()]
    for page in (built / "api.html", built / "api.md"):
        text = page.read_text()
        assert "suffixes" in text and "merge_every" in text and "awaitTermination" in text
        assert "at_restart" not in text and "runner" not in text
    for page in built.rglob("*.html"):  # it is read without a network
        assert not re.search(r"<(?:script|link)[^>]* (?:src|href)=\"?https?:", page.read_text())


def test_a_link_to_a_missing_file_stays_so_that_the_build_fails():
    found = importlib.util.spec_from_file_location("tools_site", ROOT / "tools" / "site.py")
    hooks = importlib.util.module_from_spec(found)
    found.loader.exec_module(hooks)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"), title="joinengine")
    there = SimpleNamespace(get_file_from_path=lambda path: path if path == "joins.md" else None)
    text = "[a](docs/joins.md#how) [b](examples) [c](docs/gone.md) [d](gone.md#there)"
    shown = hooks.on_page_markdown(text, page=page, config=None, files=there)
    assert shown == "[a](joins.md#how) b [c](docs/gone.md) [d](gone.md#there)"
