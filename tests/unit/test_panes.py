"""Which windows are shown: those that hold a pane, listed once and only if they are due."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joinengine.model.aggregation import Panes
from joinengine.model.windows import INT_MAX, INT_MIN

moments = st.one_of(st.just(-math.inf), st.just(math.inf), st.integers(-99, 99).map(float))


@given(
    size=st.integers(1, 30),
    slide=st.integers(1, 9),
    times=st.lists(st.integers(-99, 99), max_size=6),
    closed=moments,
    watermark=moments,
)
def test_ends_are_those_of_the_windows_that_hold_a_pane(size, slide, times, closed, watermark):
    windows = Panes(size, slide)
    panes = windows.pane_of(np.array(times, np.int64))
    starts = range(-40 * slide, 140 * slide, slide)  # some below -99 - 30, and above 99
    starts = sorted({*starts, *(-start for start in starts)})
    held = (start for start in starts if any(start <= time < start + size for time in times))
    expected = [start + size for start in held if closed < start + size <= watermark]
    assert windows.ends(panes, closed, watermark).tolist() == expected


def test_windows_that_are_far_from_due_are_not_listed():
    windows = Panes(86_400_000_000, 1_000_000)
    panes = windows.pane_of(np.arange(3600) * 1_000_000)
    tracemalloc.start()
    assert len(windows.ends(panes, 0.0, 2e6)) == 2
    assert len(windows.ends(panes, 0.0, math.inf)) == 86_400 + 3600 - 1
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_ends_at_the_limits_of_times():
    windows = Panes(1, 1)
    assert not len(windows.ends(np.array([INT_MAX - 5]), -math.inf, INT_MIN + 9))
    assert windows.ends(np.array([INT_MIN + 5]), -math.inf, INT_MIN + 9).tolist() == [INT_MIN + 5]
