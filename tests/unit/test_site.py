"""The site of the documentation builds, its links lead somewhere, and each page is in it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

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
    assert "StreamJoin" in (built / "api.html").read_text()
