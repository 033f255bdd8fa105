"""Which keys the tasks of a batch are asked to count, for the plan after it. Pure, no files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joinengine.balancing.counting import NO_KEYS, Asked
from joinengine.balancing.statistics import Interval
from joinengine.kernels.probing import distinct, rows_among
from joinengine.layouts import Chosen
from joinengine.layouts.layout import by_instance


def asked_keys(chosen: Chosen, history: Sequence[Interval]) -> list[Asked] | None:
    """The keys that each instance counts in any case; None: the planner needs no counts.

    These are the keys in the routing table, and those whose loads of earlier batches the planner
    will see beside the next batch; a light report has only the former. A key is counted at every
    instance where the layout probes for it, since these are the instances that store it.
    """
    choice, router = chosen.choice, chosen.router
    if not choice.counts_keys:
        return None
    listed = chosen.listed_at
    if not choice.asks(chosen.layout, history):
        spares = choice.spares_reports
        return [Asked(keys, NO_KEYS.recent, whole=False, sparing=spares) for keys in listed]
    kept = history[max(len(history) + 1 - choice.history_intervals, 0) :]
    loaded = np.concatenate([np.empty(0, np.uint64), *(interval.loaded for interval in kept)])
    loaded = distinct(loaded)
    others = np.ones(len(loaded), bool)
    others[rows_among(loaded, router.listed)[0]] = False
    recent = by_instance(router, loaded[others])
    return [Asked(*keys) for keys in zip(listed, recent, strict=True)]


def asked_of(asked: Sequence[Asked] | None, hosted: Sequence[int]) -> dict[int, Asked] | None:
    """The keys that a task counts; none at instances that only older layouts or watchers have."""
    if asked is None:
        return None
    return {i: asked[i] if i < len(asked) else NO_KEYS for i in hosted}
