"""The provenance of a run's figures: the command, the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any

from joinengine.api.options import is_secret
from joinengine.model.texts import without_secrets
from joinengine.reporting.page import version_of

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
        "command": shlex.join([Path(sys.argv[0]).name, *starmap(_shown, pairwise(sys.argv))]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in _PACKAGES},
        "commit": commit,
    }


def _shown(before: str, word: str) -> str:
    """A word of the command as reports show it, without secrets; `before`: the word before it.

    >>> _shown("--sink-option", "catalog.token=hunter2"), _shown("--on", "token=token")
    ('catalog.token=...', 'token=token')
    """
    flag, sign, setting = word.rpartition("--sink-option=")
    name, equals, _ = setting.partition("=")
    if (sign or before == "--sink-option") and is_secret(name.strip().lower()):
        return f"{flag}{sign}{name}{equals}..."
    return without_secrets(word)
