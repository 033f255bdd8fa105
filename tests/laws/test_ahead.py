"""Tuples that are further ahead of the clock than `max_ahead` are as if they had not come."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.keys import PAIR
from joinengine.model.windows import within
from joinengine.world.world import Machine
from tests.harness import LocalQuery, two_way
from tests.laws.cases import (
    CHOICES,
    DISORDERED,
    EACH_ROUTER,
    HOT,
    feed,
    filters,
    kills,
    let_in,
    matched,
    model,
    relaxed,
    streams,
    usable,
    values,
    ways,
    windows,
)


class Clock(Machine):
    """A clock that stands still until it is set."""

    time_us = 0

    def now_s(self):
        return self.time_us / 1e6

    timer_s = now_s


class Clocked(LocalQuery):
    """Batch `b` begins at `times_us[b]` (a later one: at the last), whichever attempt it is."""

    def __init__(self, *args, times_us, **others):
        self.times_us = times_us
        super().__init__(*args, **others)

    def run_tuples(self, batch, left, right, map_tasks=2):
        self.world.time_us = self.times_us[min(batch, len(self.times_us) - 1)]
        super().run_tuples(batch, left, right, map_tasks)


def parted(batches, times_us, ahead_us):
    """The batches without the tuples that are ahead of time, and these, per side."""
    on_time, ahead = [], (Counter(), Counter())
    for number, batch in enumerate(batches):
        latest = times_us[min(number, len(times_us) - 1)] + ahead_us
        early = [[row for row in batch[s] if row[2] is not None and row[2] > latest] for s in PAIR]
        on_time.append(tuple([r for r in batch[s] if r not in early[s]] for s in PAIR))
        for side in PAIR:
            ahead[side].update(early[side])
    return on_time, ahead


@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@example(
    batches=HOT,
    window=within("lt", "rt", lower="-50 us", upper="70 us", delay="0 us"),
    times_us=[0, 40, 0, 200],
    ahead_us=30,
    asked=(None, None),
    kills={(1, "committed")},
    twice=True,
    way=DISORDERED,
)
@given(
    batches=streams(),
    window=windows.filter(bool),
    times_us=st.lists(st.integers(-200, 900), min_size=1, max_size=7),
    ahead_us=st.sampled_from([0, 50, 300]),
    asked=filters,
    kills=kills,
    twice=st.booleans(),
    way=ways,
)
def test_they_are_as_if_they_had_not_come(
    layout, batches, window, times_us, ahead_us, asked, kills, twice, way
):
    with tempfile.TemporaryDirectory() as folder:
        query = Clocked(
            folder,
            two_way(replace(window, ahead_us=ahead_us), 3, filters=asked),
            layout,
            choice=CHOICES[layout],
            jobs=InlineJobs(twice=twice, world=Clock(), **way),
            aside=True,
            times_us=times_us,
        )
        feed(query, batches, kills)
        on_time, _ = parted(batches, times_us, ahead_us)
        pairs, last = model(on_time, window, asked)
        assert values(query.output()) == pairs
        assert query.state.late_rows == last.late
        assert query.state.clock.watermark == last.watermark
        if last.late == 0:
            wanted = let_in(on_time, asked)
            assert query.output() == matched(*usable(wanted, window), window)
        counted = query.runner.manifest.totals.operators[0]["ahead_rows"]
        aside = [query.refused(side) for side in PAIR]
        assert counted == sum(n for one in aside for row, n in one.items() if row[-1] == "ahead")
        _, ahead = parted(let_in(batches, asked), times_us, ahead_us)
        for side in PAIR:
            found = {row[:-1]: n for row, n in aside[side].items() if row[-1] == "ahead"}
            # A tuple without a key has that reason.
            assert found == {row: n for row, n in ahead[side].items() if row[0] is not None}


def test_one_tuple_of_a_wrong_clock_makes_no_other_late(tmp_path):
    """Without the bound it does, which is why there is one."""
    window = within("lt", "rt", lower="0 us", upper="9 us", delay="0 us")
    batches = [([(1, 1, 5)], [(1, 2, 10**12), (1, 3, 6)]), ([(1, 4, 7)], [(1, 5, 8)])]
    late = {}
    for bound in (None, 100):
        query = Clocked(
            tmp_path / str(bound),
            two_way(replace(window, ahead_us=bound), 2),
            "hash",
            jobs=InlineJobs(world=Clock()),
            times_us=[10],
        )
        # The left side has seen as much, or its clock would hold the watermark back.
        feed(query, [([*left, (2, 9, 10**12)], right) for left, right in batches])
        late[bound] = query.state.late_rows, values(query.output())
        assert query.runner.manifest.clock_s == 10 / 1e6
    met = Counter([(1, 3), (1, 5), (4, 5)])
    assert late == {None: (2, Counter([(1, 3)])), 100: (0, met)}
    joined = query.records[0].joins[0]
    assert (joined.refused.ahead, joined.refused.late) == (2, 0)


def test_a_tuple_at_the_bound_is_let_in(tmp_path):
    window = within("lt", "rt", lower="0 us", upper="9 us", delay="0 us", max_ahead="100 us")
    query = Clocked(
        tmp_path, two_way(window, 2), "hash", jobs=InlineJobs(world=Clock()), times_us=[7]
    )
    query.run_tuples(0, [(1, 1, 107), (1, 2, 108)], [(1, 3, 107)])
    assert values(query.output()) == Counter([(1, 3)])


@pytest.mark.parametrize("how", ["full", "left_anti"])
def test_no_unmatched_row_is_shown_of_them(how, tmp_path):
    """As of late tuples: nothing is known of what they would have met."""
    window = within("lt", "rt", lower="0 us", upper="9 us", delay="0 us", max_ahead="5 us")
    query = Clocked(
        tmp_path, two_way(window, 2, how=how), "hash", jobs=InlineJobs(world=Clock()), times_us=[0]
    )
    query.run_tuples(0, [(1, 1, 3), (1, 2, 1000), (None, 4, 1000)], [(2, 3, 4)])
    query.run_tuples(1, [(3, 5, 4)], [(3, 6, 4)])
    query.finish(2)
    left = [row[1] for row in query.output().elements() if row[1] is not None]
    assert sorted(left) == ([1, 5] if how == "full" else [1])
    assert query.runner.manifest.totals.operators[0]["ahead_rows"] == 2
