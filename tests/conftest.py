"""Says which process runs which tests: `make test` runs them in several.

Two sessions of Spark serve all of tests/stream, so these tests go to two processes; any free
process runs the others. This needs a scheduler of our own: pytest-xdist 3.8 reads its mark for
groups in a way that pytest 9.2 no longer supports.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

from joinengine.spark.session.archive import use_options
from joinengine.spark.session.home import VARIABLE, spark_home

# No deadlines: the first example of a process may import modules for half a second. CI tries the
# same examples each time, `make test-all` new ones.
FIXED = "JOINENGINE_EXAMPLES" not in os.environ
settings.register_profile("ours", settings(), deadline=None, derandomize=FIXED)
settings.load_profile("ours")

#: Files of tests/stream whose tests start programs of their own instead.
OF_THEIR_OWN = (
    *("test_comparisons.py", "test_notebook.py"),
    *("test_page_views.py", "test_page_words.py"),
    *("test_live_page.py", "test_object_store.py", "test_page.py", "test_programs.py"),
    *("test_archive.py", "test_kafka_pipeline.py", "test_reach.py"),
    *("test_spark_page.py", "test_watched.py", "test_wheel.py"),
)
#: Files whose tests share something slow to make: a program's run, a server, a generated stream.
SHARING = (
    *("test_disks.py", "test_shuffled.py", "test_resident.py", "test_remote.py"),
    *("faults/test_fence.py", "test_lakes_remote.py", "test_chaos.py", "test_tpch.py"),
    *("test_scaling.py", "test_prometheus.py", "test_sql_queries.py", "test_remote_state.py"),
    *("test_form.py", "test_imports.py", "faults/test_damage.py"),
    *("test_nexmark.py", "test_nexmark_peers.py"),
)
#: The first file, by name, for the second session: both sessions then take about as long.
SECOND = "test_outputs.py"
#: Why tests of topics are skipped.
NO_KAFKA = "needs Kafka, which tools/ensure-kafka fetches from Maven Central"
#: The beginning of the reason why tests that read tables with Spark are skipped.
NO_READERS = "needs the jars of Spark and its connectors"
#: Where Linux keeps files in memory.
MEMORY = "/dev/shm"

# A JVM that lives for minutes spends more on optimising than it saves. The options also apply to
# programs that tests start; the user's own options come last and win. Our own sessions use an
# archive of classes anyway, but executors and sessions made by users do not.
BRIEF = "-XX:TieredStopAtLevel=1"
options = os.environ.get("JDK_JAVA_OPTIONS", "")
if BRIEF not in options:
    os.environ["JDK_JAVA_OPTIONS"] = f"{BRIEF} {use_options()} {options}".strip()


def serves_as_tmp(folder):
    """Whether the tests' folders fit there, and programs installed there can be run."""
    if not os.access(folder, os.W_OK):
        return False
    return shutil.disk_usage(folder).free > 2 << 30 and not os.statvfs(folder).f_flag & os.ST_NOEXEC


# Processes of pytest-xdist inherit both variables; values that the user has set win.
if VARIABLE not in os.environ and (home := spark_home()) is not None:
    os.environ[VARIABLE] = str(home)
# A law makes and removes thousands of small files, which a disk does ten times slower than memory.
if "TMPDIR" not in os.environ and serves_as_tmp(MEMORY):
    os.environ["TMPDIR"] = tempfile.tempdir = MEMORY


#: The durations that `make durations` has found, in seconds: of slow shares of tests, and of slow
#: rows of tests with many rows.
DURATIONS = json.loads((Path(__file__).parent / "durations.json").read_text())
#: Shares and rows that take less are not worth a line.
LONG_S, LONG_ROW_S = 2.0, 0.3
#: For how many seconds `make test` tries rows of one test; it tries at least one row.
ROWS_S = 4.0


def share_of(nodeid):
    """The tests that one process runs together: of a session, a cluster, a file, or one."""
    file = nodeid.split("::")[0]
    if "tests/cluster/" in file:
        return "one cluster"
    if "/test_kafka" in file and "tests/stream/" not in file:
        return "one broker"
    if "tests/stream/" not in file:
        return file if file.endswith(SHARING) else nodeid
    if file.endswith(OF_THEIR_OWN):
        return file
    return "one session" if Path(file).name < SECOND else "another session"


def test_of(nodeid):
    """The test whose row this is."""
    return nodeid.partition("[")[0]


def least_tried(items, count, tried):
    """The rows of a test whose values other tests try least, so that each layout has its share.

    `tried`: value -> how many rows have been chosen with it. A hash decides among equals.
    """
    left, chosen = sorted(items, key=lambda item: crc32(item.nodeid.encode())), []
    while left and len(chosen) < count:
        item = min(left, key=lambda item: sum(tried[value] for value in values_of(item)))
        left.remove(item)
        chosen.append(item)
        tried.update(values_of(item))
    return chosen


