"""Evaluates the predicates of service levels, where the tuples of the keys are.

Why: planners know keys only as hashes. So each task evaluates the predicates for the keys that it
reports, on a tuple of each.

Cost: for each predicate one call of DuckDB a batch, instance and run, and a gathered row a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from joinengine.exchange.keying import Keying
from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints
from joinengine.layouts.service_levels import Level
from joinengine.model.conditions import Predicate
from joinengine.operators.hot import tuples_of
from joinengine.predicates.theta import passes
from joinengine.state.run import OpenRun

#: (K,) ascending key hashes -> (K,) the backups that predicates give to each; 0: none holds.
Named = Callable[[Words], Ints]


def named_in(
    levels: Sequence[Level], keying: Keying, runs: Sequence[Iterable[OpenRun]]
) -> Named | None:
    """Gives the backups of keys by `levels`, from the tuples of `runs`; None: no predicates."""
    if not levels:
        return None
    held = [list(spine) for spine in runs]

    def named(hashes: Words) -> Ints:
        most = np.zeros(len(hashes), np.int64)
        for places, side, columns, rows in tuples_of(keying, held, hashes):
            keys = columns.select(keying.keys[side]).take(pa.array(rows))
            for level in levels:
                assert level.predicate is not None
                places_named = places[_holds(level.predicate, keying, keys)]
                most[places_named] = np.maximum(most[places_named], level.backups)
        return most

    return named


def _holds(predicate: Predicate, keying: Keying, keys: pa.RecordBatch) -> np.ndarray:
    """(n,) whether a predicate is true of keys; it may use the column names of any side."""
    places = [
        next(names.index(name) for names in keying.keys if name in names)
        for _, name in predicate.columns
    ]
    named = [name for _, name in predicate.columns]
    batch = pa.RecordBatch.from_arrays([keys.column(place) for place in places], names=named)
    return passes(predicate, batch)
