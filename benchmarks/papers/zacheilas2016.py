"""Zacheilas et al., DAIS 2016: DLB and LPTF, judged by 100 * standard deviation / mean of loads.

All plans are of 4,096 keys on 5 engines, with a threshold of 15 %.
"""

from __future__ import annotations

import numpy as np

from benchmarks.papers.finding import Finding, homes_after, levels, spread_of, whole_keys
from joinengine.balancing import dlb
from joinengine.balancing.loads import Loads

KEYS, ENGINES, THRESHOLD = 4096, 5, 15.0
PLANS = {"DLB-L": dlb.plan_dlb_light, "DLB-H": dlb.plan_dlb_heavy, "LPTF": dlb.plan_lptf}


def findings() -> list[Finding]:
    """All statements on decisions."""
    return [hashing(), ends(), moved()]


def zipf(z: float, seed: int) -> Loads:
    """Keys hashed to engines."""
    rng = np.random.default_rng(seed)
    cost = rng.permutation(1e7 * np.arange(1, KEYS + 1) ** -z)
    base = rng.integers(0, ENGINES, KEYS)
    return whole_keys(cost, base, base, cost, ENGINES)


def hashing() -> Finding:
    """Key grouping alone."""
    found = [
        float(np.mean([dlb.score(levels(loads, loads.homes)) for loads in some]))
        for some in ([zipf(z, seed) for seed in range(30)] for z in (0.2, 1.5))
    ]
    return Finding(
        "section 5.2",
        "key grouping: deviation 3 % at Zipf 0.2, 77 % at 1.5 (recomputed 78)",
        f"{found[0]:.1f} % and {found[1]:.1f} %, means of 30 hashings",
        1 < found[0] < 6 and abs(found[1] - 78) < 8,
    )


def ends() -> Finding:
    """The deviation at which DLB ends."""
    holds, shown = True, list[str]()
    for z, bound in ((1.0, THRESHOLD), (1.2, THRESHOLD), (1.5, 46.8)):
        scores = {
            name: dlb.score(levels(loads, homes_after(loads, PLANS[name](loads, THRESHOLD))))
            for name in ("DLB-L", "DLB-H")
            for loads in [zipf(z, 1)]
        }
        holds &= max(scores.values()) <= bound + 0.5
        shown.append(f"z = {z}: {spread_of(list(scores.values()), '.1f')}")
    return Finding(
        "algorithm 1",
        "DLB-L and DLB-H end under 15 %, or when no single move helps: no whole-key plan is below "
        "14.9 at exponent 1.2 and 46.8 at 1.5",
        "; ".join(shown),
        holds,
        "DLB-H takes the heaviest key that lowers the score; if it tried the heaviest key alone, "
        "it would end at 61.6",
    )


def moved() -> Finding:
    """The part of the keys that each planner moves."""
    parts = dict[str, list[float]]()
    for seed in range(10):
        loads = zipf(1.0, seed)
        for name, plan in PLANS.items():
            after = homes_after(loads, plan(loads, THRESHOLD))
            if (after != loads.homes).any():
                parts.setdefault(name, []).append(100 * float((after != loads.homes).mean()))
    mean = {name: float(np.mean(found)) for name, found in parts.items()}
    return Finding(
        "figure 3a",
        "moved keys: DLB-H few heavy ones (at most 10 %), DLB-L many light ones (at most 30 %), "
        "LPTF 76 %",
        ", ".join(f"{name} {part:.2f} %" for name, part in mean.items()) + " (z = 1, ten hashings)",
        None,
        "here: one plan from hashing; there: the greatest part of any plan of a run. LPTF's part "
        "is (N - 1)/N = 80 % by chance alone",
    )