def values_of(item):
    """The values of a row that have names, such as layouts: others differ from test to test."""
    return [value for value in item.callspec.params.values() if isinstance(value, str)]


def is_parallel(config):
    return hasattr(config, "workerinput") or bool(getattr(config.option, "numprocesses", None))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Never look for garbage among collected tests: that takes half as long as collecting them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # else nanobind takes it for leaks
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(config, items):
    """Of the slow rows of a test, some are tried each time; the others are marked slow.

    With several processes, the longest shares come first, so that none is last.
    """
    rows = defaultdict(list)
    for item in items:
        is_long = "[" in item.nodeid and test_of(item.nodeid) in DURATIONS["rows"]
        if is_long and not item.get_closest_marker("slow"):
            rows[test_of(item.nodeid)].append(item)
    tried = Counter()
    for test, those in rows.items():
        if those[0].get_closest_marker("each_row") is None:
            count = max(1, int(ROWS_S / DURATIONS["rows"][test]))
            for item in set(those) - set(least_tried(those, count, tried)):
                item.add_marker(pytest.mark.slow)
    if is_parallel(config):
        items.sort(key=lambda item: -DURATIONS["shares"].get(share_of(item.nodeid), 0.0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hand shares out in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415

    config.option.loadscopereorder = False

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return share_of(nodeid)

    return Shares(config, log)


def write_durations(terminalreporter):
    """Write the durations of shares and rows that take long enough for a line."""
    shares, tests, rows = Counter(), Counter(), defaultdict(set)
    for reports in terminalreporter.stats.values():
        for one in reports:
            if hasattr(one, "duration") and hasattr(one, "nodeid"):
                shares[share_of(one.nodeid)] += one.duration
                tests[test_of(one.nodeid)] += one.duration
                rows[test_of(one.nodeid)].add(one.nodeid)
    # Of the tests with rows perhaps one row alone was tried.
    means = {test: tests[test] / len(those) for test, those in rows.items() if test not in those}
    tables = {"shares": longest(shares, LONG_S), "rows": longest(means, LONG_ROW_S)}
    text = json.dumps(tables, indent=1)
    (Path(__file__).parent / "durations.json").write_text(f"{text}\n")


def longest(seconds, least):
    """Those that take at least so many seconds, the longest first."""
    those = sorted(seconds.items(), key=lambda one: -one[1])
    return {name: round(taken, 1) for name, taken in those if taken >= least}


def pytest_terminal_summary(terminalreporter):
    """Say why tests of a cluster or of topics were skipped: no other tests find the same."""
    reasons = {
        (report.nodeid, str(report.longrepr[2]).removeprefix("Skipped: "))
        for report in terminalreporter.stats.get("skipped", [])
    }
    left_out = {reason for nodeid, reason in reasons if "tests/cluster/" in nodeid}
    if any(reason == NO_KAFKA for _, reason in reasons):
        terminalreporter.write_line(f"tests of topics were left out: {NO_KAFKA}")
    for reason in sorted({reason for _, reason in reasons if reason.startswith(NO_READERS)}):
        terminalreporter.write_line(f"tables were not read by Spark: {reason}")
    if os.environ.get("JOINENGINE_WRITE_DURATIONS") == "1":
        write_durations(terminalreporter)
    for reason in sorted(left_out):
        terminalreporter.write_line(f"tests/cluster was left out: {reason}")


@pytest.fixture(scope="module")
def chromium():
    """The system's Chromium; without one the test is skipped, or fails if it is wanted.

    It lives for a module, since Playwright keeps an event loop running in this thread, beside
    which a later test could not run one of its own (a notebook's, for example).
    """
    from tests.browser import started, system_chromium  # noqa: PLC0415

    program = system_chromium()
    if program is None:
        missing = "needs Chromium: tools/ensure-chromium finds or installs one"
        if os.environ.get("JOINENGINE_WANTS_CHROMIUM") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    with started(program) as browser:
        yield browser


@pytest.fixture(scope="session")
def objects():
    """An object store of this process: the environment by which a program reaches it."""
    from tests.objects import s3_server  # noqa: PLC0415 (few tests need it)

    with s3_server() as environment:
        yield environment


@pytest.fixture(scope="session")
def broker():
    """A Kafka broker of this process; without its jars the test is skipped."""
    from benchmarks.kafka.broker import TOOL, Broker  # noqa: PLC0415 (few tests need it)

    if subprocess.run([TOOL, "--find"], capture_output=True, check=False).returncode:
        pytest.skip(NO_KAFKA)
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as running:
        yield running


@pytest.fixture
def bucket(objects):
    """The URL of a new bucket of that store."""
    from tests.objects import make_bucket  # noqa: PLC0415

    return make_bucket(objects)
