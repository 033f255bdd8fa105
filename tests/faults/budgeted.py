"""Queries whose tasks have a budget, and how much memory they take: for programs of their own."""

from __future__ import annotations

import threading
import time

from joinengine.driver.batch import BatchRunner
from joinengine.driver.settings import Settings
from joinengine.results.delivery import Delivery
from joinengine.results.sinks import DiscardSink
from tests.harness import LocalQuery


class Budgeted(LocalQuery):
    """A query of which no result is kept; a subclass says how many bytes a task may hold."""

    budget: int

    def restart(self):
        settings = Settings(memory_per_task=self.budget)
        told = self.checkpoint, "q", Delivery(self.checkpoint, DiscardSink()), settings
        choices = self.choices or [self.choice] * len(self.query.operators)
        self.runner = BatchRunner(self.jobs, self.query, choices, *told)
        self.runner.observe(self.records.append)

    def check_state(self):
        """Tuples of one key are many, and alike."""


class Watch:
    """Watches the memory of this process."""

    def __init__(self):
        self._peak = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def risen(self, action):
        """How many bytes memory has risen by, at most, during an action."""
        before = self._peak = memory()
        action()
        return self._peak - before

    def _watch(self):
        while True:
            self._peak = max(self._peak, memory())
            time.sleep(0.005)


def memory():
    """Bytes of this process that are in no file."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))
