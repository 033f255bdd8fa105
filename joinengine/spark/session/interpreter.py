"""Checks the Python that Spark's workers run: it must have the packages that tasks import.

Why: if PYSPARK_PYTHON is unset, workers run the `python3` of the PATH, whichever Python runs the
driver. If it lacks a package, the first batch fails with an import error in a trace of the JVM.

A local master runs its workers on this machine with this environment, so this module runs the
interpreter itself, once in each process. The interpreter of a cluster is on other machines, perhaps
in an archive that is unpacked there: a job checks it (`joinengine.spark.session.executors`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from typing import Any

from pyspark import SparkFiles

from joinengine.model.errors import InvalidRequest

#: The modules that tasks import.
NEEDED = (
    *("joinengine", "pyarrow", "numpy", "duckdb", "cattrs", "typing_extensions", "datasketches"),
)
_PROBE = """
import importlib.util, json, sys
lacking = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps(["%d.%d" % sys.version_info[:2], lacking]))
"""


def check_interpreter(context: Any) -> None:
    """Raise InvalidRequest if the workers of a local master cannot run joinengine's tasks."""
    if not context.master.startswith("local"):
        return
    root = SparkFiles.getRootDirectory()
    shipped = tuple(os.path.join(root, name) for name in context._python_includes or ())
    fault = fault_of(context.pythonExec, shipped)
    if fault is not None:
        said = os.environ.get("PYSPARK_PYTHON")
        if said is not None and said != sys.executable:  # joinengine.session() would keep it, too
            raise InvalidRequest(
                f"Spark's workers would run {fault}, because PYSPARK_PYTHON is {said}; before the "
                f"session starts, unset PYSPARK_PYTHON or set it to {sys.executable}"
            )
        raise InvalidRequest(
            f"Spark's workers would run {fault}; set PYSPARK_PYTHON={sys.executable} before the "
            "session starts, or use joinengine.session()"
        )


@cache
def fault_of(executable: str, shipped: tuple[str, ...] = ()) -> str | None:
    """Which Python workers would run and why it is unsuitable, in words; None: it is suitable.

    `executable`: as Spark calls it. `shipped`: files and folders that Spark gives to its workers.
    """
    program = shutil.which(executable)
    if program == sys.executable:
        return None
    if program is None:
        return f"{executable}, which does not exist"
    path = os.pathsep.join([*shipped, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [program, "-c", _PROBE, *NEEDED],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return (
            f"{program}, which fails with {(done.stderr.strip().splitlines() or ['an error'])[-1]}"
        )
    version, lacking = json.loads(done.stdout.splitlines()[-1])
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != own:
        return f"{program}, which is Python {version}, but the driver is Python {own}"
    return f"{program}, which lacks {' and '.join(lacking)}" if lacking else None
