"""How long functions and files may be, how many fields and parameters: the house style, counted."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

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


def too_long(text):
    """(what, lines) of the file and of the functions that are too long and have no excuse."""
    tree, excused = ast.parse(text), excuses(text)
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
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


def test_lengths():
    found = {str(path.relative_to(ROOT)): too_long(path.read_text()) for path in FILES}
    assert len(found) > 500
    assert {path: what for path, what in found.items() if what} == {}


def test_the_count_sees_what_is_long():
    body = "\n".join(["    x = 1"] * LONGEST_FUNCTION)
    assert too_long(f"def f():\n{body}\n") == [("f", LONGEST_FUNCTION + 1)]
    assert too_long(f"def f():\n    # long: a table of cases\n{body}\n") == []
    assert too_long("x = 1\n" * 401) == [("the file", 401)]
    assert too_long("# long: one table of many rows\n" + "x = 1\n" * 401) == []


def classes(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def wide(tree):
    """(class, fields) of the classes that declare more than MOST_FIELDS."""
    fields = {
        one.name: sum(isinstance(line, ast.AnnAssign) for line in one.body) for one in classes(tree)
    }
    return {(name, count) for name, count in fields.items() if count > MOST_FIELDS}


def parameters(function):
    """How many arguments a function takes; `self`, `*args` and `**named` do not count."""
    found = function.args
    names = [one.arg for one in (*found.posonlyargs, *found.args, *found.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def greedy(tree):
    """The functions, and the classes by whose `__init__`, that take more than MOST_PARAMETERS."""
    owners = {
        line: one.name
        for one in classes(tree)
        for line in one.body
        if isinstance(line, ast.FunctionDef) and line.name == "__init__"
    }
    return {
        owners.get(node, node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and parameters(node) > MOST_PARAMETERS
    }


def test_widths():
    too_wide, many_parameters = set(), set()
    for path in (ROOT / "joinengine").rglob("*.py"):
        tree = ast.parse(path.read_text())  # one at a time: all of them take seconds to collect
        too_wide |= wide(tree)
        many_parameters |= greedy(tree)
    assert too_wide == set()
    assert many_parameters == PROMISED


def test_the_count_sees_what_is_wide():
    fields = "\n".join(f"    f{n}: int" for n in range(MOST_FIELDS + 1))
    assert wide(ast.parse(f"class C:\n{fields}\n")) == {("C", MOST_FIELDS + 1)}
    assert wide(ast.parse(f"class C:\n{fields}\n".replace("    f0: int\n", ""))) == set()
    names = ", ".join(f"a{n}" for n in range(MOST_PARAMETERS))
    assert greedy(ast.parse(f"def f({names}, b): ...")) == {"f"}
    assert greedy(ast.parse(f"class C:\n    def __init__(self, {names}, *, b): ...")) == {"C"}
    assert greedy(ast.parse(f"class C:\n    def m(self, {names}, **more): ...")) == set()


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


#: They say nothing of what a name holds.
PARTICLES = {"found", "here", "one", "told"}


def particles(text):
    """(function, name) of local variables and parameters that are no nouns."""
    return sorted(
        (function.name, name)
        for function in ast.walk(ast.parse(text))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for name in PARTICLES & {*bound_in(function)}
    )


def bound_in(function):
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_locals_are_nouns_of_what_they_hold():
    engine = [path for path in FILES if path.is_relative_to(ROOT / "joinengine")]
    assert len(engine) > 400
    odd = {str(path.relative_to(ROOT)): particles(path.read_text()) for path in engine}
    assert {path: names for path, names in odd.items() if names} == {}


def test_particles_are_seen():
    text = (
        "def f(told):\n    found = [one for one in told]\n    def g(here): return lambda rows: rows"
    )
    assert particles(text) == [("f", name) for name in sorted(PARTICLES)] + [("g", "here")]


def test_no_module_of_tests_is_a_library():
    """Helpers of several test modules lie in `cases`, `conftest` or the harness."""
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "tests").rglob("*.py")
        for name in imported(path)
        if name.startswith("tests.") and ".test_" in name
    }
    assert found == set()


def test_no_two_modules_have_the_same_name():
    """Who hears a file's name knows which is meant."""
    names = Counter(
        path.name for path in (ROOT / "joinengine").rglob("*.py") if not path.name.startswith("__")
    )
    assert len(names) > 250
    assert {name for name, count in names.items() if count > 1} == set()
