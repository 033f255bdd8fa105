"""An outside system with transactions, in memory: the least that a target must do.

It is the twin of the targets of `joinengine.results.token_sinks`. It can be unreachable, and it can
leave open whether a commit has happened.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.results.token_sinks import NOTHING, OutcomeUnknown, ShutOut, Target
from joinengine.world.storage import Storage, verify


@dataclass
class Outside:
    """The system: what was committed, by batch, and its token; the newest writer's `epoch`."""

    token: int = NOTHING
    epoch: int = 0
    commits: list[tuple[int, list[tuple]]] = field(default_factory=list)

    def rows(self):
        return Counter(row for _, rows in self.commits for row in rows)


def staged_rows(storage: Storage, batches):
    """The rows of staged files, times as integers."""
    found = []
    for _, files in batches:
        for stored in files:
            table = pq.read_table(pa.BufferReader(verify(storage, stored, "result file")))
            columns = (
                column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
                for column in table.columns
            )
            found += zip(*(column.to_pylist() for column in columns), strict=True)
    return found


class ReferenceTarget(Target):
    """A writer of an `Outside`.

    `step(name)` is called around each step and may raise. `outcomes`: for each future commit,
    whether it succeeds ("ok"), has an unknown outcome after it has happened ("done") or without
    ("lost"), or finds the system unreachable ("away"). Several writers may share the list. `turns`:
    the calls to open and close, in order.
    """

    def __init__(self, outside, storage, step=lambda name: None, outcomes=None):
        self.outside, self.storage, self.step = outside, storage, step
        self.outcomes = [] if outcomes is None else outcomes
        self.epoch, self.turns = None, []

    name = "outside"

    def may_hold(self):
        return self.outside.token >= 0

    def open(self, generation):
        self.turns.append("open")
        self.step("opening")
        self.outside.epoch += 1
        self.epoch = self.outside.epoch
        self.step("opened")

    def token(self):
        self.step("reading the token")
        return self.outside.token

    def commit(self, batches):
        self.step("committing")
        rows = staged_rows(self.storage, batches)
        outcome = self.outcomes.pop(0) if self.outcomes else "ok"
        if outcome == "away":
            raise OSError("the target is away")
        if self.epoch != self.outside.epoch:
            raise ShutOut("another writer has opened the target")
        if outcome != "lost":
            self.outside.commits.append((batches[-1][0], rows))
            self.outside.token = batches[-1][0]
        self.step("delivered")
        if outcome in ("done", "lost"):
            raise OutcomeUnknown("no reply")

    def close(self):
        self.turns.append("close")
        self.epoch = None
