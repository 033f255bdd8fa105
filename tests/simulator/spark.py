"""Spark's logs, by which it cuts the batches of queries that it runs."""

from __future__ import annotations

from dataclasses import dataclass, field


class SparkFailed(Exception):
    """Spark's own log says that another driver is at work."""


@dataclass
class Spark:
    """Spark's logs of one query: batch -> where it ends, and what is done.

    It ends before a tuple of each side; the third number says for how many batches all has ended.
    """

    offsets: dict = field(default_factory=lambda: {-1: (0, 0, 0)})
    commits: set = field(default_factory=lambda: {-1})
