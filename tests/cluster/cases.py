"""A query that runs on the cluster while a test does harm, and what must have come of it."""

from __future__ import annotations

import json
import re

from tests.objects import wait_until

#: Batches after which the harm comes.
BEFORE = 3


class Background:
    """A query of the command line, in small batches, on a driver's machine of its own.

    `places`: the arguments of `Places`; `more`: as `Cluster.start` takes it.
    """

    def __init__(self, cluster, query, places, **more):
        self.cluster, self.driver = cluster, cluster.driver()
        where = json.dumps({what: str(place) for what, place in places.items()})
        program = ("-m", "tests.cluster.programs", "query", cluster.url, query, where)
        report = f"{self.driver.disk}/report.json"
        self._program = cluster.start(*program, report, on=self.driver, **more)

    def wait_for_the_middle(self):
        """Until some batches are done; fails if all of them are."""
        in_time = 300
        wait_until(lambda: self.ended or self.done >= BEFORE, "some batches are done", in_time)
        assert not self.ended, f"what follows comes too late\n{self._said()}"

    @property
    def done(self):
        """Batches, by what the program has said."""
        said = re.findall(r"^done (\d+)$", self.driver.said("log"), re.M)
        return int(said[-1]) if said else 0

    @property
    def ended(self):
        return self._program.poll() is not None

    def check_end(self):
        """Wait for its end; its results must be those of DuckDB. Returns its report."""
        assert self._program.wait(400) == 0, self._said()
        return check_report(self.driver.folder / "report.json")

    def _said(self):
        return f"{self.driver.said('log')}\n{self.cluster.executor_logs()}"


def check_report(path):
    """The results of the run were compared with DuckDB's, and there were some; returns it."""
    found = json.loads(path.read_text())
    assert found["valid"] is True
    assert found["output_rows"] > 0
    return found
