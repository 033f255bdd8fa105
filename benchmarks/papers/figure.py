"""A figure or table of a paper, made anew: its panels, what the paper states, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.papers.finding import Finding

#: The papers by their number in names of figures, as `000-13`.
PAPERS = {
    "000": "Fang et al., 2016 (Mixed)",
    "001": "Nasir et al., ICDE 2015, extended (PKG)",
    "002": "Fang et al., JOS 2017 (MNRT, QMMP)",
    "003": "Zacheilas et al., DAIS 2016 (DLB)",
    "004": "Fang et al., World Wide Web 2019 (FTLB)",
}
Points = tuple[Sequence[float] | Sequence[str], Sequence[float]]  # x and y, of equal length
Span = tuple[Sequence[float], Sequence[float]]  # the least and the greatest y at each x


@dataclass(frozen=True)
class Panel:
    """One pair of axes: `series` by name, each x and y; `x` and `y` say what they are, with units.

    `letter` is the paper's ("a", "b"; empty if there is one panel). `log` names axes that are
    logarithmic ("x", "y", "xy"). Values of x that are words make bars, for tables. `spans`: of some
    series, the least and the greatest y of several runs.
    """

    letter: str
    x: str
    y: str
    series: Mapping[str, Points]
    log: str = ""
    spans: Mapping[str, Span] = field(default_factory=dict)

    @classmethod
    def over(
        cls,
        letter: str,
        x: str,
        y: str,
        xs: Iterable[float] | Iterable[str],
        series: Mapping[str, Sequence[float]],
        log: str = "",
    ) -> Panel:
        """A panel whose series have the same values of x."""
        shared: Any = list(xs)
        return cls(letter, x, y, {name: (shared, ys) for name, ys in series.items()}, log)


@dataclass(frozen=True)
class Made:
    """The result of a figure; without panels if it is about statements of the text."""

    panels: Sequence[Panel]
    findings: Sequence[Finding]


@dataclass(frozen=True)
class Figure:
    """One figure or table: `name` is paper and number, as "000-13" or "001-table2".

    `parameters` says what ran, in the words of a reader of the paper, and where it is scaled.
    `minutes` is what `make_it` takes on two cores, at most. `make_it` gets a function that shows a
    line of progress.
    """

    name: str
    title: str
    parameters: str
    minutes: float
    make_it: Callable[[Callable[[str], None]], Made]

    @property
    def paper(self) -> str:
        """The number of its paper."""
        return self.name.partition("-")[0]
