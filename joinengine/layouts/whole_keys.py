"""Key-based layouts that move whole keys.

They differ in what they minimise: the size of the table, the state that moves, or the time to plan.
If one key is heavier than UL, no plan of whole keys brings balance, and only splitting helps: plans
then end at the least maximum that whole keys allow (`balancing.exchanging`).

Source: Fang et al., 2016 (arXiv 1610.05121); Gedik, VLDBJ 2014 (readj); Zacheilas et al., DAIS 2016
(dlb-l, dlb-h, lptf).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from joinengine.balancing import dlb, mixed
from joinengine.balancing.exchanging import least_whole
from joinengine.balancing.llfd import ROUNDING, as_changes, homes_after
from joinengine.balancing.loads import Loads
from joinengine.balancing.readj import plan_readj
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Floats
from joinengine.layouts.key_based import Planned, WithinLimit
from joinengine.layouts.layout_settings import FINITE, Range, setting

_FANG = "Fang et al., 2016"


@dataclass(frozen=True)
class _WholeKeys(Planned):
    """A paper's planner; where it cannot meet its limit, its plan ends at the least maximum."""

    @abstractmethod
    def moves(self, loads: Loads) -> NewShares:
        """The paper's moves."""

    @abstractmethod
    def meets(self, level: Floats) -> bool:
        """Whether loads (N,) are what the planner aims at."""

    @override
    def changes(self, loads: Loads) -> NewShares:
        moves = self.moves(loads)
        homes = homes_after(loads, moves)
        cost = loads.spread + loads.fixed
        level = loads.rest + np.bincount(homes, cost, minlength=loads.n_instances)
        if self.meets(level):
            return moves
        return as_changes(loads, least_whole(cost, homes, loads.rest, self.limit(level)))


@dataclass(frozen=True)
class _Levelled(WithinLimit, _WholeKeys):
    """A planner of whole keys with a limit on the greatest load."""

    @override
    def meets(self, level: Floats) -> bool:
        return bool(level.max() <= self.limit(level) * (1 + ROUNDING))


@dataclass(frozen=True)
class Readj(_Levelled):
    """Swaps and moves of heavy keys."""

    sigma: float | None = setting(
        None,
        "the least load of a heavy key, in means; none: searched",
        "Gedik 2014, as in Fang 2016 and 2017",
        within=Range(is_open=True),
    )

    name: ClassVar[str] = "readj"
    source: ClassVar[str] = "Gedik, VLDBJ 2014"
    summary: ClassVar[str] = "swaps heavy keys pair by pair, the best pair first"

    @override
    def moves(self, loads: Loads) -> NewShares:
        """Make the best exchange until none helps."""
        return plan_readj(loads, self.imbalance, self.sigma)


#: With R = 2^16 rounding would exceed any tolerance.
MOST_DEGREE = 16


@dataclass(frozen=True)
class _ByRecords(_Levelled):
    """Keys are placed one by one, or as records."""

    degree: int | None = setting(
        None,
        "keys are placed as records, rounded by R = 2^degree; none: one by one",
        "Fang 2016, section 4",
        within=Range(0, MOST_DEGREE),
    )


@dataclass(frozen=True)
class Llfd(_ByRecords):
    """Heaviest keys first, each to the least loaded instance, lighter keys exchanged."""

    name: ClassVar[str] = "llfd"
    source: ClassVar[str] = f"{_FANG}, algorithm 1"
    summary: ClassVar[str] = (
        "least-load fit decreasing: the heaviest key goes to the least loaded instance, in "
        "exchange for lighter keys"
    )

    @override
    def moves(self, loads: Loads) -> NewShares:
        """Algorithm 1 on the load above the limit."""
        return mixed.plan_llfd(loads, self.imbalance, degree=self.degree)


@dataclass(frozen=True)
class MinTable(_ByRecords):
    """Forget the table, then LLFD: the smallest table, much migration."""

    name: ClassVar[str] = "mintable"
    source: ClassVar[str] = f"{_FANG}, algorithm 2"
    summary: ClassVar[str] = "keeps the routing table small; plans anew each time"

    @override
    def moves(self, loads: Loads) -> NewShares:
        return mixed.plan_mintable(loads, self.imbalance, degree=self.degree)


@dataclass(frozen=True)
class _ByPriority(_ByRecords):
    """Keys leave by load^`beta` per tuple of state."""

    beta: float = setting(
        1.5,
        "keys with the most load^beta for each tuple of state leave first",
        "Fang 2016, algorithm 3",
        within=FINITE,
    )


