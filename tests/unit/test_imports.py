"""The rooms of the house in one strict order: a module imports its own room and those before it.

All imports count, also those inside functions and those through other modules; only those that are
for type checkers alone (`if TYPE_CHECKING`) do not count.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from importlib import metadata
from pathlib import Path

import click
import pytest

import joinengine
from joinengine.lab.cli import cli

ROOT = Path(joinengine.__file__).parent
ROOMS = (
    "model",
    "world",
    "kernels",
    "routing",
    "balancing",
    "layouts",
    "predicates",
    "sources",
    "state",
    "wire",
    "results",
    "exchange",
    "operators",
    "driver",
    "reporting",
    "staying",
    "spark",
    "api",
    "lab",
    "__main__",
)
#: The first room that may know Spark; all before it run without.
FIRST_WITH_SPARK = ROOMS.index("spark")
#: Part of the engine's lines that one folder may hold; the laboratory is none of its rooms.
LARGEST_FOLDER = 1 / 8


#: These read the user's own source files.
OWN_FILES = (
    "joinengine.sources.listing",
    "joinengine.sources.notices",
    "joinengine.sources.sourcefiles",
)

#: Where the paths of the documentation begin.
TOPS = (ROOT, ROOT.parent)


def name_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in ROOT.rglob("*.py")}


def room_of(module):
    return module.split(".")[1] if "." in module else None


def imports_in(tree):
    """(module, name or None) of each import that runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole module"
            yield from ((node.module, alias.name) for alias in node.names)
        elif not isinstance(node, ast.expr):  # nothing is imported inside one
            yield from imports_in(node)


@cache
def imports_of(module):
    """Those of one of our modules."""
    return [*imports_in(ast.parse(MODULES[module].read_text()))]


@cache
def imported(module):
    """The modules that a module imports, those behind the package's lazy names included."""
    found = set()
    for source, name in imports_of(module):
        if source == "joinengine" and name in joinengine._HOMES:
            found.add(f"joinengine.{joinengine._HOMES[name]}")
        elif f"{source}.{name}" in MODULES:
            found.add(f"{source}.{name}")
        else:
            found.add(source)
    return found


@cache
def reached(module):
    """All modules that are loaded with one, with the packages that they are in."""
    seen, waiting = set(), [module]
    while waiting:
        for one in imported(waiting.pop()):
            parents = [one.rsplit(".", n)[0] for n in range(one.count(".") + 1)]
            for found in parents:
                if found not in seen:
                    seen.add(found)
                    if found in MODULES:
                        waiting.append(found)
    return seen


def test_every_module_is_in_a_room():
    assert {room_of(module) for module in MODULES} - {None} == set(ROOMS)


IN_ROOMS = [module for module in MODULES if room_of(module)]


#: The options of the laboratory are options of the writer, and lead there by this door alone.
DOOR = {
    f"joinengine.api.trials -> joinengine.lab.emulation.{name}"
    for name in ("emulating", "slow_operator")
}


def test_arrows_point_one_way():
    back = {
        f"{module} -> {one}"
        for module in IN_ROOMS
        for one in imported(module) & MODULES.keys()
        if room_of(one) and ROOMS.index(room_of(one)) > ROOMS.index(room_of(module))
    }
    assert back == DOOR


#: What names the options of the laboratory, and hands them on to it.
NAMES_EMULATION = {"joinengine.api.option_table", "joinengine.api.trials"}


def test_what_is_emulated_is_known_in_the_laboratory_alone():
    """No room has a word of it: no field, no branch, no remark."""
    rooms = [module for module in IN_ROOMS if room_of(module) != "lab"]
    assert len(rooms) > 200
    found = {module for module in rooms if "emulat" in MODULES[module].read_text().lower()}
    assert found == NAMES_EMULATION


