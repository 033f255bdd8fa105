"""The Python of Spark's workers, which need not be the one of the driver."""

from __future__ import annotations

import subprocess
import sys

from joinengine.spark.session.interpreter import fault_of

#: What tasks import.
NEEDED = (
    *("joinengine", "pyarrow", "numpy", "duckdb", "cattrs", "typing_extensions", "datasketches"),
)
#: What these bring along, and what Spark has.
BROUGHT = {"attr", "attrs", "cython_runtime", "py4j", "pyspark"}
LOADED = """
import sys
import joinengine.spark.jobs.tasks
names = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(*sorted(name for name in names if not name.startswith("_")))
"""


def test_tasks_import_what_they_are_said_to_need():
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - BROUGHT == set(NEEDED)


def executable(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_python_that_cannot_serve_is_described(tmp_path):
    bare = executable(tmp_path / "bare", f'exec "{sys.executable}" -I -S "$@"')
    old = executable(tmp_path / "old", "echo '[\"3.7\", []]'")
    broken = executable(tmp_path / "broken", "echo no library >&2; exit 127")
    same = executable(tmp_path / "same", f'exec "{sys.executable}" "$@"')
    assert fault_of(bare) == f"{bare}, which lacks {' and '.join(NEEDED)}"
    assert fault_of(old).startswith(f"{old}, which is Python 3.7, but the driver is Python 3.")
    assert fault_of(broken) == f"{broken}, which fails with no library"
    assert fault_of(str(tmp_path / "none")) == f"{tmp_path / 'none'}, which does not exist"
    assert fault_of(same) is None
    assert fault_of(sys.executable) is None


def test_what_spark_ships_to_its_workers_counts(tmp_path):
    for name in NEEDED:
        (tmp_path / f"{name}.py").touch()
    bare = executable(tmp_path / "bare", f'cd / && exec "{sys.executable}" -S "$@"')
    assert fault_of(bare, (str(tmp_path),)) is None
