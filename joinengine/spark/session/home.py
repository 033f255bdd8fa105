"""Makes a home of Spark without `python/lib/pyspark.zip`.

Why: Spark puts that file first on the path of each Python process, where it hides the installed
package. It holds only sources, so each process compiles them: a second of work for each kind of
worker and for the planning of each query. Python skips a path that does not exist.

In its place is a folder with one module, for the worker in which Spark lists data sources. That
worker loads all modules named `pyspark_..`, and this module makes it end quietly
(`joinengine.spark.session.daemon`).

The home consists of links into the package, and stays in the user's cache, because a JVM opens jars
when it needs them, even while it ends.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "SPARK_HOME"


@contextmanager
def lent_spark_home(master: str) -> Iterator[None]:
    """A JVM that is started in the block has a home without the zip, if that is possible.

    It is possible if the user has not set a home, the master runs its workers on this machine, and
    they run this Python, which has the package. (YARN ships the zip to its workers.)
    """
    home = spark_home() if serves_workers(master) and VARIABLE not in os.environ else None
    if home is None:
        yield
        return
    os.environ[VARIABLE] = str(home)
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def serves_workers(master: str | None) -> bool:
    """Whether the workers of a master run on this machine, with this Python."""
    workers = os.environ.get("PYSPARK_PYTHON", sys.executable)
    return (master or "").startswith("local") and workers == sys.executable


def cache_folder() -> Path:
    """The folder on this machine for files that joinengine can make again."""
    # Executors import this module, but may lack this package.
    from platformdirs import user_cache_path  # noqa: PLC0415

    chosen = os.environ.get("JOINENGINE_HOME")
    return Path(chosen).expanduser() if chosen else user_cache_path("joinengine")


def spark_home() -> Path | None:
    """The home, made if it is missing; None: it cannot be made, or Spark is not a package."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    if not (package / "jars").is_dir():
        return None
    name = hashlib.sha256(str(package).encode()).hexdigest()[:12]
    home = cache_folder() / "spark-homes" / name
    try:
        home.mkdir(parents=True, exist_ok=True)
        for entry in package.iterdir():
            link = home / entry.name
            if entry.name in _LINKED and not link.is_symlink():
                _link(link, entry)
        loaded = home / "python" / "lib" / "pyspark.zip" / "pyspark_joinengine.py"
        # It may be of another version, and name modules that no longer exist.
        if not loaded.exists() or loaded.read_text() != _LOADED:
            loaded.parent.mkdir(parents=True, exist_ok=True)
            passing = loaded.with_suffix(f".{os.getpid()}")
            passing.write_text(_LOADED)
            passing.replace(loaded)  # so the file is complete or missing
    except OSError:
        return None
    return home


# Workers may have a joinengine without that module, or no joinengine at first.
_LOADED = """try:
    from joinengine.spark.session.daemon import end_quietly
except ImportError:
    pass
else:
    end_quietly()
"""
_LINKED = ("bin", "sbin", "jars", "conf")


def _link(link: Path, target: Path) -> None:
    try:
        link.symlink_to(target)
    except FileExistsError:  # another process was faster
        return
