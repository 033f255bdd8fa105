"""What docs/metrics.md names, to be compared with the code."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def named(heading, table=0, ticked=True):
    """The names in the first column of a table below a heading."""
    text = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    cells = [line.split("|")[1] for line in tables[table].splitlines()[2:]]
    if not ticked:
        return [name.strip() for cell in cells for name in cell.split(",")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def same(names, keys):
    assert len(set(names)) == len(names)
    assert set(names) == set(keys)
