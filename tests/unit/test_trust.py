"""What is read from files is data, and predicates reach nothing but their columns."""

from __future__ import annotations

import ast
import io
import os
import pickle
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import joinengine
from joinengine.api.column_checks import check_predicate
from joinengine.balancing.statistics import Interval
from joinengine.exchange.route import RoutePlan
from joinengine.model.conditions import equi, theta
from joinengine.model.errors import InvalidRequest
from joinengine.wire.codec import decode

ROOT = Path(joinengine.__file__).parent
#: Modules and functions by which a file could name code.
LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
RUNNERS = {"eval", "exec", "compile", "__import__"}
#: To parse all files takes far longer than to look for these words.
WORDS = re.compile(rf"\b({'|'.join([*LOADERS, *RUNNERS, 'allow_pickle'])})\b")


def named(node):
    """The modules that a statement imports."""
    match node:
        case ast.Import():
            return {one.name.partition(".")[0] for one in node.names}
        case ast.ImportFrom():
            return {(node.module or "").partition(".")[0]}
    return set()


def test_no_file_of_the_package_loads_code():
    """Nor does one ask NumPy to; tests/laws/test_codec.py says what instructions may hold."""
    found = []
    for file in sorted(ROOT.rglob("*.py")):
        name, text = file.relative_to(ROOT), file.read_text()
        for node in ast.walk(ast.parse(text)) if WORDS.search(text) else ():
            here = name, getattr(node, "lineno", 0)
            if named(node) & LOADERS:
                found.append((here, "loads"))
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name) and node.func.id in RUNNERS:
                    found.append((here, node.func.id))
                allowed = [one.value for one in node.keywords if one.arg == "allow_pickle"]
                if any(not isinstance(one, ast.Constant) or one.value for one in allowed):
                    found.append((here, "allow_pickle"))
    assert not found


@dataclass
class Planted:
    """An object that makes a folder when it is unpickled."""

    path: str

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_planted_pickle_is_not_run(tmp_path):
    """In place of what a checkpoint or an exchange holds, with whatever checksum."""
    path = tmp_path / "run"
    planted = pickle.dumps(Planted(str(path)))
    archive = io.BytesIO()
    np.savez(archive, hashes=np.array([Planted(str(path))], object))
    for content in (planted, archive.getvalue()):
        with pytest.raises((ValueError, KeyError)):
            Interval.from_bytes(content)
        with pytest.raises(ValueError, match="not instructions"):
            decode(content, RoutePlan)
    assert not path.exists()
    pickle.loads(planted)  # it would have been seen
    assert path.exists()


SCHEMAS = (pa.schema([("k", pa.int64()), ("a", pa.string())]), pa.schema([("b", pa.string())]))
TRICKS = [
    "exists (select * from read_csv('/etc/passwd'))",
    "a = (select content from read_text('/etc/passwd') limit 1)",
    "a in (select * from '/etc/passwd')",
    "a = getenv('HOME')",
    "a = current_setting('home_directory')",
    "a = current_user",
    "a = current_database()",
    "1 = 1); copy (select 1) to '/tmp/planted'; select (true",
    "true) from read_csv('/etc/passwd') as t(x) where (x = x",
    "true); set enable_external_access = true; select (true",
    "true); install httpfs; select (true",
    "true); attach '/tmp/planted.db' as x; select (true",
    "a = query('select 1')",
    "glob('/etc/*') is not null",
    "k = nextval('s')",
    "a = version()",
    "k = random()",
    "a like (select max(a) from pairs)",
    "list_transform([k], x -> x) is not null",
    "a = $1",
    "a = ?",
    "true -- and the rest",
    "true /* and",
    "columns('.*') is not null",
    "pragma_version() is not null",
]


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("whole", [True, False])
def test_predicates_reach_no_file_network_or_setting(trick, whole):
    """Refused when they are written, before anything runs."""
    written, where = (theta(trick), None) if whole else (equi("a", "b"), trick)
    with pytest.raises(InvalidRequest):
        check_predicate(written, where, SCHEMAS, "UTC", exact=False)


def test_a_predicate_of_columns_is_let_in():
    """So the tricks are not refused for the way in which they are asked for."""
    found = check_predicate(theta("a = b and k > 3"), None, SCHEMAS, "UTC", exact=False)
    assert found is not None
