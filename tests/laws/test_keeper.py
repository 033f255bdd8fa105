"""The keeper alone: after any calls each live tuple is in exactly one of its runs."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from joinengine.model.keys import Side
from joinengine.state.keeper import Keeper
from joinengine.state.run import RunStore
from joinengine.state.upkeep import Shelf, Upkeep
from joinengine.world.world import MACHINE
from tests.laws.cases import relaxed

#: Words are few and wide apart, so that ranges cut through runs.
STEP = 1 << 40
NEWEST = 3


@dataclass(frozen=True)
class Values(Shelf):
    """A shelf of numbered tuples; below the watermark they are needed no more."""

    label: str = "values"
    span_us: int = 1000

    def schema(self, side):
        return pa.schema([("v", pa.int64())])

    def times(self, side, columns):
        return columns.column("v").to_numpy()

    def last_needed(self, side, times):
        return times


class Kept:
    """Batch after batch a keeper, and a model: which tuples there should be."""

    def __init__(self, folder):
        self.storage = MACHINE.storage(str(folder))
        self.store = RunStore(self.storage)
        self.runs, self.files, self.model = {}, {}, {}
        self.batch, self.serial = 0, 0

    def begin(self, watermark):
        self.watermark = watermark
        upkeep = Upkeep(
            shelf=Values(),
            batch=self.batch,
            task=0,
            generation=1,
            version=NEWEST,
            watermark=watermark,
            merge_rows=1 << 20,
            gather_bytes=(1 << 30, 300, 1)[self.batch % 3],
            nonce=MACHINE.nonce,
        )
        self.store.retain(self.files)
        self.keeper = Keeper(upkeep, self.storage, self.store, self.files)
        self.spine = self.keeper.open(self.runs.values())
        self.batch += 1

    def seal(self, words):
        values = np.arange(self.serial, self.serial + len(words))
        self.serial += len(words)
        ordered = np.sort(np.array(words, np.uint64)) * np.uint64(STEP)
        columns = pa.RecordBatch.from_arrays([pa.array(values)], names=["v"])
        self.spine.append(self.keeper.seal(0, Side.LEFT, ordered, columns))
        self.model.update(zip(values.tolist(), ordered.tolist(), strict=True))

    def cut(self, number, lower, upper):
        one = self.spine[number % len(self.spine)]
        for value in self.values_of(one):
            if lower * STEP <= self.model[value] < upper * STEP:
                del self.model[value]
        self.spine.remove(one)
        rest = self.keeper.cut(one, [(lower * STEP, upper * STEP)])
        if rest.run.live:
            self.spine.append(rest)

    def forget(self, number):
        one = self.spine.pop(number % len(self.spine))
        for value in self.values_of(one):
            del self.model[value]
        self.keeper.forget(one.run)

    def merge(self):
        self.spine = self.keeper.merge(self.spine)
        held = {value for one in self.spine for value in self.values_of(one)}
        gone = self.model.keys() - held
        assert all(value < self.watermark for value in gone), "a merge lost what is needed"
        for value in gone:
            del self.model[value]

    def values_of(self, one):
        return one.columns.column("v").to_numpy()[one.live_rows()].tolist()

    def check(self):
        """Each tuple of the model once, under its word."""
        found = Counter()
        for one in self.spine:
            rows = one.live_rows()
            words = one.words[rows].tolist()
            assert words == sorted(words)
            found.update(zip(self.values_of(one), words, strict=True))
        assert found == Counter(self.model.items())

    def end(self):
        """The runs that are folded into the state are those that the keeper had."""
        changes = self.keeper.close()
        for ident in changes.gone:
            self.runs.pop(ident, None)
        self.runs.update(changes.runs)
        self.files.update({stored.name: stored for stored in changes.files})
        named = {run.file for run in self.runs.values()}
        self.files = {name: one for name, one in self.files.items() if name in named}
        assert {one.run.ident: one.run for one in self.spine} == self.runs


operations = st.one_of(
    st.tuples(st.just("seal"), st.lists(st.integers(0, 30), min_size=1, max_size=12)),
    st.tuples(st.just("cut"), st.integers(0, 9), st.integers(0, 30), st.integers(1, 12)),
    st.tuples(st.just("forget"), st.integers(0, 9)),
    st.tuples(st.just("merge")),
)


@relaxed
@given(
    batches=st.lists(
        st.tuples(st.integers(0, 40), st.lists(operations, max_size=8)), min_size=1, max_size=8
    )
)
def test_each_tuple_is_in_one_run(batches):
    with tempfile.TemporaryDirectory() as folder:
        kept = Kept(folder)
        for watermark, asked in batches:
            kept.begin(watermark)
            for name, *how in asked:
                if name == "seal":
                    kept.seal(*how)
                elif name == "merge":
                    kept.merge()
                elif kept.spine and name == "cut":
                    kept.cut(how[0], how[1], how[1] + how[2])
                elif kept.spine:
                    kept.forget(*how)
                kept.check()
            kept.end()


def test_a_relabelled_run_keeps_its_tuples():
    with tempfile.TemporaryDirectory() as folder:
        kept = Kept(folder)
        kept.begin(0)
        kept.seal([1, 2, 3])
        kept.end()
        kept.begin(0)
        (one,) = kept.spine
        kept.spine = [kept.keeper.relabel(one, NEWEST + 1)]
        kept.check()
        kept.end()
        assert [run.version for run in kept.runs.values()] == [NEWEST + 1]


def test_what_is_pulled_is_counted_as_moved():
    with tempfile.TemporaryDirectory() as folder:
        kept = Kept(folder)
        kept.begin(0)
        kept.seal(range(10))
        kept.end()
        kept.begin(0)
        pulled = list(kept.keeper.pull_all([(1, kept.runs.values(), [(3 * STEP, 7 * STEP)])]))
        changes = kept.keeper.close()
        assert [one.run.instance for one in pulled] == [1]
        assert pulled[0].words.tolist() == [n * STEP for n in range(3, 7)]
        assert changes.moved_rows == 4


def test_what_is_pulled_is_copied_in_parts_that_fit():
    """In batch 2 a part has a byte, and so a row."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Kept(folder)
        kept.batch = 1
        kept.begin(0)
        kept.seal(range(10))
        kept.end()
        kept.begin(0)
        pulled = kept.keeper.pull_all([(1, kept.runs.values(), [(0, 4 * STEP)])])
        assert [one.words.tolist() for one in pulled] == [[n * STEP] for n in range(4)]
