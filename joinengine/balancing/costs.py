"""What work costs: seconds for a tuple, a pair and a result, fitted to what tasks have measured.

Why: a batch waits for work, not for tuples. Two keys with the same number of tuples may differ a
thousandfold in the pairs that they make. Counts become comparable once each has a price, and the
prices follow from the machine, the columns and the predicate.

How: the *steps* of a task (receive, keep, probe, compare, make) each have one scale. A step's
seconds are predicted from the counts of its tasks and from prices measured once on one machine; the
scale is the measured over the predicted seconds, and each batch moves it a part of the way. So each
step has one number to fit, and one disturbed batch cannot upset the prices.

Law: a function of its arguments: the fit before, and the reports of a batch. Prices are finite and
above 0, whatever was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Load(StrEnum):
    """What planners balance: expected work, or tuples, as the papers do."""

    WORK = "work"
    TUPLES = "tuples"


class Amounts(NamedTuple):
    """What an instance or a task has done in a batch.

    `routed`: tuples delivered to it. `stored`: copies that it has stored. `probed`: tuples, once
    for each hash that one probes under each layout version. `size_bytes`: of its results. `turns`:
    how often its steps have begun.
    """

    turns: float = 0.0
    routed: float = 0.0
    stored: float = 0.0
    probed: float = 0.0
    candidates: float = 0.0
    results: float = 0.0
    size_bytes: float = 0.0


NOTHING = Amounts()
#: The amounts that are counted per key and have prices.
PRICED = ("routed", "stored", "probed", "candidates", "results")


class _Step(NamedTuple):
    """A step: the timed parts of a task that belong to it, and seconds for each of its amounts."""

    parts: tuple[str, ...]
    prices: Amounts


#: Medians on two cores of a cloud machine, Python 3.11, six columns of 8 bytes.
STEPS: Mapping[str, _Step] = {
    "receive": _Step(("exchange", "sort"), Amounts(turns=7e-4, routed=1.2e-7)),
    "keep": _Step(("open", "store", "merge", "count"), Amounts(turns=1.5e-3, stored=9e-8)),
    "probe": _Step(("probe",), Amounts(turns=9e-4, probed=7e-8)),
    "compare": _Step(("match",), Amounts(turns=1.5e-4, candidates=1.3e-8)),
    "make": _Step(("result",), Amounts(turns=5e-4, results=5e-9, size_bytes=2.5e-10)),
}
#: A batch moves a scale by this part of the way; the first ones, in which most is unknown, by more.
GAIN, FIRST_GAIN, FIRST_BATCHES = 0.2, 0.6, 4
#: A batch changes a scale at most by this factor, so that a disturbed batch counts little.
MOST_CHANGE = 4.0
#: The range of scales: no machine is slower or faster by this factor.
FARTHEST = 1e4


@dataclass(frozen=True, slots=True)
class Costs:
    """The fit: per step the scale of its prices, and how many batches it is made of.

    `result_bytes`: of a mean result, in steps of 16, since bitmaps and padding are no work.
    """

    scales: tuple[float, ...] = (1.0,) * len(STEPS)
    batches: int = 0
    result_bytes: int = 0

    def __post_init__(self) -> None:
        # A checkpoint may come from anywhere, so it may hold scales that make no sense.
        if len(self.scales) != len(STEPS) or not all(map(_is_scale, self.scales)):
            object.__setattr__(self, "scales", (1.0,) * len(STEPS))
            object.__setattr__(self, "batches", 0)

    def prices(self, further: Amounts = NOTHING) -> Floats:
        """(5,) seconds for each of PRICED; `further`: seconds to add to each."""
        scaled = zip(STEPS.values(), self.scales, strict=True)
        both = [np.array(step.prices) * scale for step, scale in scaled]
        total = Amounts(*np.sum(both, axis=0).tolist())
        further_total = total._replace(results=total.results + total.size_bytes * self.result_bytes)
        return np.array([getattr(further_total, name) + getattr(further, name) for name in PRICED])

    @property
    def turn_s(self) -> float:
        """Seconds that a task needs in every batch, even without tuples."""
        scaled = zip(STEPS.values(), self.scales, strict=True)
        return sum(step.prices.turns * scale for step, scale in scaled)

    def after(self, tasks: Sequence[tuple[Mapping[str, float], Amounts]]) -> Costs:
        """The fit after a batch; `tasks`: per task the seconds of its parts, and its amounts."""
        if not tasks:
            return self
        gain = FIRST_GAIN if self.batches < FIRST_BATCHES else GAIN
        scales = list[float]()
        for step, scale in zip(STEPS.values(), self.scales, strict=True):
            seen = _ratio(step, tasks)
            if seen is not None:
                change = min(max(seen / scale, 1 / MOST_CHANGE), MOST_CHANGE)
                scale = min(max(scale * change**gain, 1 / FARTHEST), FARTHEST)  # noqa: PLW2901
            scales.append(scale)
        results = sum(amounts.results for _, amounts in tasks)
        size = sum(amounts.size_bytes for _, amounts in tasks)
        result_bytes = 16 * round(size / results / 16) if results else self.result_bytes
        return Costs(tuple(scales), self.batches + 1, result_bytes)


def _is_scale(scale: object) -> bool:
    if not isinstance(scale, float | int) or not math.isfinite(scale):
        return False
    return 1 / FARTHEST <= scale <= FARTHEST


def _ratio(step: _Step, tasks: Sequence[tuple[Mapping[str, float], Amounts]]) -> float | None:
    """Measured over predicted seconds of a step: the median task; None: nothing was measured."""
    predicted = np.array([np.dot(step.prices, amounts) for _, amounts in tasks])
    measured = np.array(
        [sum(seconds.get(part, 0.0) for part in step.parts) for seconds, _ in tasks]
    )
    some = (predicted > 0) & (measured > 0) & np.isfinite(measured)
    if not some.any():
        return None
    ratios, weights = measured[some] / predicted[some], predicted[some]
    order = np.argsort(ratios)
    middle = np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)
    return float(ratios[order][middle])


def shared_out(seconds: Mapping[str, float], each: Sequence[Amounts]) -> list[list[float]]:
    """The seconds of the parts of a task -> the seconds of each of its instances.

    They are given by step; the last value belongs to no step. A step's seconds are divided in
    proportion to its predicted cost at each instance.
    """
    dealt = np.zeros((len(each), len(STEPS) + 1))
    predicted = np.zeros_like(dealt)
    predicted[:, :-1] = np.array(each) @ np.array([step.prices for step in STEPS.values()]).T
    for number, step in enumerate(STEPS.values()):
        dealt[:, number] = sum(seconds.get(part, 0.0) for part in step.parts)
    named = {part for step in STEPS.values() for part in step.parts}
    dealt[:, -1] = sum(spent for part, spent in seconds.items() if part not in named)
    predicted[:, -1] = predicted.sum(axis=1)
    totals = predicted.sum(axis=0)
    parts = np.divide(predicted, totals, out=np.full_like(dealt, 1 / len(each)), where=totals > 0)
    shares: list[list[float]] = (dealt * parts).tolist()
    return shares