@dataclass(frozen=True)
class MinMig(_ByPriority):
    """Keep the table, move least state; the table grows."""

    name: ClassVar[str] = "minmig"
    source: ClassVar[str] = f"{_FANG}, algorithm 3"
    summary: ClassVar[str] = "moves as little as possible; its routing table grows"

    @override
    def moves(self, loads: Loads) -> NewShares:
        return mixed.plan_minmig(loads, self.imbalance, self.beta, degree=self.degree)


@dataclass(frozen=True)
class _Limited(_ByPriority):
    """The table stays within `table_limit` entries if it can."""

    table_limit: int = setting(
        3000,
        "the routing table has so many entries at most, if it can",
        "A_max of Fang 2016, algorithm 4",
        within=Range(),
    )


@dataclass(frozen=True)
class Mixed(_Limited):
    """Little migration under a limit on the table."""

    name: ClassVar[str] = "mixed"
    source: ClassVar[str] = f"{_FANG}, algorithm 4"
    summary: ClassVar[str] = "little migration within a limit on the routing table"

    @override
    def moves(self, loads: Loads) -> NewShares:
        return mixed.plan_mixed(
            loads, self.imbalance, self.beta, self.table_limit, degree=self.degree
        )


@dataclass(frozen=True)
class MixedBf(_Limited):
    """Mixed that tries every number of keys to clean."""

    name: ClassVar[str] = "mixed-bf"
    source: ClassVar[str] = f"{_FANG}, section 3.3"
    summary: ClassVar[str] = "mixed by brute force: least migration, slow to plan"

    @override
    def moves(self, loads: Loads) -> NewShares:
        return mixed.plan_mixed_bf(
            loads, self.imbalance, self.beta, self.table_limit, degree=self.degree
        )


@dataclass(frozen=True)
class _ByDeviation(_WholeKeys):
    """Loads are judged by their deviation: 100 * standard deviation / mean.

    A plan is due if the deviation is above `threshold` by more than noise. It pays if it lowers the
    deviation by `min_gain`.
    """

    threshold: float = setting(
        15.0,
        "a plan is due above this deviation: 100 * standard deviation / mean of the loads",
        "Zacheilas 2016, algorithm 1",
        within=Range(),
    )
    min_gain: float = setting(1.0, "a plan must lower the deviation by so much", within=Range())

    @override
    def limit(self, level: Floats) -> float:
        """The mean and `threshold` per cent of it."""
        return (1 + self.threshold / 100) * float(level.mean())

    @override
    def is_due(self, level: Floats) -> bool:
        return dlb.score(level) ** 2 > self.threshold**2 + dlb.chance(level)

    @override
    def meets(self, level: Floats) -> bool:
        return dlb.score(level) <= self.threshold

    @override
    def pays(self, before: Floats, after: Floats) -> bool:
        gain = dlb.score(before) - dlb.score(after)
        return gain > 0 and gain >= self.min_gain


@dataclass(frozen=True)
class DlbLight(_ByDeviation):
    """From the most to the least loaded instance, lightest keys first."""

    name: ClassVar[str] = "dlb-l"
    source: ClassVar[str] = "Zacheilas et al., DAIS 2016, algorithm 1"
    summary: ClassVar[str] = (
        "dynamic load balancing, light: moves the lightest keys of the most loaded instance"
    )

    @override
    def moves(self, loads: Loads) -> NewShares:
        return dlb.plan_dlb_light(loads, self.threshold)


@dataclass(frozen=True)
class DlbHeavy(_ByDeviation):
    """From the most to the least loaded instance, heaviest keys first."""

    name: ClassVar[str] = "dlb-h"
    source: ClassVar[str] = "Zacheilas et al., DAIS 2016, algorithm 1"
    summary: ClassVar[str] = (
        "dynamic load balancing, heavy: moves the heaviest keys of the most loaded instance"
    )

    @override
    def moves(self, loads: Loads) -> NewShares:
        return dlb.plan_dlb_heavy(loads, self.threshold)


@dataclass(frozen=True)
class Lptf(_ByDeviation):
    """All keys anew, heaviest first."""

    name: ClassVar[str] = "lptf"
    source: ClassVar[str] = "Zacheilas et al., DAIS 2016, section 5"
    summary: ClassVar[str] = "longest processing time first: places all keys anew; moves most keys"

    @override
    def moves(self, loads: Loads) -> NewShares:
        return dlb.plan_lptf(loads, self.threshold)
