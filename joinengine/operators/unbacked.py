"""Counts the keys that have no second copy at present, because instances have lost state.

Cost: 5 ns for each key of a run, and more only for keys that are counted. All keys of the state are
looked at in each batch until the copies are restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from joinengine.kernels.hashing import Words, first_word
from joinengine.kernels.probing import group_keys, rows_among
from joinengine.model.keys import ALL_WORDS, Side
from joinengine.routing.base_functions import Backed
from joinengine.routing.routes import BACKUP, STORE
from joinengine.routing.table import TableRouter
from joinengine.state.run import OpenRun


def unbacked_keys(
    router: TableRouter, missing: Mapping[int, int], instance: int, runs: Iterable[OpenRun]
) -> int:
    """How many keys of `runs` have their home at `instance` and no complete copy elsewhere.

    `missing`: instance that lacks copies -> the first word that it lacks.
    """
    base, alone_here = router.base, list[Words]()
    assert isinstance(base, Backed)
    limits = np.full(base.instances, ALL_WORDS - 1, np.uint64)
    limits[list(missing)] = np.array(list(missing.values()), np.uint64)
    # A key has no complete copy from the first word that all its backups lack.
    firsts = limits[base.roles[:, 1:]].max(axis=1)
    firsts[base.roles[:, 0] != instance] = ALL_WORDS - 1
    alone = _listed_alone(router, limits, instance)
    for run in runs:
        words = run.words if run.gone is None else run.words[run.live_rows()]
        hashes = group_keys(words).hashes
        plain = hashes[first_word(hashes) >= firsts[base.rows(hashes)]]
        alone_here += [plain[~np.isin(plain, router.listed)], alone[rows_among(alone, hashes)[0]]]
    return len(np.unique(np.concatenate([np.empty(0, np.uint64), *alone_here])))


def _listed_alone(router: TableRouter, limits: Words, instance: int) -> Words:
    """The keys of the routing table with a home at an instance, and no complete copy elsewhere."""
    words = first_word(router.listed)
    copies = router.homes(Side.LEFT, words, np.zeros(len(words), np.uint16))
    at_instance = (copies.instances == instance) & (copies.flags == STORE)
    backed = (copies.flags == BACKUP) & (words[copies.rows] < limits[copies.instances])
    counts = (
        np.bincount(copies.rows[mask], minlength=len(words)) for mask in (at_instance, backed)
    )
    at_home, elsewhere = counts
    hashes: Words = router.listed[(at_home > 0) & (elsewhere == 0)]
    return hashes
