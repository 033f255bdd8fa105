"""Chooses the keys that the tasks of a batch count for the next plan. Pure: no files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joinengine.balancing.counting import Asked
from joinengine.balancing.statistics import Interval, few_after
from joinengine.kernels.probing import distinct, rows_among
from joinengine.layouts import Chosen
from joinengine.layouts.layout import keys_at


def asked_keys(chosen: Chosen, history: Sequence[Interval]) -> Asked | None:
    """The keys that instances count in any case; None: the planner needs no counts.

    These are the keys in the routing table and, in a whole report, the keys whose loads of earlier
    batches the planner will see beside the next batch. A key is counted at every instance where the
    layout probes for it, since these are the instances that store it.
    """
    choice, router = chosen.choice, chosen.router
    if not choice.counts_keys:
        return None
    asked = Asked(chosen.listed_at, part=choice.heavy_part)
    if not choice.asks(chosen.layout, history):
        few = few_after(history) if choice.spares_reports else 0
        return asked._replace(whole=False, few=few)
    kept = history[max(len(history) + 1 - choice.history_intervals, 0) :]
    loaded = np.concatenate([np.empty(0, np.uint64), *(interval.loaded for interval in kept)])
    loaded = distinct(loaded)
    others = np.ones(len(loaded), bool)
    others[rows_among(loaded, router.listed)[0]] = False
    return asked._replace(recent=keys_at(router, loaded[others]))


def asked_of(asked: Asked | None, hosted: Sequence[int]) -> Asked | None:
    """The part of `asked` for one task; no keys at instances of older layouts or watchers only."""
    if asked is None:
        return None
    return asked._replace(listed=asked.listed.of(hosted), recent=asked.recent.of(hosted))
