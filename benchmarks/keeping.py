"""Where the figures of a commit are kept: a folder for each, and JSON lines in it.

A line is in the file as soon as it is known, so what a run has found outlives the run.
"""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def commit(root: Path = ROOT) -> str:
    """The commit of a tree, in seven digits; `-changed` behind it if files differ from it."""
    words = "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=-changed"
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # a tree without git
        return "unknown"
    return done.stdout.strip() or "unknown"


def folder(out: Path, name: str) -> Path:
    """`out/<date>-<name>`: the newest that there is, or one of today.

    What was begun yesterday on this commit goes on in its folder.
    """
    there = sorted(out.glob(f"????-??-??-{name}"))
    place = there[-1] if there else out / f"{datetime.now(UTC):%Y-%m-%d}-{name}"
    place.mkdir(parents=True, exist_ok=True)
    return place


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a line to a file."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, without one that was cut off; no file: none."""
    if not path.exists():
        return []
    whole = [text for text in path.read_text().splitlines(keepends=True) if text.endswith("\n")]
    return [json.loads(text) for text in whole]
