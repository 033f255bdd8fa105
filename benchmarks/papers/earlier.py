"""Statements that have no module under `figures` yet: those of the modules named after papers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from benchmarks.papers.figure import Figure, Made

#: Paper -> the modules that hold statements of it.
MODULES = {
    "001": ("nasir2015",),
    "002": ("fang2017", "matrices"),
    "003": ("zacheilas2016",),
    "004": ("fang2019",),
}


def figures() -> dict[Figure, str]:
    """A figure without panels for each module that is there, and the module's name."""
    found = dict[Figure, str]()
    for paper, modules in MODULES.items():
        for short in modules:
            module = f"benchmarks.papers.{short}"
            if find_spec(module) is not None:
                title = f"Statements in benchmarks/papers/{short}.py"
                figure = Figure(f"{paper}-{short}", title, "", 1.0, _maker(module))
                found[figure] = module
    return found


def _maker(module: str) -> Callable[[Callable[[str], None]], Made]:
    return lambda show: Made((), import_module(module).findings())
