"""MinTable, MinMig and Mixed: whole keys, placed by LLFD, with a small table or little migration.

How: (1) *clean*: some keys of the table go back to their base homes; (2) *unload*: instances above
UL give keys to a pool; (3) *place*: LLFD. MinTable cleans all and unloads the heaviest keys;
MinMig cleans none and unloads by gamma = load^beta / state; Mixed cleans the fewest keys that keep
the table within `table_limit`, those of least state first; Mixed_BF tries every number of them.

All of them place single keys, or, if `degree` is given, records of keys that are alike
(`compact`).

Law: the plan is a function of its arguments. Cost: O(K log K) a trial; Mixed makes a few, Mixed_BF
as many as the table has entries.
Source: Fang et al., 2016 (arXiv 1610.05121), algorithms 2 to 4 and section 3. Ours: Mixed adds the
entries in excess to the number cleaned in the last trial (the paper says no more than "by the
amount"); if no trial keeps the limit, MinTable's plan is taken, as the paper's prose has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from joinengine.balancing.compact import Items, Spots, placed_anew, records, single_keys
from joinengine.balancing.llfd import Assignment, place, whole_homes
from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Bools, Floats, Ints


def plan_llfd(loads: Loads, imbalance: float, *, degree: int | None = None) -> NewShares:
    """No cleaning; the heaviest keys leave first."""
    task = Task.of(loads, imbalance, None, degree)
    return task.changes(task.balanced(task.cleaned(0)))


def plan_mintable(loads: Loads, imbalance: float, *, degree: int | None = None) -> NewShares:
    """All keys cleaned; the heaviest leave first."""
    task = Task.of(loads, imbalance, None, degree)
    return task.changes(task.mintable())


def plan_minmig(
    loads: Loads, imbalance: float, beta: float = 1.5, *, degree: int | None = None
) -> NewShares:
    """No cleaning; keys with the most load^beta for each tuple of state leave first."""
    task = Task.of(loads, imbalance, beta, degree)
    return task.changes(task.balanced(task.cleaned(0)))


def plan_mixed(
    loads: Loads,
    imbalance: float,
    beta: float = 1.5,
    table_limit: int = 3000,
    *,
    degree: int | None = None,
) -> NewShares:
    """Clean as many keys of the table as keep it within `table_limit`."""
    task = Task.of(loads, imbalance, beta, degree)
    cleaned = 0
    while True:
        homes = task.balanced(task.cleaned(cleaned))
        excess = task.table_size(homes) - table_limit
        if excess <= 0:
            return task.changes(homes)
        if cleaned == task.entries:
            return task.changes(task.mintable())
        cleaned = min(task.entries, cleaned + excess)


def plan_mixed_bf(
    loads: Loads,
    imbalance: float,
    beta: float = 1.5,
    table_limit: int = 3000,
    *,
    degree: int | None = None,
) -> NewShares:
    """Try every number of keys to clean; of the plans within the limit take the least migration."""
    task = Task.of(loads, imbalance, beta, degree)
    best, least = None, np.inf
    for cleaned in range(task.entries + 1):
        homes = task.balanced(task.cleaned(cleaned))
        moved = task.moved_state(homes)
        if task.table_size(homes) <= table_limit and moved < least:
            best, least = homes, moved
    return task.changes(task.mintable() if best is None else best)


def gamma(cost: Floats, state: Floats, beta: float) -> Floats:
    """The migration priority: load^beta for each tuple of state."""
    priority: Floats = cost**beta / np.maximum(state, 1.0)
    return priority


@dataclass(frozen=True)
class Task:
    """One planning: the items to place, and the priority by which keys leave an instance."""

    items: Items
    priority: Floats | Ints
    rest: Floats
    imbalance: float
    whole: Bools
    listed: Ints

    @classmethod
    def of(cls, loads: Loads, imbalance: float, beta: float | None, degree: int | None) -> Task:
        """`beta` None: the heaviest keys leave first; `degree` None: keys one by one."""
        homes, whole = whole_homes(loads)
        if degree is None:
            items = single_keys(loads, homes)
        else:
            items = records(
                loads, homes, _priority(loads.spread + loads.fixed, loads.held, beta), degree
            )
        listed = np.flatnonzero(items.now != items.base)
        listed = listed[np.argsort(items.state[listed], kind="stable")]
        priority = _ranked(_priority(items.cost, items.state, beta))
        return cls(items, priority, loads.rest, imbalance, whole, listed)

    @property
    def entries(self) -> int:
        """How many keys are in the table."""
        return int(self.items.counts[self.listed].sum())

    def cleaned(self, n: int) -> Spots:
        """The items at their homes, but the `n` table keys of least state at their base homes."""
        items = self.items
        counts = items.counts[self.listed]
        back = np.clip(n - (np.cumsum(counts) - counts), 0, counts)
        stay = items.counts.copy()
        stay[self.listed] -= back
        some, gone = np.flatnonzero(stay), back > 0
        return Spots(
            np.concatenate([some, self.listed[gone]]),
            np.concatenate([items.now[some], items.base[self.listed[gone]]]),
            np.concatenate([stay[some], back[gone]]),
        )

    def balanced(self, spots: Spots) -> Spots:
        """Unload and place: phases 2 and 3."""
        assignment = Assignment(self.items, spots, self.rest, self.priority, self.imbalance)
        place(assignment, assignment.unload())
        return assignment.spots()

    def mintable(self) -> Spots:
        """All keys cleaned; the heaviest leave first."""
        heaviest = replace(self, priority=self.items.cost)
        return heaviest.balanced(self.cleaned(self.entries))

    def table_size(self, spots: Spots) -> int:
        """How many keys are away from their base home."""
        return int(spots.counts[spots.instances != self.items.base[spots.items]].sum())

    def moved_state(self, spots: Spots) -> float:
        """How many tuples of state change their home."""
        moved = spots.instances != self.items.now[spots.items]
        return float((self.items.state[spots.items] * spots.counts)[moved].sum())

    def changes(self, spots: Spots) -> NewShares:
        """The keys to be placed anew."""
        return placed_anew(self.items, spots, self.whole)


def _priority(cost: Floats, state: Floats, beta: float | None) -> Floats:
    return cost if beta is None else gamma(cost, state, beta)


def _ranked(values: Floats) -> Ints:
    """(I,) the rank of each value, equal ones alike; in 16 bits if they fit, which sort in O(I)."""
    kinds, ranks = np.unique(values, return_inverse=True)
    return ranks.astype(np.int16 if len(kinds) <= np.iinfo(np.int16).max else np.int64)
