"""Finds class-data archives: Spark's classes as a JVM holds them, for later JVMs to map.

Why: Spark needs some 20,000 classes before the first tuple, and reading, checking and linking them
is most of the cost of a start. A JVM can write its linked classes into a file when it ends (JEP
350). `joinengine archive` makes one do so, once for each Java and Spark of this machine, and
`session()` makes Spark use the archive.

Law: an archive is used only if it is as large as its name says, because a JVM crashes on a
truncated one. The JVM itself checks that it is of this Java and of unchanged jars, and ignores it
otherwise.
"""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from joinengine.spark.session.home import cache_folder
from joinengine.spark.session.java import java_path

#: Options that keep a JVM from logging that an archive does not fit.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_folder() -> Path:
    """The folder of archives: those of this Java and Spark are named `archive_key()`-SIZE.jsa."""
    return cache_folder() / "java"


def archive_key() -> str | None:
    """A key that identifies this Java and Spark; None: there is no Java, or no Spark."""
    java, spec = java_path(), find_spec("pyspark")
    if java is None or spec is None:
        return None
    facts = f"{os.path.realpath(java)} {spec.origin}"
    return hashlib.sha256(facts.encode()).hexdigest()[:12]


def archives() -> list[Path]:
    """The complete archives of this Java and Spark."""
    key = archive_key()
    paths = sorted(archive_folder().glob(f"{key}-*.jsa")) if key is not None else []
    return [path for path in paths if path.stem == f"{key}-{_size(path)}"]


def _size(path: Path) -> int | None:
    """The size of a file; None: it is gone, because another process has replaced it."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def use_options() -> str:
    """The options with which a JVM uses an archive; empty: there is no archive."""
    paths = archives()
    return f'"-XX:SharedArchiveFile={paths[-1]}" {_QUIET}' if paths else ""
