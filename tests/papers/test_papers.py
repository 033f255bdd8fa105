"""What the papers state of decisions comes out, all but what the documentation says does not."""

from __future__ import annotations

import pytest

from benchmarks.papers.__main__ import PAPERS, markdown

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("paper", PAPERS)
def test_what_is_stated_comes_out(paper):
    found = PAPERS[paper]()
    assert any(one.holds for one in found)
    failed = [one for one in found if one.holds is False and not one.timed]
    assert not failed, markdown({paper: failed})
