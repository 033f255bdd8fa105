"""How long functions and files may be, how many fields and parameters: the house style, counted."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for room in ("joinengine", "tests", "benchmarks") for path in (ROOT / room).rglob("*.py")
)
LONGEST_FUNCTION, LONGEST_FILE = 60, 400
MOST_FIELDS, MOST_PARAMETERS = 20, 7
#: Functions with more parameters: users call them, each by its name.
PROMISED = {"StreamAggregate", "StreamJoin", "asof", "kafka_stream", "parquet_stream"}
#: A comment that begins like this, in a file or a function, says why it is longer.
EXCUSE = "# long: "


def excuses(text):
    """The lines that hold an excuse with a reason."""
    if EXCUSE not in text:  # nearly all files: to read their tokens takes far longer
        return set()
    comments = (
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    )
    return {
        one.start[0]
        for one in comments
        if len(one.string.removeprefix(EXCUSE)) >= 10 and one.string.startswith(EXCUSE)
    }


def lines_of(function):
    """The lines of a function that are not its docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    told = first.end_lineno - first.lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - told


def too_long(text, functions):
    """(what, lines) of the file and of the functions that are too long and have no excuse."""
    excused = excuses(text)
    inside = {line for one in functions for line in excused if one.lineno <= line <= one.end_lineno}
    found = [
        (one.name, lines_of(one))
        for one in functions
        if lines_of(one) > LONGEST_FUNCTION
        and not any(one.lineno <= line <= one.end_lineno for line in excused)
    ]
    whole = len(text.splitlines())
    if whole > LONGEST_FILE and not excused - inside:
        found.append(("the file", whole))
    return found


def test_lengths(told):
    assert len(told) > 500
    assert {path: one.too_long for path, one in told.items() if one.too_long} == {}


def test_the_count_sees_what_is_long():
    body = "\n".join(["    x = 1"] * LONGEST_FUNCTION)
    assert told_of(f"def f():\n{body}\n").too_long == [("f", LONGEST_FUNCTION + 1)]
    assert told_of(f"def f():\n    # long: a table of cases\n{body}\n").too_long == []
    assert told_of("x = 1\n" * 401).too_long == [("the file", 401)]
    assert told_of("# long: one table of many rows\n" + "x = 1\n" * 401).too_long == []


def wide(classes):
    """(class, fields) of the classes that declare more than MOST_FIELDS."""
    fields = {
        one.name: sum(isinstance(line, ast.AnnAssign) for line in one.body) for one in classes
    }
    return {(name, count) for name, count in fields.items() if count > MOST_FIELDS}


def parameters(function):
    """How many arguments a function takes; `self`, `*args` and `**named` do not count."""
    found = function.args
    names = [one.arg for one in (*found.posonlyargs, *found.args, *found.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def greedy(classes, functions):
    """The functions, and the classes by whose `__init__`, that take more than MOST_PARAMETERS."""
    owners = {
        line: one.name
        for one in classes
        for line in one.body
        if isinstance(line, ast.FunctionDef) and line.name == "__init__"
    }
    return {owners.get(one, one.name) for one in functions if parameters(one) > MOST_PARAMETERS}


def test_widths(engine):
    assert set().union(*(one.wide for one in engine.values())) == set()
    assert set().union(*(one.greedy for one in engine.values())) == PROMISED


def test_the_count_sees_what_is_wide():
    fields = "\n".join(f"    f{n}: int" for n in range(MOST_FIELDS + 1))
    assert told_of(f"class C:\n{fields}\n").wide == {("C", MOST_FIELDS + 1)}
    assert told_of(f"class C:\n{fields}\n".replace("    f0: int\n", "")).wide == set()
    names = ", ".join(f"a{n}" for n in range(MOST_PARAMETERS))
    assert told_of(f"def f({names}, b): ...").greedy == {"f"}
    assert told_of(f"class C:\n    def __init__(self, {names}, *, b): ...").greedy == {"C"}
    assert told_of(f"class C:\n    def m(self, {names}, **more): ...").greedy == set()


def imported(nodes):
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


#: They say nothing of what a name holds.
PARTICLES = {"found", "here", "one", "told"}


def particles(functions):
    """(function, name) of local variables and parameters that are no nouns."""
    return sorted(
        (function.name, name)
        for function in functions
        for name in PARTICLES & {*bound_in(ast.walk(function))}
    )


def bound_in(nodes):
    for node in nodes:
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


class Told(NamedTuple):
    """What the rules say of a file."""

    too_long: list
    wide: set
    greedy: set
    particles: list
    imported: list


def statements(nodes):
    """Those of a file or of a part of it: to walk through expressions, too, takes far longer."""
    for node in nodes:
        yield node
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, inner, ()))


def told_of(text, *, names=True):
    tree = ast.parse(text)
    nodes = [*statements(tree.body)]
    functions = [one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    classes = [one for one in nodes if isinstance(one, ast.ClassDef)]
    has_particles = names and not PARTICLES.isdisjoint(bound_in(ast.walk(tree)))
    return Told(
        too_long(text, functions),
        wide(classes),
        greedy(classes, functions),
        particles(functions) if has_particles else [],
        [*imported(nodes)],
    )


@pytest.fixture(scope="module")
def told():
    """Each file is parsed once for all rules, and none of its nodes is kept."""
    return {
        str(path.relative_to(ROOT)): told_of(
            path.read_text(), names=path.is_relative_to(ROOT / "joinengine")
        )
        for path in FILES
    }


@pytest.fixture
def engine(told):
    return {path: one for path, one in told.items() if path.startswith("joinengine/")}


def test_locals_are_nouns_of_what_they_hold(engine):
    assert len(engine) > 400
    assert {path: one.particles for path, one in engine.items() if one.particles} == {}


def test_particles_are_seen():
    text = (
        "def f(told):\n    found = [one for one in told]\n    def g(here): return lambda rows: rows"
    )
    seen = told_of(text).particles
    assert seen == [("f", name) for name in sorted(PARTICLES)] + [("g", "here")]


def test_no_module_of_tests_is_a_library(told):
    """Helpers of several test modules lie in `cases`, `conftest` or the harness."""
    found = {
        (path, name)
        for path, one in told.items()
        for name in one.imported
        if path.startswith("tests/") and name.startswith("tests.") and ".test_" in name
    }
    assert found == set()


def test_no_two_modules_have_the_same_name():
    """Who hears a file's name knows which is meant."""
    names = Counter(
        path.name for path in (ROOT / "joinengine").rglob("*.py") if not path.name.startswith("__")
    )
    assert len(names) > 250
    assert {name for name, count in names.items() if count > 1} == set()
