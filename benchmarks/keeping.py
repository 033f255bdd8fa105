"""Keeps the figures of benchmarks: a folder for each commit, and JSON lines in it.

A line is written as soon as it is known, so that it survives a run that is cut short.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from joinengine.lab.comparison.provenance import made_by

ROOT = Path(__file__).parents[1]


def commit(root: Path = ROOT) -> str:
    """The commit of a tree, in seven digits; behind it `-changed-` and a hash of the changes.

    Files that git does not track are not changes.
    """
    words = "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=-changed"
    name = _git(root, *words).decode().strip()
    if not name.endswith("-changed"):
        return name or "unknown"
    return f"{name}-{hashlib.sha256(_git(root, 'diff', 'HEAD', '--binary')).hexdigest()[:7]}"


def _git(root: Path, *words: str) -> bytes:
    """The output of git in a tree; empty without git."""
    try:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, check=False
        ).stdout
    except OSError:
        return b""


def folder(out: Path, name: str) -> Path:
    """`out/<date>-<name>`: the newest that there is, or one of today.

    A run that was begun on an earlier day continues in its folder.
    """
    there = sorted(out.glob(f"????-??-??-{name}"))
    place = there[-1] if there else out / f"{datetime.now(UTC):%Y-%m-%d}-{name}"
    place.mkdir(parents=True, exist_ok=True)
    return place


def named(only: str, known: Collection[str]) -> list[str]:
    """The members of `known` that `only` (a,b,..) names, in their order; all if it is empty.

    Raises UsageError for an unknown name.
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise click.UsageError(f"--only: {name!r} is none of {', '.join(known)}")
    return [name for name in known if not names or name in names]


def printed(label: str, *command: str) -> Any:
    """The JSON of the last line that `python -m command` prints; raises ClickException if none."""
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise click.ClickException(f"{label} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def write_report(path: Path, content: dict[str, Any]) -> None:
    """Write figures, and what made them; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | {"made_by": made_by()}, indent=1))


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a line to a file."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, without one that was cut off; empty without a file."""
    if not path.exists():
        return []
    whole = [text for text in path.read_text().splitlines(keepends=True) if text.endswith("\n")]
    return [json.loads(text) for text in whole]
