"""Joins of changes for laws: streams of changes, and what is there in the end."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from joinengine import StreamJoin, equi
from joinengine.kernels.cancelling import WORDS
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from tests.harness import LEFT, RIGHT, LocalQuery

CHANGE = pa.field("_change", pa.int8())
SCHEMAS = LEFT.append(CHANGE), RIGHT.append(CHANGE)
#: The left side is a change data feed.
FED = LEFT.append(pa.field("_change_type", pa.string())), SCHEMAS[1]


def stream(name, schema):
    return Stream(None, {"kind": "recorded", "path": name}, Reading(schema))


def joined(layout="hash", instances=3, schemas=SCHEMAS, **of):
    sides = stream("left", schemas[0]), stream("right", schemas[1])
    given = {"on": equi("lk", "rk"), "changes": "_change", "layout": layout} | of
    return StreamJoin(*sides, instances=instances, **given)


ANYWHERE = {"pkg", "d-choices", "w-choices", "shuffle", "bi", "bi-k"}


class Changing(LocalQuery):
    """Feeds (key, value, time, change) tuples."""

    def __init__(self, folder, plan, layout, **settings):
        self._schemas = plan.query().operators[0].schemas
        choices = [node._choice for node in plan._flat()[0]]
        super().__init__(folder, plan.query(), layout, choices=choices, **settings)

    def run_tuples(self, batch, left, right, map_tasks=2):
        sides = zip(self._schemas, (left, right), strict=True)
        tables = [
            pa.RecordBatch.from_arrays(
                [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)],
                schema=schema,
            )
            for schema, rows in sides
        ]
        self.run(
            batch,
            [
                [
                    (n, table.take(pa.array(range(task, table.num_rows, map_tasks), pa.int64())))
                    for n, table in enumerate(tables)
                ]
                for task in range(map_tasks)
            ],
        )

    def check_state(self):
        """Each home holds the same net of a word: which equal rows have cancelled may differ.

        Under some layouts each tuple stands once, at any of several instances.
        """
        if self.chosen.choice.name in ANYWHERE:
            return
        (state,) = self.runner.manifest.operators
        layouts = state.layouts
        newest = getattr(layouts.pending, "before", layouts.newest)
        live = {**layouts.older, layouts.version: newest}
        held = defaultdict(Counter)
        for run in state.shelves.state.values():
            opened = self._opened.open(run, state.shelves.files[run.file])
            change = self.query.operators[0].change_of(run.side)
            some = (
                pa.repeat(1, len(opened.words)) if change is None else opened.columns.column(change)
            )
            changes = some.to_pylist()
            for row in opened.live_rows().tolist():
                word = run.version, run.side, int(opened.words[row])
                held[word][run.instance] += changes[row]
        for (version, side, word), nets in held.items():
            one = np.array([word], np.uint64), np.array([next(iter(nets))], np.uint16)
            homes = {*live[version].router.homes(side, *one).instances.tolist()}
            net = {instance: n for instance, n in nets.items() if n}
            assert set(net) in (set(), homes), "all homes hold it, or none"
            assert len({*net.values()}) <= 1, "and as often"

    def net(self):
        """Result -> how often it is there in the end."""
        found = Counter()
        for row, times in self.output().items():
            found[row[:-1]] += row[-1] * times
        return {row: n for row, n in found.items() if n}


def net_of_pairs(batches, span=None):
    """The join of the nets by nested loop."""
    left, right = (Counter() for _ in range(2))
    for both in batches:
        for net, rows in zip((left, right), both, strict=True):
            for *row, change in rows:
                net[tuple(row)] += WORDS.get(change, 0) if isinstance(change, str) else change or 0
    found = Counter()
    for one, n in left.items():
        for other, m in right.items():
            if one[0] == other[0] and (span is None or 0 <= other[2] - one[2] <= span):
                found[(*one, *other)] += n * m
    return {row: n for row, n in found.items() if n}


@st.composite
def streams(draw):
    """Few distinct rows, which come and go; one key is hot. `fed`: words tell the left side."""
    rng = np.random.default_rng(draw(st.integers(0, 10**9)))
    distinct = draw(st.sampled_from([2, 6, 30]))
    sizes = draw(st.lists(st.tuples(*[st.integers(0, 40)] * 2), min_size=1, max_size=6))

    fed = draw(st.booleans())
    numbers = draw(st.sampled_from([[1, -1], [1, -1, 3, -2, 0, None]]))
    told = [*WORDS, "upsert", None] if fed else numbers, numbers

    def row(serial, changes):
        key = 0 if serial % 3 else serial
        return key, serial, 10 * serial, changes[rng.integers(len(changes))]

    return fed, [
        tuple(
            [row(int(rng.integers(distinct)), changes) for _ in range(n)]
            for n, changes in zip(both, told, strict=True)
        )
        for both in sizes
    ]
