"""Random chains of joins, of which most hold little, against DuckDB: nothing waits for ever.

Some are as-of joins, or joins with tables. Most keys are NULL, so operators between others are
often empty, and only the watermark moves. All sources end, or none does and time goes on far
enough. Where they end, drivers are killed meanwhile, tasks run twice or have little memory, and
joins get more or fewer instances.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pyarrow as pa
import pytest

from joinengine import Stream, StreamJoin, asof, equi, within
from joinengine.driver.settings import MEMORY_PER_TASK, Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Table
from joinengine.state.wished import Relayout
from tests.differential.cases import database, seeds
from tests.harness import Killed, LocalQuery
from tests.laws.cases import DISORDERED, SHUFFLED

TIME = pa.timestamp("us", "UTC")
FAST, ALL = 40, 1500
#: Join types after which each result has a time of the left side.
TIMED = ("inner", "left", "left_semi", "left_anti")
#: Those at the bottom: most bring results a batch after their cause.
LATER = ("inner", "left", "left_semi", "left_semi", "left_anti")
LONG_AFTER = 10**9


def schema(n):
    return pa.schema([(f"k{n}", pa.int64()), (f"v{n}", pa.int64()), (f"t{n}", TIME)])


class Tree:
    """A chain of joins over two to four streams, and the same as SQL over tables s0, s1, .."""

    def __init__(self, seed):
        rng = random.Random(seed)
        n = rng.choice([2, 3, 4, 4])
        self.n, self.rng = n, rng
        streams = [
            Stream(None, {"kind": "recorded", "path": f"s{i}"}, Reading(schema(i)))
            for i in range(n)
        ]
        self.join, self.sql = streams[0], "select * from s0"
        layout = rng.choice(["auto", "hash", "mnrt", "pkg", "dynamic"])
        self.tables = {i for i in range(1, n) if rng.random() < 0.3}
        for i in range(1, n):
            last = i == n - 1
            if i in self.tables:
                self._join_table(i, layout)
                continue
            if rng.random() < 0.25:
                self._join_nearest(i, streams[i])
                continue
            how = rng.choice((*TIMED, "right", "full") if last else LATER if i == 1 else TIMED)
            low = rng.choice([-100, 0, 0, 50])
            high = low + rng.choice([0, 60, 400])
            near = within("t0", f"t{i}", lower=f"{low} us", upper=f"{high} us", delay="600 us")
            where = f"v{i} % 2 = 0" if rng.random() < 0.3 else None
            self.join = StreamJoin(
                *(self.join, streams[i]),
                on=equi("k0", f"k{i}"),
                within=near,
                how=how,
                right_where=where,
                layout=layout,
                instances=rng.randint(2, 3),
            )
            if not last and rng.random() < 0.2:
                self.join = self.join.where("v0 % 3 > 0")
            self.sql = self._sql(i, how, low, high, where)
            if not last and self.join._finish is not None:
                self.sql = f"select * from ({self.sql}) where v0 % 3 > 0"

    def _join_table(self, i, layout):
        """By a type that hands on rows without keys, which tell how far time has come."""
        how = self.rng.choice(["left", "left_anti"])
        on, table = equi("k0", f"k{i}"), Table(None, f"s{i}", schema(i))
        self.join = StreamJoin(self.join, table, on=on, how=how, layout=layout, instances=2)
        kind = how.removeprefix("left_")
        self.sql = f"select * from ({self.sql}) l {kind} join s{i} r on k0 = k{i}"

    def _join_nearest(self, i, right):
        how, direction = (
            self.rng.choice(["inner", "left"]),
            self.rng.choice(["backward", "nearest"]),
        )
        on = {"by": equi("k0", f"k{i}"), "direction": direction}
        on = asof("t0", f"t{i}", **on, tolerance="90 us", delay="600 us")
        self.join = StreamJoin(self.join, right, on=on, how=how, layout="mnrt", instances=2)
        apart = f"(epoch_us(t0) - epoch_us(t{i}))"
        near = f"k0 = k{i} and {apart} between {0 if direction == 'backward' else -90} and 90"
        self.sql = f"""select * exclude (n) from
            (select *, row_number() over () as n from ({self.sql})) l left join s{i} r on {near}
            qualify row_number() over (partition by n order by abs({apart}), {apart} < 0) = 1"""
        if how == "inner":
            self.sql = f"select * from ({self.sql}) where k{i} is not null"

    def _sql(self, i, how, low, high, where):
        right = f"(select * from s{i}{'' if where is None else f' where {where}'}) r"
        on = f"k0 = k{i} and epoch_us(t{i}) - epoch_us(t0) between {low} and {high}"
        kind = how.removeprefix("left_") if how in ("left_semi", "left_anti") else how
        return f"select * from ({self.sql}) l {kind} join {right} on {on}"

    def batches(self):
        """Per batch and stream the rows: (key, value, time)."""
        rng, found = self.rng, []
        empty = {2} if self.n == 4 and rng.random() < 0.6 else set()
        moments = [rng.sample(range(-150, 150), 9) for _ in range(self.n)]
        for batch in range(rng.randint(1, 5)):
            both = []
            for stream in range(self.n):
                nulls = 1.0 if stream in empty else rng.choice([0.0, 0.5])
                both.append(
                    [
                        (
                            None if rng.random() < nulls else rng.randrange(4),
                            rng.randrange(100),
                            300 * batch + moments[stream][row],
                        )
                        for row in range(rng.choice([0, 2, 9]))
                    ]
                )
            found.append(both)
        return found


def table(n, rows):
    columns = zip(*rows, strict=True) if rows else [[], [], []]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema(n), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(n))


def eventful(rng, n_batches):
    """Jobs whose driver is killed at some steps, and settings by which joins are resized."""
    steps, killed = itertools.count(), set(rng.sample(range(12 * n_batches), rng.choice([0, 2, 5])))

    def step(_name):
        if next(steps) in killed:
            raise Killed

    ways = [{}, SHUFFLED, DISORDERED]
    jobs = InlineJobs(step=step, twice=rng.random() < 0.4, **rng.choice(ways))
    resized = rng.sample(range(1, n_batches + 1), rng.choice([0, 1]))
    return jobs, Settings(
        schedule={batch: [Relayout(None, rng.randint(1, 5))] for batch in resized},
        lazy=rng.random() < 0.3,
        memory_per_task=rng.choice([MEMORY_PER_TASK, 600]),
    )


def results(tree, batches, folder, *, ends):
    plan = tree.join
    # Sources are numbered as they come, so that the n-th of them is s<n>.
    whole = [(n, table(n, [row for both in batches for row in both[n]])) for n in tree.tables]
    jobs, settings = eventful(tree.rng, len(batches)) if ends else (InlineJobs(), Settings())
    jobs.tables, choices = [whole], plan._planned().choices
    query = LocalQuery(folder, plan.query(), "hash", choices=choices, jobs=jobs, settings=settings)
    streams = [n for n in range(tree.n) if n not in tree.tables]
    for number, both in enumerate(batches):
        frame = [(n, table(n, both[n])) for n in streams]
        query.insist(number, [frame])
    if ends:
        query.finish(len(batches), most=20)
    else:
        query.settle(len(batches), most=20)
    assert not any(state.late_rows for state in query.runner.manifest.operators)
    return query.output()


def oracle(tree, batches, names):
    for n in range(tree.n):
        whole = table(n, [row for both in batches for row in both[n]])
        database().register(f"s{n}", whole)
    shown = (f"epoch_us({c})" if c.startswith("t") else c for c in names)
    return Counter(database().sql(f"select {', '.join(shown)} from ({tree.sql})").fetchall())


@pytest.mark.parametrize("seed", seeds(FAST, ALL))
def test_any_chain(seed, tmp_path):
    tree = Tree(seed)
    batches = tree.batches()
    names = tree.join._results.schema.names
    wanted = oracle(tree, batches, names)
    told = f"JOINENGINE_SEED={seed} replays this\n{tree.join.explain()}"
    assert results(tree, batches, tmp_path / "ends", ends=True) == wanted, told
    # Later rows without keys, which are results of outer joins alone, pass the time of all others.
    later = [*batches, [[(None, 1, LONG_AFTER)] for _ in range(tree.n)]]
    times = [at for at, name in enumerate(names) if name.startswith("t")]
    found = results(tree, later, tmp_path / "settles", ends=False)
    early = {row: n for row, n in found.items() if LONG_AFTER not in {row[at] for at in times}}
    assert early == dict(wanted), told


def test_the_chains_find_something():
    sizes = []
    for seed in range(FAST):
        tree = Tree(seed)
        batches = tree.batches()
        sizes.append(oracle(tree, batches, tree.join._results.schema.names).total())
    assert sum(size > 0 for size in sizes) > FAST * 0.4
