"""Imports point one way, from nouns to effects."""

from __future__ import annotations

import ast
from pathlib import Path

import joinengine

ROOT = Path(joinengine.__file__).parent
LEVELS = [
    {"model"},
    {"kernels"},
    {"state", "routing"},
    {"balancing", "layouts"},
    {"reporting"},
    {"simulation"},
    {"spark"},
    {"api"},
    {"options"},
    {"cli", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
#: The twins stand beside the order: they know nouns only.
LEVEL["reference"] = 1


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def place(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def modules():
    return [path for path in ROOT.rglob("*.py") if place(path) != "__init__"]


def test_arrows_point_one_way():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        for name in imported(path)
        if name.startswith("joinengine.") and LEVEL[name.split(".")[1]] > LEVEL[place(path)]
    ]
    assert not wrong


def test_only_the_spark_side_knows_pyspark():
    allowed = {"spark", "api", "cli"}
    users = {place(path) for path in modules() if any("pyspark" in n for n in imported(path))}
    assert users <= allowed


def test_the_rule_sees_something():
    assert len(modules()) > 30
    assert any("pyspark" in name for path in modules() for name in imported(path))
