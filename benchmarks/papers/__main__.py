"""`make papers`: the papers' figures and tables, made anew, and the page about them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console

from benchmarks.papers import page as pages
from benchmarks.papers import running
from benchmarks.papers.figure import Figure
from benchmarks.papers.finding import VERDICTS

console = Console(soft_wrap=True, highlight=False, markup=False)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/papers"))
@click.option("--figure", "names", multiple=True, help="Make this one anew, as 000-13; repeatable.")
@click.option(
    "--page", type=click.Path(path_type=Path), help="Write the page about all that is made."
)
def main(out: Path, names: tuple[str, ...], page: Path | None) -> None:
    """Make the figures that are not made yet, and write the page."""
    figures = running.figures()
    wanted = _wanted(figures, names, out)
    failed = _make(out, wanted)
    if page is not None:
        reported = _reported(figures, out)
        pages.write(page, out, reported)
        if len(reported) < len(figures):
            console.print(f"{len(figures) - len(reported)} figures are not made by this code")
        console.print(f"page: {page}")
    if failed:
        console.print(f"papers: not made, for the errors above: {', '.join(failed)}")
        sys.exit(1)


def _reported(figures: Mapping[Figure, str], out: Path) -> list[pages.Reported]:
    """The figures in `out` that the present code made: older reports say nothing about it."""
    return [
        pages.Reported(figure, report)
        for figure, module in figures.items()
        if running.is_made(out, figure, module)
        and (report := running.made(out, figure)) is not None
    ]


def _wanted(figures: Mapping[Figure, str], names: tuple[str, ...], out: Path) -> dict[Figure, str]:
    """The named figures; without names, the figures that are not made yet."""
    known = [one.name for one in figures]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name} is not a figure; give one of {', '.join(known)}")
    if names:
        return {one: module for one, module in figures.items() if one.name in names}
    wanted = {one: it for one, it in figures.items() if not running.is_made(out, one, it)}
    console.print(
        f"papers: {len(figures) - len(wanted)} of {len(figures)} figures are made already"
    )
    return wanted


def _make(out: Path, wanted: Mapping[Figure, str]) -> list[str]:
    """Make figures; the names of those that could not be made."""
    left, failed = sum(one.minutes for one in wanted), list[str]()
    for figure, module in wanted.items():
        console.print(f"{figure.name}: {figure.title} (left: {left:.0f} min)", style="bold")
        left -= figure.minutes
        try:
            report = running.make(out, figure, module, lambda line: console.print(f"  {line}"))
        except Exception:  # the figures after it do not need it
            traceback.print_exc()
            failed.append(figure.name)
            continue
        for one in report["findings"]:
            console.print(f"  {VERDICTS[one['holds']]}: {one['place']}: {one['stated']}")
            console.print(f"      here: {one['found']}")
        console.print(f"  {report['seconds']:.0f} s: {out / figure.name}")
    return failed


if __name__ == "__main__":
    main()
