"""Finds the Java that Spark is about to start, and checks whether Spark can run on it.

Why: without Java, PySpark reports in twenty lines that a gateway process has ended. A missing Java
is the most common obstacle for new users, and a look at files finds it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from joinengine.model.errors import InvalidRequest

#: The oldest Java that Spark 4 runs on.
OLDEST = 17
_VARIABLE = "JAVA_HOME"
#: The major number of a version; 8 is written as 1.8.
_NUMBER = r"(?:1\.)?(\d+)"
#: Seconds that a Java may take to print its version.
_ASK_S = 20.0
_INSTALL = (
    f"install Java {OLDEST} or 21 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    f"Fedora: dnf install java-21-openjdk-headless; macOS: brew install openjdk@17)"
)


def java_path() -> Path | None:
    """The `java` program that Spark starts; None: there is none."""
    home = os.environ.get(_VARIABLE)
    program = f"{home}/bin/java" if home else shutil.which("java")
    return None if program is None or not os.access(program, os.X_OK) else Path(program)


def check_java() -> None:
    """Raise InvalidRequest if there is no Java for Spark to start, or if it is too old.

    The version is read from the file beside each Java. If there is no such file, `java` is run,
    which takes 0.1 s.
    """
    home, path = os.environ.get(_VARIABLE), java_path()
    if path is None and home:
        raise InvalidRequest(
            f"{_VARIABLE} is {home}, which has no program bin/java; unset it to use the java on "
            f"the PATH, or set it to the folder of a Java {OLDEST} or 21"
        )
    if path is None:
        raise InvalidRequest(
            f"Spark needs Java, and no java is on the PATH; {_INSTALL}, or set {_VARIABLE}"
        )
    version = version_of(path) or _told_by(path)
    if version is not None and version < OLDEST:
        raise InvalidRequest(
            f"Spark needs Java {OLDEST} or later, but {path} is Java {version}; {_INSTALL}. To "
            f"keep the old one, set {_VARIABLE} to the new one"
        )


def version_of(path: Path) -> int | None:
    """The major number of a Java's version; None: no file beside it says so."""
    # Of a Java 8 with its compiler, the program is in jre/bin.
    for folder in path.resolve().parents[1:3]:
        with suppress(OSError, UnicodeDecodeError):
            release = (folder / "release").read_text()
            if number := re.search(rf'^JAVA_VERSION="{_NUMBER}', release, re.MULTILINE):
                return int(number[1])
    return None


def _told_by(path: Path) -> int | None:
    """The major number that a Java prints, for a wrapper without a file; None: it prints none."""
    command = [str(path), "-version"]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_ASK_S
        )
        if number := re.search(rf'version "{_NUMBER}', done.stderr + done.stdout):
            return int(number[1])
    return None
