"""A class-data archive: Spark's classes as a JVM holds them, which later JVMs map when they start.

Why: Spark needs some 20,000 classes before the first tuple, and to read, check and link them is
most of what a start costs. A JVM can write what it has linked into a file when it ends (JEP 350);
`joinengine archive` has one do so, once for each Java and Spark of this machine, and `session()`
has it used.

Law: an archive is used only if it is as large as its name says, because a JVM crashes over half a
one. That it is of this Java, and of jars that have not changed, the JVM checks itself, and goes on
without it if not.
"""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from joinengine.spark.session.home import cache_folder
from joinengine.spark.session.java import java_path

#: A JVM says nothing of an archive that does not fit.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_folder() -> Path:
    """Where archives lie: those of this Java and Spark are called `archive_key()`-SIZE.jsa."""
    return cache_folder() / "java"


def archive_key() -> str | None:
    """Tells Javas and Sparks of this machine apart; None: there is no Java, or no Spark."""
    java, spec = java_path(), find_spec("pyspark")
    if java is None or spec is None:
        return None
    facts = f"{os.path.realpath(java)} {spec.origin}"
    return hashlib.sha256(facts.encode()).hexdigest()[:12]


def archives() -> list[Path]:
    """The archives of this Java and Spark that are whole."""
    key = archive_key()
    paths = sorted(archive_folder().glob(f"{key}-*.jsa")) if key is not None else []
    return [path for path in paths if path.stem == f"{key}-{_size(path)}"]


def _size(path: Path) -> int | None:
    """None: it is gone, as another process has replaced it."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def use_options() -> str:
    """The options of a JVM that starts with an archive; empty: there is none."""
    paths = archives()
    return f'"-XX:SharedArchiveFile={paths[-1]}" {_QUIET}' if paths else ""
