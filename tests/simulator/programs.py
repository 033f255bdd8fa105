"""What queries of the simulator compute: one join, a chain of two, or an aggregate over a join."""

from __future__ import annotations

from collections import Counter, defaultdict
from enum import StrEnum

from joinengine import StreamAggregate, StreamJoin, equi, windows, within
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from tests.harness import LEFT, RIGHT
from tests.laws.cases import joined, windows_of

NEAR = within("lt", "rt", lower="-40 us", upper="60 us", delay="30 us")
#: Of what follows a join. Its tuples are as late as those of the left stream.
NEARER = within("lt", "rt", lower="-10 us", upper="20 us", delay="30 us")
GROUPED = windows("lt", "100 us", "50 us", delay="30 us")


class Program(StrEnum):
    """What a query is made of. Both that are not a join begin with one."""

    JOIN = "join"
    CHAIN = "chain"
    AGGREGATE = "aggregate"

    def plan(self, how, then, choice, instances):
        """The program: `how` joins first, and `then` (a join type) joins a chain's result."""
        left, right = (_stream(*one) for one in (("left", LEFT), ("right", RIGHT)))
        layout = {"layout": choice, "instances": instances}
        first = StreamJoin(left, right, on=equi("lk", "rk"), within=NEAR, how=how, **layout)
        if self is Program.AGGREGATE:
            sums = {"n": "count(*)", "known": "count(rv)", "total": "sum(lv)"}
            asked = {"aggregates": sums, "window": GROUPED, "merge_every": 2}
            return StreamAggregate(first, by="lk", **asked, **layout)
        names = {"suffixes": ("_1", "_2")}
        return StreamJoin(
            first, right, on=equi("lk", "rk"), within=NEARER, how=then, **names, **layout
        )

    def expected(self, how, then, left, right):
        """Its results, by definition."""
        first = list(joined(left, right, NEAR, how).elements())
        if self is Program.CHAIN:
            return joined(first, right, NEARER, then)
        groups = defaultdict(list)
        for row in first:
            for edges in windows_of(GROUPED.panes, row[2]):
                groups[row[0], edges].append(row)
        found = Counter()
        for (key, edges), rows in groups.items():
            known = sum(row[4] is not None for row in rows)
            found[(key, len(rows), known, sum(row[1] for row in rows), *edges)] += 1
        return found


def _stream(name, schema):
    return Stream(None, {"kind": "recorded", "path": name}, Reading(schema))