def test_the_laboratory_is_loaded_only_if_it_is_asked_for():
    """A query with options of its own alone never gets there."""
    program = (
        "import sys; from joinengine.api.trials import trial_of; "
        "trial_of({'recovery': 'store', 'storeLocation': '/there', 'capacity': '7'}, {}); "
        "assert not any(one.startswith('joinengine.lab') for one in sys.modules); "
        "trial_of({'workPerTuple': '1 us'}, {}); "
        "assert 'joinengine.lab.emulation' in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_engine_reaches_no_spark():
    found = {
        f"{module} reaches {one}"
        for module in IN_ROOMS
        if ROOMS.index(room_of(module)) < FIRST_WITH_SPARK
        for one in reached(module)
        if one.split(".")[0] in ("pyspark", "py4j")
    }
    assert found == set()


#: Modules that are layouts. Who runs queries asks a layout, whichever it is, by its protocol.
LAYOUT_MODULES = {
    f"joinengine.layouts.{name}"
    for name in ("auto", "biclique", "choices", "key_based", "keyless", "matrix", "replicas")
} | {"joinengine.layouts.shuffle", "joinengine.layouts.whole_keys"}


def test_no_layout_is_known_by_name():
    found = {
        f"{module} -> {one}"
        for module in IN_ROOMS
        if room_of(module) not in ("layouts", "lab")
        for one in imported(module) & LAYOUT_MODULES
    }
    assert found == set()


def test_the_modules_of_layouts_are_there():
    assert LAYOUT_MODULES < set(MODULES)


#: Rooms whose effects come from a `World`; feeds also read the files of the user's sources.
THROUGH_A_WORLD = ("sources", "state", "wire", "results", "exchange", "operators", "driver")
EFFECTS = {
    *("time", "datetime", "uuid", "os", "pathlib", "shutil", "tempfile", "random", "secrets"),
    *("io", "glob", "socket", "subprocess", "sched"),
}
#: What opens files by their paths, under any name.
OPENERS = {"open", "OSFile", "memory_map", "FileSystem", "LocalFileSystem"}


def effects_of(tree):
    found = {module.split(".")[0] for module, _ in imports_in(tree)} & EFFECTS
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = {
        getattr(one, "id", None) if isinstance(one, ast.Name) else one.attr
        for one in calls
        if isinstance(one, ast.Name | ast.Attribute) and not is_method_open(one)
    }
    return found | (names & OPENERS)


def is_method_open(function):
    """Keepers and stores open runs."""
    return isinstance(function, ast.Attribute) and function.attr == "open"


def test_effects_come_from_a_world():
    ours = [one for one in IN_ROOMS if room_of(one) in THROUGH_A_WORLD and one not in OWN_FILES]
    found = {module: effects_of(ast.parse(MODULES[module].read_text())) for module in ours}
    assert len(ours) > 50
    assert {module: names for module, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text", ["import time", "from os import path", "open('f')", "pa.memory_map(p)"]
)
def test_effects_are_seen(text):
    assert effects_of(ast.parse(text))


PICKLERS = {"pickle", "cloudpickle", "marshal", "dill", "joblib", "shelve"}


def test_nothing_is_pickled():
    """Files name no code; what Spark sends with a job, Spark pickles."""
    found = {
        f"{module}: {name}"
        for module in MODULES
        for one, imported_name in imports_of(module)
        for name in (*one.split("."), imported_name)
        if name in PICKLERS
    }
    assert found == set()


def test_the_rule_sees_something():
    assert "pyspark" in reached("joinengine.api.joins")
    assert "pyspark" in reached("joinengine.lab.queries.q5")
    assert "joinengine.spark.session.session" in imported("joinengine.lab.commands.sessions")


@pytest.mark.parametrize(
    "program",
    [
        "import joinengine",
        "import joinengine.driver.batch",
        "import joinengine.operators.join.join_task",
        "from joinengine.lab.cli import cli; cli(['layouts'], standalone_mode=False)",
        "from joinengine.lab.cli import cli; cli("
        "['simulate', 'mnrt', '--keys', '50', '--intervals', '2'], standalone_mode=False)",
    ],
)
def test_no_spark_is_loaded(program):
    check = "import sys; assert 'pyspark' not in sys.modules, 'pyspark was loaded'"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{check}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_loads_no_command():
    program = "from joinengine.lab.cli import cli; cli(['--help'], standalone_mode=False)"
    check = "import sys; print({'numpy', 'pyarrow', 'duckdb', 'click'} & {*sys.modules})"
    command = [sys.executable, "-c", f"{program}\n{check}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "{'click'}"


def test_each_command_is_served_under_its_name():
    context = click.Context(cli)
    names = cli.list_commands(context)
    assert [cli.get_command(context, name).name for name in names] == names
    assert cli.get_command(context, "nonsense") is None


def test_public_names_are_served():
    assert set(joinengine.__all__) == set(joinengine._HOMES)
    assert joinengine.__version__ == metadata.version("joinengine")
    for name in joinengine.__all__:
        assert getattr(joinengine, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        joinengine.nonsense  # noqa: B018


def test_no_room_hides_a_public_name():
    assert set(ROOMS).isdisjoint(joinengine.__all__)


def test_the_documented_house_is_this_one():
    """The order of rooms and every file that the pages name are those of the tree."""
    docs = ROOT.parent / "docs"
    text = (docs / "architecture.md").read_text()
    order = next(one for one in text.split("```") if one.startswith("\nmodel < ")).split()
    assert tuple(word for word in order if word != "<") == tuple(
        room for room in ROOMS if room != "__main__"
    )
    text += (docs / "extending.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", text))
    assert len(named) > 20
    assert {path for path in named if not any((top / path).exists() for top in TOPS)} == set()


def test_no_folder_is_too_large():
    lines = Counter()
    for module, path in MODULES.items():
        if room_of(module) not in (None, "lab"):
            lines[path.parent] += len(path.read_text().splitlines())
    whole = sum(lines.values())
    assert {folder: n for folder, n in lines.items() if n > LARGEST_FOLDER * whole} == {}
