"""Where the figures of a run come from: the command, the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

#: Packages on which the figures of a run depend.
_PACKAGES = ("joinengine", "pyspark", "numpy", "pyarrow", "duckdb")


def made_by() -> dict[str, Any]:
    """The command, the machine, versions and the commit: without these a figure means nothing."""
    try:
        folder = Path(__file__).parent
        command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        commit = answer.stdout.strip() or None
    except OSError:
        commit = None
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "commit": commit,
    }


def _version(package: str) -> str | None:
    """The version of an installed package, which is not loaded for it; None: it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
