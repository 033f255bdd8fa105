"""Which figures there are, which of them are made already, and making one.

A figure is made already if the code that makes it has not changed since: the modules that its
module imports, and that these import, of this project. So an interrupted `make papers` goes on
where it stopped, and a changed planner makes its figures anew.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import pkgutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers import drawing
from benchmarks.papers import figures as modules
from benchmarks.papers.figure import Figure, Panel
from joinengine.lab.comparison.provenance import made_by

#: The packages whose modules make figures.
OURS = ("benchmarks", "joinengine", "tests")
REPORT, PICTURE = "figure.json", "picture.png"


def figures() -> dict[Figure, str]:
    """All figures, in the order of their names, and the module of each."""
    found = dict[Figure, str]()
    for one in pkgutil.iter_modules(modules.__path__, f"{modules.__name__}."):
        found[import_module(one.name).FIGURE] = one.name
    return dict(sorted(found.items(), key=lambda item: order_of(item[0].name)))


def order_of(name: str) -> tuple[str, bool, int, str]:
    """Sorts names by paper, and figures by number before tables and text."""
    paper, _, rest = name.partition("-")
    return paper, not rest.isdigit(), int(rest) if rest.isdigit() else 0, rest


def code_of(module: str) -> str:
    """A hash of the source of a module and of all modules of ours that it imports, however far."""
    reached, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += imports_of(name)
    digest = hashlib.sha256()
    for path in sorted(filter(None, map(source_of, reached))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def source_of(module: str) -> Path | None:
    """The file of a module of ours; None: it is none."""
    if module.partition(".")[0] not in OURS:
        return None
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # a name within a module
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)


@cache
def imports_of(module: str) -> tuple[str, ...]:
    """What a module of ours may import, anywhere in its file."""
    path = source_of(module)
    return () if path is None else tuple(_named(ast.parse(path.read_bytes())))


def _named(tree: ast.Module) -> Iterator[str]:
    """The modules that a module may import: of `from a import b` both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def made(out: Path, figure: Figure) -> dict[str, Any] | None:
    """The report of a figure that was made into `out`; None: there is none."""
    path = out / figure.name / REPORT
    return json.loads(path.read_text()) if path.exists() else None


def is_made(out: Path, figure: Figure, module: str) -> bool:
    """Whether `out` has the figure, by the code as it is now."""
    report = made(out, figure)
    return report is not None and report["code"] == code_of(module)


def make(out: Path, figure: Figure, module: str, show: Callable[[str], None]) -> dict[str, Any]:
    """Make a figure; write its picture, a CSV for each panel, and its report, which is returned."""
    start, code = time.perf_counter(), code_of(module)
    result = figure.make_it(show)
    folder = out / figure.name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    if result.panels:
        drawing.draw(figure, result.panels, folder / PICTURE)
    for panel in result.panels:
        write_csv(panel, folder / f"panel{panel.letter and '-'}{panel.letter}.csv")
    report = {
        "name": figure.name,
        "title": figure.title,
        "parameters": figure.parameters,
        "seconds": time.perf_counter() - start,
        "code": code,
        "panels": [asdict(panel) for panel in result.panels],
        "findings": [asdict(finding) for finding in result.findings],
        "made_by": made_by(),
    }
    (folder / REPORT).write_text(json.dumps(report, indent=1, default=_plain))
    return report


def _plain(value: Any) -> Any:
    """Arrays, numbers of NumPy and ranges as JSON has them."""
    return np.asarray(value).tolist()


def write_csv(panel: Panel, path: Path) -> None:
    """One line for each point: series, x, y, and the least and greatest y if there are any."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["series", panel.x, panel.y, "least", "greatest"])
        for name, (xs, ys) in panel.series.items():
            least, greatest = panel.spans.get(name, ([""] * len(xs), [""] * len(xs)))
            for row in zip(xs, ys, least, greatest, strict=True):
                writer.writerow([name, *row])
