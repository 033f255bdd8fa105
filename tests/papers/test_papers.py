"""What quick figures find is what docs/reproduction.md says, which names all that does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers import running
from benchmarks.papers.finding import table

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "reproduction.md"
#: Figures that take at most so many minutes are made here; the others by `make papers` alone.
QUICK = 1.0
FIGURES = [one for one in running.figures() if one.minutes <= QUICK]


def verdicts(text):
    """(where, stated) -> comes out, of the rows of tables."""
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {tuple(row[:2]): row[-1] for row in rows if len(row) > 2}


def of_figure(name):
    """The part of the page about one figure."""
    _, _, found = PAGE.read_text().partition(f'<a id="figure-{name}"></a>')
    return found.partition("\n### ")[0]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda one: one.name)
def test_what_comes_out_is_what_the_page_says(figure):
    untimed = [one for one in figure.make_it(lambda line: None).findings if not one.timed]
    told = verdicts(of_figure(figure.name))
    assert told, "the page does not have this figure: run `make papers`"
    found = verdicts(table(untimed))
    assert {stated: verdict for stated, verdict in told.items() if stated in found} == found
