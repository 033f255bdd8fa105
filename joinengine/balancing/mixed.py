"""MinTable, MinMig and Mixed: whole keys, placed by LLFD, with a small table or little migration.

How: (1) *clean*: some keys of the table go back to their base homes; (2) *unload*: instances above
UL give keys to a pool; (3) *place*: LLFD. MinTable cleans all and unloads the heaviest keys;
MinMig cleans none and unloads by gamma = load^beta / state; Mixed cleans as few as keep the table
within `table_limit`, those of least state first; Mixed_BF tries every number of them.

Law: the plan is a function of its arguments. Cost: O(K log K) a trial; Mixed makes a few, Mixed_BF
as many as the table has entries.
Source: Fang et al., 2016 (arXiv 1610.05121), algorithms 2 to 4 and section 3. Ours: Mixed adds the
entries in excess to the number cleaned in the last trial (the paper says no more than "by the
amount"); where no trial keeps the limit, MinTable's plan is taken, as the paper's prose has it.
"""

from __future__ import annotations

import numpy as np

from joinengine.balancing.llfd import Assignment, as_changes, place, whole_homes
from joinengine.balancing.statistics import Floats, Ints, Loads

Changes = dict[int, dict[int, float]]


def plan_llfd(loads: Loads, imbalance: float) -> Changes:
    """No cleaning; the heaviest keys leave first."""
    homes, _ = whole_homes(loads)
    return as_changes(loads, _balance(loads, homes, _load(loads), imbalance))


def plan_mintable(loads: Loads, imbalance: float) -> Changes:
    """All keys cleaned; the heaviest leave first."""
    return as_changes(loads, _balance(loads, loads.homes, _load(loads), imbalance))


def plan_minmig(loads: Loads, imbalance: float, beta: float = 1.5) -> Changes:
    """No cleaning; those leave first that have most load^beta for their state."""
    homes, _ = whole_homes(loads)
    return as_changes(loads, _balance(loads, homes, gamma(loads, beta), imbalance))


def plan_mixed(
    loads: Loads, imbalance: float, beta: float = 1.5, table_limit: int = 3000
) -> Changes:
    """Clean as many keys of the table as keep it within `table_limit`."""
    homes, cleaning = _table_by_state(loads)
    cleaned = 0
    while True:
        found = _trial(loads, homes, cleaning[:cleaned], beta, imbalance)
        excess = table_size(loads, found) - table_limit
        if excess <= 0:
            return as_changes(loads, found)
        if cleaned == len(cleaning):
            return plan_mintable(loads, imbalance)
        cleaned = min(len(cleaning), cleaned + excess)


def plan_mixed_bf(
    loads: Loads, imbalance: float, beta: float = 1.5, table_limit: int = 3000
) -> Changes:
    """Try every number of keys to clean; of the plans within the limit take the least migration."""
    homes, cleaning = _table_by_state(loads)
    best, least = None, np.inf
    for cleaned in range(len(cleaning) + 1):
        found = _trial(loads, homes, cleaning[:cleaned], beta, imbalance)
        moved = float(loads.held[found != homes].sum())
        if table_size(loads, found) <= table_limit and moved < least:
            best, least = found, moved
    return plan_mintable(loads, imbalance) if best is None else as_changes(loads, best)


def gamma(loads: Loads, beta: float) -> Floats:
    """(K,) the migration priority: load^beta for each tuple of state."""
    priority: Floats = _load(loads) ** beta / np.maximum(loads.held, 1.0)
    return priority


def table_size(loads: Loads, homes: Ints) -> int:
    """Keys away from their base home."""
    return int((homes != loads.homes).sum())


def _load(loads: Loads) -> Floats:
    return loads.spread + loads.fixed


def _table_by_state(loads: Loads) -> tuple[Ints, Ints]:
    """The homes, and the keys of the table by ascending state."""
    homes, _ = whole_homes(loads)
    listed = np.flatnonzero(homes != loads.homes)
    return homes, listed[np.lexsort((loads.hashes[listed], loads.held[listed]))]


def _trial(loads: Loads, homes: Ints, cleaned: Ints, beta: float, imbalance: float) -> Ints:
    start = homes.copy()
    start[cleaned] = loads.homes[cleaned]
    return _balance(loads, start, gamma(loads, beta), imbalance)


def _balance(loads: Loads, homes: Ints, priority: Floats, imbalance: float) -> Ints:
    """Phases 2 and 3 from `homes`."""
    assignment = Assignment(loads, homes, priority, imbalance)
    place(assignment, assignment.unload())
    return assignment.homes
