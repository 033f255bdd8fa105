"""`joinengine archive`, and a program that starts with what it has written."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import BRIEF

pytestmark = [pytest.mark.spark, pytest.mark.slow]
#: Prints the options of its JVM that are about archives, and counts rows.
PROGRAM = """
import json
from joinengine import session

spark = session(master="local[1]")
management = spark._jvm.java.lang.management.ManagementFactory
given = [one for one in management.getRuntimeMXBean().getInputArguments() if "Shared" in one]
print(json.dumps({"given": given, "rows": spark.range(3).count()}))
spark.stop()
"""


def ran(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_programs_start_with_the_archive_that_was_written(tmp_path):
    home = {"JOINENGINE_HOME": str(tmp_path), "JDK_JAVA_OPTIONS": BRIEF}  # and no other archive
    ran("-m", "joinengine", "archive", **home)
    (path,) = (tmp_path / "java").glob("*.jsa")
    assert path.stat().st_size > 50_000_000
    logged = tmp_path / "classes.log"
    logging = {"JDK_JAVA_OPTIONS": f"{BRIEF} -Xlog:class+load:file={logged}"}
    said = ran("-c", PROGRAM, **home | logging)
    found = json.loads(said)  # and nothing else was said
    assert found == {"given": [f"-XX:SharedArchiveFile={path}"], "rows": 3}
    classes = logged.read_text()
    assert "org.apache.spark.sql.SparkSession source: shared objects file (top)" in classes
    assert "already exists" in ran("-m", "joinengine", "archive", **home)
    ran("-m", "joinengine", "cache", "--clear", **home)
    assert not path.exists()
