"""Figure 9 of Nasir et al., ICDE 2015: imbalance over the number of choices."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding, spread_of
from benchmarks.papers.pkg_streams import BALANCED, SEEDS, final_imbalance, rehashed
from joinengine.lab.simulation.candidate_layouts import Setting
from joinengine.lab.simulation.workload import Workload

MESSAGES, KEYS, ZIPF = 50_000, 1_000_000, 1.2
WORKERS = (5, 10, 40, 50, 100)
CHOICES = (2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 16, 20, 25, 32, 40)
#: The text's numbers of choices, and how many suffice here at most for the rule.
STATED = {5: ("4", 5), 40: ("9", 12), 50: ("a few tens", 40), 100: ("a few tens", 40)}


def make(say: Callable[[str], None]) -> Made:
    """I(m) / m by workers and choices, and the least number of choices that balances."""
    means = {w: [0.0] * len(CHOICES) for w in WORKERS}
    least = dict[int, list[float]]()
    for seed in SEEDS:
        keys = rehashed(Workload(keys=KEYS, zipf=ZIPF, seed=seed).messages(MESSAGES), seed)
        for w in WORKERS:
            say(f"draw {seed}, {w} workers")
            found = [final_imbalance("pkg", keys, Setting(w, choices=d)) for d in CHOICES]
            means[w] = [a + b / len(SEEDS) for a, b in zip(means[w], found, strict=True)]
            enough = [d for d, x in zip(CHOICES, found, strict=True) if x < BALANCED]
            least.setdefault(w, []).append(enough[0] if enough else float("inf"))
    shown = "; ".join(f"W = {w}: {spread_of(ds, '.0f')}" for w, ds in least.items())
    series = {f"{w} workers": [max(x, 1e-6) for x in means[w]] for w in WORKERS}
    return Made(
        [Panel.over("", "choices d", "I(m) / m", CHOICES, series, "xy")],
        [
            Finding(
                "figure 9",
                "z = 1.2, 10^6 keys: d = 4 restores balance for W = 5, 9 for 40, a few tens for 50 "
                "and 100",
                f"least d of three seeds, {shown}",
                all(max(least[w]) <= most for w, (_, most) in STATED.items()),
                "rule: at most 5, 12, 40 and 40. Balanced: I(m) / m below 1e-3; candidates are "
                "independent hashes and may coincide, so the least d varies with the seed",
            )
        ],
    )


FIGURE = Figure(
    "001-9",
    "Imbalance over the number of choices",
    f"ZF with z = 1.2 and 10^6 keys, {MESSAGES:,} messages (10 M in the paper), one source, mean "
    f"of {len(SEEDS)} seeds",
    1.5,
    make,
)
