"""Where the figures of a commit are kept: a folder for each, and JSON lines in it.

A line is in the file as soon as it is known, so what a run has found outlives the run.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]


def commit(root: Path = ROOT) -> str:
    """The commit of a tree, in seven digits; behind it `-changed-` and a hash of the changes.

    Files that git does not know are no changes.
    """
    words = "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=-changed"
    name = _git(root, *words).decode().strip()
    if not name.endswith("-changed"):
        return name or "unknown"
    return f"{name}-{hashlib.sha256(_git(root, 'diff', 'HEAD', '--binary')).hexdigest()[:7]}"


def _git(root: Path, *words: str) -> bytes:
    """What git says of a tree; nothing if there is no git."""
    try:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, check=False
        ).stdout
    except OSError:
        return b""


def folder(out: Path, name: str) -> Path:
    """`out/<date>-<name>`: the newest that there is, or one of today.

    What was begun yesterday on this commit goes on in its folder.
    """
    there = sorted(out.glob(f"????-??-??-{name}"))
    place = there[-1] if there else out / f"{datetime.now(UTC):%Y-%m-%d}-{name}"
    place.mkdir(parents=True, exist_ok=True)
    return place


def named(only: str, known: Collection[str]) -> list[str]:
    """Those of `known` that a,b,.. names, in their order; none named: all. Raises UsageError."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise click.UsageError(f"--only: {name!r} is none of {', '.join(known)}")
    return [name for name in known if not names or name in names]


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
