"""Writes docs/reproduction.md: which statements hold, which do not, and each figure."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from benchmarks.papers.figure import PAPERS, Figure
from benchmarks.papers.finding import Finding, table
from benchmarks.papers.running import PICTURE

#: All figures and tables of the papers that an engine can be held to, by their names here.
WANTED = (
    *(f"000-{n}" for n in range(7, 22)),
    *("001-table2", *(f"001-{n}" for n in range(4, 11)), "001-table3"),
    *(f"002-{n}" for n in range(3, 9)),
    *("003-3", "003-4", "003-table1"),
    *(f"004-{n}" for n in range(7, 12)),
)
#: The folder of pictures, relative to the page.
PICTURES = Path("pictures", "papers")
NO_REASON = "the reason is not known"
_LISTS = {
    True: "What comes out",
    False: "What does not come out, and why",
    None: "What cannot be judged here, and why",
}


class Reported(NamedTuple):
    """A figure and its report (`running.make`)."""

    figure: Figure
    report: Mapping[str, Any]

    @property
    def findings(self) -> list[Finding]:
        """The findings of the figure."""
        return [Finding(**one) for one in self.report["findings"]]


def write(page: Path, out: Path, reported: Sequence[Reported]) -> None:
    """Write the page, and copy the pictures of its figures beside it."""
    pictures = page.parent / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.png"):
        old.unlink()
    for one in reported:
        picture = out / one.figure.name / PICTURE
        if picture.exists():
            shutil.copyfile(picture, pictures / f"{one.figure.name}.png")
    page.write_text(text(reported))


def text(reported: Sequence[Reported]) -> str:
    """The page."""
    minutes = sum(one.figure.minutes for one in reported)
    template = Template(Path(__file__).with_suffix(".md").read_text())
    return template.substitute(
        minutes=f"at most {minutes:.0f} minutes",
        lists="\n\n".join(_list(holds, reported) for holds in _LISTS),
        papers="\n\n".join(_paper(number, reported) for number in PAPERS),
        left_out=_left_out(reported),
    )


def _list(holds: bool | None, reported: Sequence[Reported]) -> str:
    found = [(one, x) for one in reported for x in one.findings if x.holds is holds]
    lines = [f"## {_LISTS[holds]}", ""]
    for one, finding in found:
        where = f"[{one.figure.paper}, {finding.place}](#{_anchor(one.figure)})"
        why = "" if holds else f" *Why:* {_sentence(finding.reading or NO_REASON)}"
        lines.append(f"- {where}: {_sentence(finding.stated)}{why}")
    return "\n".join(lines if found else [*lines, "Nothing."])


def _sentence(words: str) -> str:
    return words if words.endswith((".", "?", "!")) else f"{words}."


def _paper(number: str, reported: Sequence[Reported]) -> str:
    own = [one for one in reported if one.figure.paper == number]
    parts = [f"## {number}: {PAPERS[number]}"]
    return "\n\n".join(parts + [_figure(one) for one in own])


def _anchor(figure: Figure) -> str:
    return f"figure-{figure.name}"


def _figure(one: Reported) -> str:
    """Heading, picture, parameters, and a table of the statements."""
    figure, seconds = one.figure, one.report["seconds"]
    parts = [f'### <a id="{_anchor(figure)}"></a>{figure.name}: {figure.title}']
    if one.report["panels"]:
        parts.append(f"![{figure.title}]({PICTURES / figure.name}.png)")
    if figure.parameters:
        took = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
        parts.append(f"*Parameters:* {_sentence(figure.parameters)} It took {took}.")
    parts.append(table(one.findings))
    return "\n\n".join(parts)


def _left_out(reported: Sequence[Reported]) -> str:
    there = {one.figure.name for one in reported}
    missing = [name for name in WANTED if name not in there]
    parts = [
        "The page leaves out the papers' figures that explain an algorithm, unless a statement "
        "follows from them, and tables of data sets that cannot be had: streams of the same skew "
        "and the same number of keys stand in for them."
    ]
    if missing:
        parts.append(f"Figures and tables that are not made yet: {', '.join(missing)}.")
    return "\n\n".join(parts)
