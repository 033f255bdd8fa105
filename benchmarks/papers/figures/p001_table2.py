"""Table II of Nasir et al., ICDE 2015: the imbalance of five methods on two streams."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding, spread_of
from benchmarks.papers.pkg_streams import (
    BALANCED,
    MESSAGES,
    STAND_INS,
    WORKERS,
    final_imbalance,
    stream,
)
from joinengine.lab.simulation.candidate_layouts import Setting

METHODS = {
    "PKG": "pkg",
    "Off-Greedy": "off-greedy",
    "On-Greedy": "on-greedy",
    "PoTC": "potc",
    "Hashing": "hash",
}
#: I(m) / m.
STATED = {
    ("WP", "PKG"): (3.7e-8, 1.3e-7, 2.7e-2, 3.7e-2),
    ("WP", "Off-Greedy"): (3.7e-8, 4.1e-8, 7.4e-2, 8.3e-2),
    ("WP", "On-Greedy"): (3.6e-7, 6.4e-3, 7.4e-2, 8.3e-2),
    ("WP", "PoTC"): (7.3e-7, 7.8e-3, 7.4e-2, 8.3e-2),
    ("WP", "Hashing"): (6.4e-2, 7.8e-2, 9.2e-2, 9.2e-2),
    ("TW", "PKG"): (3.4e-10, 1.4e-9, 2.3e-9, 3.4e-3),
    ("TW", "Off-Greedy"): (3.4e-10, 6e-10, 6.7e-3, 1.7e-2),
    ("TW", "On-Greedy"): (7.2e-9, 7.9e-8, 1.0e-2, 1.7e-2),
    ("TW", "PoTC"): (1.9e-5, 4.3e-6, 1.2e-2, 1.7e-2),
    ("TW", "Hashing"): (3.5e-2, 3.2e-2, 2.0e-2, 2.8e-2),
}
#: The least part of a key at one worker: how far PKG and Off-Greedy can go.
BOUNDS = {"PKG": 2, "Off-Greedy": 1}
#: Below this, a bound says neither balanced nor by how much not.
NEAR = 2e-3


def make(say: Callable[[str], None]) -> Made:
    """Methods by workers, on both streams."""
    panels, findings = list[Panel](), list[Finding]()
    found = dict[tuple[str, str], list[float]]()
    for letter, name in (("a", "WP"), ("b", "TW")):
        keys = stream(name)
        top = float((keys == 0).mean())
        for label, method in METHODS.items():
            say(f"{name}, {label}")
            row = [final_imbalance(method, keys, Setting(w)) for w in WORKERS]
            found[name, label] = row
            findings.append(_against(name, label, row, top))
        # An imbalance of 0 has no place on a logarithmic axis; I is at least 1 / W of a message.
        series = {m: [max(x, 1 / MESSAGES / 10) for x in found[name, m]] for m in METHODS}
        panels.append(Panel.over(letter, f"workers, {name}", "I(m) / m", WORKERS, series, "xy"))
    least = all(
        found[name, "PKG"][at] <= found[name, other][at] + 2 / MESSAGES
        for name, other in found
        for at in range(len(WORKERS))
    )
    findings.append(
        Finding(
            "table II",
            "PKG is balanced best, better than Off-Greedy, which knows all keys before",
            "in all columns, but for two messages" if least else "not in all columns",
            least,
        )
    )
    return Made(panels, findings)


def _against(name: str, label: str, found: list[float], top: float) -> Finding:
    holds, reading = None, ""
    if label in BOUNDS:
        bounds = [top / BOUNDS[label] - 1 / w for w in WORKERS]
        holds = all(
            abs(x - y) < NEAR if y > NEAR else x < 5 / MESSAGES or abs(y) <= NEAR
            for x, y in zip(found, bounds, strict=True)
        )
        formula = "p1/2 - 1/W" if label == "PKG" else "p1 - 1/W"
        reading = f"{formula} = {spread_of(bounds, '.3f')} where positive, else a few messages"
    elif label == "Hashing":
        holds = min(found) > 10 * BALANCED
        reading = "never balanced"
    return Finding(
        f"table II, {name}",
        f"{label}, W = 5, 10, 50, 100: {spread_of(STATED[name, label], '.1e')}",
        spread_of(found, ".1e"),
        holds,
        reading,
    )


FIGURE = Figure(
    "001-table2",
    "Imbalance with different numbers of workers",
    f"{STAND_INS}; {MESSAGES:,} messages, W = 5, 10, 50, 100, one source; I(m) / m",
    0.7,
    make,
)
