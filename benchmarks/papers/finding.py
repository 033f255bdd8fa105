"""One statement of a paper, and what joinengine finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from joinengine.balancing.loads import Loads
from joinengine.balancing.statistics import Floats, Ints

VERDICTS = {True: "yes", False: "no", None: "cannot be judged"}


@dataclass(frozen=True)
class Finding:
    """`stated` by a paper at `place`, `found` here; `holds` None: it cannot be judged here.

    `reading`: why the statement does not hold or cannot be judged, or what was compared.
    `timed`: the statement is about seconds, so only a run by itself decides.
    """

    place: str
    stated: str
    found: str
    holds: bool | None
    reading: str = ""
    timed: bool = False

    def __post_init__(self) -> None:
        if self.holds is not None:  # NumPy's truth is neither JSON's nor `is False`
            object.__setattr__(self, "holds", bool(self.holds))


def table(findings: Iterable[Finding]) -> str:
    """Markdown: one row for each statement."""
    lines = ["| where | stated | here | comes out |", "|---|---|---|---|"]
    for one in findings:
        here = f"{one.found}. {one.reading}" if one.reading else one.found
        verdict = VERDICTS[one.holds] + ", seconds" * one.timed
        cells = (one.place, one.stated, here, verdict)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def whole_keys(cost: Floats, base: Ints, homes: Ints, held: Floats, instances: int) -> Loads:
    """Keys that are whole at `homes` (K,): loads `cost`, base homes `base`, state `held` (K,)."""
    n = len(cost)
    none = np.zeros(n)
    return Loads(
        hashes=np.arange(n, dtype=np.uint64),
        homes=base,
        spread=cost,
        fixed=none,
        held=held,
        held_fixed=none,
        copied=none.astype(bool),
        split_sides=none.astype(np.int64),
        keys=np.arange(n),
        instances=homes,
        shares=np.ones(n),
        rest=np.zeros(instances),
    )


def homes_after(loads: Loads, changes: dict[int, dict[int, float]]) -> Ints:
    """(K,) the homes of whole keys after a plan."""
    homes = loads.instances.copy()
    for key, shares in changes.items():
        ((homes[key], _),) = shares.items()
    return homes


def levels(loads: Loads, homes: Ints) -> Floats:
    """(N,) the loads of the instances if keys are at `homes`."""
    return np.bincount(homes, loads.spread, minlength=loads.n_instances)


def spread_of(values: Iterable[float], form: str = ".2f") -> str:
    """Values as text.

    >>> spread_of([1.0, 2.5])
    '1.00, 2.50'
    """
    return ", ".join(format(value, form) for value in values)


def spreads_of(series: Mapping[str, Iterable[float]], form: str = ".2f", times: float = 1.0) -> str:
    """Values by name as text, in another unit.

    >>> spreads_of({"a": [1.0, 2.5], "b": [0.5]}, ".0f", 1e3)
    'a 1000, 2500; b 500'
    """
    each = (f"{name} {spread_of((times * y for y in ys), form)}" for name, ys in series.items())
    return "; ".join(each)
