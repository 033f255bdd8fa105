"""How the tests are dealt to processes, for `make test` runs them in several.

One session of Spark serves all of tests/stream, so these go to one process; everything else goes
wherever there is time. A scheduler of our own says so: pytest-xdist 3.8 reads its mark for groups
in a way that pytest 9.2 no longer serves.
"""

from __future__ import annotations

import os

import pytest

#: Files of tests/stream whose tests start programs of their own instead.
OF_THEIR_OWN = ("test_examples.py", "test_own_sessions.py", "test_wheel.py")

# A JVM that lives for minutes spends more on optimising than that saves. For those of programs
# that tests start, too; what the user has set there comes last and wins.
BRIEF = "-XX:TieredStopAtLevel=1"
options = os.environ.get("JDK_JAVA_OPTIONS", "")
if BRIEF not in options:
    os.environ["JDK_JAVA_OPTIONS"] = f"{BRIEF} {options}".strip()


def share_of(nodeid):
    """What goes to one process as a whole: all of a session, a file, or the test by itself."""
    file = nodeid.split("::")[0]
    if "tests/stream/" not in file:
        return nodeid
    return file if file.endswith(OF_THEIR_OWN) else "one session"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """The largest share first, so that the session starts at once."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return share_of(nodeid)

    return Shares(config, log)
