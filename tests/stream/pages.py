"""The pages of docs/ whose code runs as tests: which blocks they have, and how a block is run.

A page holds fenced blocks. Python blocks of a page share one namespace and run in its order; shell
blocks run under `bash -eu`. A `text` block is what the block before it prints, `..` standing for
anything. `<!-- not run: reason -->` on the line before a block keeps it from being run,
`<!-- slow: reason -->` leaves it to the slow tests.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
#: The pages for somebody who knows Spark and not this engine.
PAGES = (
    "../README",
    "install",
    "from-spark",
    "which-layout",
    "compared",
    "tutorial",
    "state-size",
    "when-is-a-row-emitted",
    "joins",
    "asof",
    "latest",
    "multiway",
    "cluster",
    "kafka",
    "tables",
    "sql",
    "operating",
    "watching",
    "troubleshooting",
)
#: In place of what a block has printed that was not run.
SKIPPED = object()
FENCE = re.compile(
    r"(?:^<!-- (?P<when>not run|slow): (?P<why>[^\n]*?) -->\n)?"
    r"^```(?P<kind>\w*)\n(?P<code>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A fenced block. `when`: "not run" or "slow", and `why`; None: it always runs."""

    kind: str
    code: str
    line: int
    when: str | None
    why: str | None


def blocks_of(page):
    text = (DOCS / f"{page}.md").read_text()
    return [
        Block(
            found["kind"],
            found["code"],
            text.count("\n", 0, found.start("code")),
            found["when"],
            found["why"],
        )
        for found in FENCE.finditer(text)
    ]


def run_page(page, *, slow=False):
    """Run its blocks in the current folder; with `slow` also those that are left to slow tests."""
    names, printed = {"__name__": "page"}, None
    for block in blocks_of(page):
        place = f"docs/{page}.md:{block.line}"
        if block.when == "not run" or (block.when == "slow" and not slow):
            printed = SKIPPED
        elif block.kind == "python":
            printed = python(block, place, names)
        elif block.kind == "sh":
            printed = shell(block, place)
        elif printed is not SKIPPED:
            assert block.kind == "text", f"{place}: {block.kind!r} is not python, sh or text"
            assert printed is not None, f"{place}: no block before it prints this"
            assert matches(block.code, printed), f"{place}: what was printed is\n{printed}"


def python(block, place, names):
    said = io.StringIO()
    code = compile("\n" * block.line + block.code, place, "exec")
    with contextlib.redirect_stdout(said):
        exec(code, names)
    return said.getvalue()


def shell(block, place):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{place}: {done.stdout}{done.stderr}"
    return done.stdout


def matches(expected, printed):
    r"""Whether this was printed; `..` stands for anything, and blanks do not count.

    >>> matches("a .. c", "a  b\nc"), matches("a b", "a c")
    (True, False)
    """
    parts = (re.escape(" ".join(part.split())) for part in expected.split(".."))
    pattern = "(?:.*)".join(rf"\s?{part}\s?" for part in parts)
    return re.fullmatch(pattern, " ".join(printed.split()), re.S) is not None
