"""`make bench-papers`: the papers' statements on decisions, beside what joinengine finds.

It writes tables (Markdown), JSON, and the picture of figure 18.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click
import matplotlib as mpl
from rich.console import Console

from benchmarks.papers import fang2016, matrices, nasir2015
from benchmarks.papers.finding import VERDICTS, Finding, markdown
from joinengine.reporting.run_report import made_by

mpl.use("Agg")
from matplotlib import pyplot as plt

PAPERS: dict[str, Callable[[], list[Finding]]] = {
    "Fang et al., 2016 (Mixed)": fang2016.findings,
    "Nasir et al., ICDE 2015, extended (PKG)": nasir2015.findings,
    "Join-matrix and join-biclique": matrices.findings,
}
console = Console(soft_wrap=True)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/papers"))
@click.option("--adjustments", default=6000, show_default=True, help="Of MinMig in the picture.")
def main(out: Path, adjustments: int) -> None:
    """Compare, and write table, JSON and picture."""
    out.mkdir(parents=True, exist_ok=True)
    found = dict[str, list[Finding]]()
    for paper, findings in PAPERS.items():
        console.print(paper, style="bold")
        found[paper] = findings()
        for one in found[paper]:
            console.print(f"  {VERDICTS[one.holds]}: {one.place}: {one.stated}", markup=False)
            console.print(f"      here: {one.found}", markup=False, highlight=False)
    plain = {paper: [asdict(one) for one in ones] for paper, ones in found.items()}
    (out / "papers.json").write_text(json.dumps({"papers": plain, "made_by": made_by()}, indent=1))
    (out / "papers.md").write_text(markdown(found))
    if adjustments:
        draw_tables(adjustments, out / "minmig.png")
    console.print(f"report: {out / 'papers.json'}, {out / 'papers.md'}")


def draw_tables(adjustments: int, path: Path) -> None:
    """Figure 18 of Fang et al., 2016."""
    figure, axis = plt.subplots(figsize=(7, 4))
    for theta in (0.0, 0.02, 0.08):
        sizes = fang2016.tables(theta, 200 if theta == 0 else adjustments)
        axis.semilogx(range(1, len(sizes) + 1), sizes, label=f"tolerance {theta:g}")
    axis.axhline(9333, color="#888888", linewidth=0.8)
    axis.text(1, 9400, "K (N - 1) / N = 9,333", color="#555555", fontsize=8)
    axis.set_xlabel("adjustments")
    axis.set_ylabel("entries of MinMig's table")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
