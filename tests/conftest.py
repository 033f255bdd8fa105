"""Says which process runs which tests: `make test` runs them in several.

One session of Spark serves all of tests/stream, so these tests go to one process; any process that
is free runs the others. A scheduler of our own decides so: pytest-xdist 3.8 reads its mark for
groups in a way that pytest 9.2 no longer serves.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

#: Files of tests/stream whose tests start programs of their own instead.
OF_THEIR_OWN = ("test_examples.py", "test_own_sessions.py", "test_wheel.py")
#: Where Linux keeps files in memory.
MEMORY = "/dev/shm"

# A JVM that lives for minutes spends more on optimising than it saves by it. The option also holds
# for programs that tests start; the user's own options come last and win.
BRIEF = "-XX:TieredStopAtLevel=1"
options = os.environ.get("JDK_JAVA_OPTIONS", "")
if BRIEF not in options:
    os.environ["JDK_JAVA_OPTIONS"] = f"{BRIEF} {options}".strip()


def lend_a_spark_home():
    """A home of Spark without `python/lib/pyspark.zip`, for this process and what it starts.

    Spark puts that file before all else on the path of each Python process, where it hides the
    installed package. It holds sources alone, so each process would compile them: a second of work
    for each query, and for each kind of worker of each program. A path that is not there is passed
    over.
    """
    package = Path(next(iter(find_spec("pyspark").submodule_search_locations)))
    home = tempfile.mkdtemp(prefix="spark-home-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in ("bin", "jars"):
        (Path(home) / name).symlink_to(package / name)
    os.environ["SPARK_HOME"] = home


def serves_as_tmp(folder):
    """Whether the tests' folders fit there, and what they install there can be run."""
    if not os.access(folder, os.W_OK):
        return False
    return shutil.disk_usage(folder).free > 2 << 30 and not os.statvfs(folder).f_flag & os.ST_NOEXEC


# Processes of pytest-xdist inherit both; what the user has set there wins.
if "SPARK_HOME" not in os.environ:
    lend_a_spark_home()
# A law makes and removes thousands of small files, which a disk does ten times slower than memory.
if "TMPDIR" not in os.environ and serves_as_tmp(MEMORY):
    os.environ["TMPDIR"] = tempfile.tempdir = MEMORY


def share_of(nodeid):
    """The tests that one process runs together: all of the session, a file, or a single test."""
    file = nodeid.split("::")[0]
    if "tests/stream/" not in file:
        return nodeid
    return file if file.endswith(OF_THEIR_OWN) else "one session"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hand out the largest share first, so that the session starts at once."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return share_of(nodeid)

    return Shares(config, log)
