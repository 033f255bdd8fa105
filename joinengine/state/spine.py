"""Spines: the runs of one side at one instance, kept few by merging.

Why: a probe searches every run of a spine. Each batch seals a run, so unless runs are merged, the
cost of a batch grows with the length of the stream. Runs are merged a little at a time, because
merging all at once would stall one batch.

How: runs of like size are merged four at a time, so that a row is copied once per power of four. A
merge copies a limited number of rows in a batch, from the lowest words up: each step seals a
*piece* and excludes the copied word range from its inputs. The pieces of one merge, its *merge
group*, form one sorted run.

Law: at any moment each live row is in exactly one run. Under a window, merging delays the expiry of
a row by at most 1/8 of the window's span.
Cost: a row is copied log4(state / batch) times over its life, and up to SMALL_ROWS / (3 batch)
times while its run is small. There are at most 3 live groups per power of four, where all sizes
below SMALL_ROWS count as one power. In addition there are the inputs of merges in progress and,
under a window, those of 8 spans of 1/8.
Source: the logarithmic method (Bentley and Saxe 1980) as in LSM trees, size-tiered. Metering a
merge by the work that arrives is the idea of differential dataflow's fueled spine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joinengine.kernels.hashing import Words
from joinengine.state.run import Run

#: How many runs of like size are merged. With four, a row is copied half as often as with two, and
#: a probe searches at most three runs for each power of four.
FAN_IN = 4
#: Runs of fewer rows than SMALL_ROWS count as of like size: copying their rows costs less than
#: searching one more run. But a run with more than 1/SMALL_PART of the rows that may be merged is
#: never small.
SMALL_ROWS, SMALL_PART = 128, 8
#: A merge may delay the expiry of a row by 1/WINDOW_PART of the window's span.
WINDOW_PART = 8


@dataclass(frozen=True, slots=True)
class MergeStep:
    """A step of a merge: copy at most `max_rows` live rows of `inputs` into a piece of `group`.

    It copies the lowest words first. `group`: None: the merge starts with this step.
    """

    inputs: tuple[Run, ...]
    group: int | None
    max_rows: int


def plan_merges(spine: Sequence[Run], max_rows: int, span_us: int | None) -> list[MergeStep]:
    """The merges to do now in one spine (one side, instance and version), `max_rows` in all.

    `span_us`: the span of the window; None: no window. Merges in progress come before new ones,
    small ones first.
    """
    steps = list[MergeStep]()
    if len(spine) < FAN_IN and all(run.into is None and 2 * run.live >= run.rows for run in spine):
        return steps  # the usual case if there are many instances
    left = max_rows
    small = max(min(SMALL_ROWS, max_rows // SMALL_PART), 1)
    candidates = _candidates(spine, span_us, small)
    waiting = [*_in_progress(spine), *((None, inputs) for inputs in candidates)]
    for group, inputs in waiting:
        if left <= 0:
            break
        steps.append(MergeStep(inputs, group, left))
        left -= sum(run.live for run in inputs)
    return steps


def cut_word(inputs: Sequence[Words], max_rows: int) -> int:
    """Sorted word arrays -> a word with at most `max_rows` of their rows below it; 2^64: all are.

    But all rows of the lowest word are below it, so that a merge always advances.
    """
    if sum(map(len, inputs)) <= max_rows:
        return 1 << 64
    low = min(int(words[0]) for words in inputs if len(words)) + 1
    high = 1 << 64
    while high - low > 1:
        middle = (low + high) // 2
        if sum(int(np.searchsorted(words, np.uint64(middle))) for words in inputs) <= max_rows:
            low = middle
        else:
            high = middle
    return low


def _in_progress(spine: Sequence[Run]) -> list[tuple[int, tuple[Run, ...]]]:
    started = defaultdict[int, list[Run]](list)
    for run in spine:
        if run.into is not None:
            started[run.into].append(run)
    return sorted(
        ((group, tuple(runs)) for group, runs in started.items()),
        key=lambda merge: sum(run.live for run in merge[1]),
    )


def _candidates(spine: Sequence[Run], span_us: int | None, small: int) -> list[tuple[Run, ...]]:
    """The inputs of merges that may start: whole groups of one level, oldest first.

    Groups with fewer than `small` rows are of one level.
    """
    targets = {run.into for run in spine}
    groups = defaultdict[int, list[Run]](list)
    for run in spine:
        if run.into is None and run.group not in targets:
            groups[run.group].append(run)
    levels = defaultdict[int, list[list[Run]]](list)
    for runs in groups.values():
        live = sum([run.live for run in runs])
        if 2 * live < sum([run.rows for run in runs]):
            levels[-1].append(runs)  # most rows are excluded: the group is rewritten by itself
        else:
            levels[max(live, small - 1, 1).bit_length() // 2].append(runs)
    chosen = [tuple(runs) for runs in levels.pop(-1, [])]
    for level in [levels[size] for size in sorted(levels) if len(levels[size]) >= FAN_IN]:
        level.sort(key=_newest)
        while len(level) >= FAN_IN:
            inputs = [run for runs in level[:FAN_IN] for run in runs]
            if _holds_back_us(inputs) <= _allowed_us(span_us):
                chosen.append(tuple(inputs))
                del level[:FAN_IN]
            else:
                del level[0]
    return chosen


def _allowed_us(span_us: int | None) -> float:
    return np.inf if span_us is None else span_us / WINDOW_PART


def _newest(runs: Sequence[Run]) -> int:
    return max(run.max_time or 0 for run in runs)


def _holds_back_us(inputs: Sequence[Run]) -> int:
    settled = [run.settled_time for run in inputs if run.settled_time is not None]
    return _newest(inputs) - min(settled) if settled else 0
