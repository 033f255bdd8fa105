"""The measures of one version, as a process of its own: prints one JSON object.

It is run as a file, `measuring.py FOLDER`, with the version's tree on PYTHONPATH, so each version
has its own engine, kernels and streams, and both are measured by the same lines: these. Figures are
seconds of processor time, which other work on the machine disturbs less than time by the clock.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import joinengine
from benchmarks.auto.cells import Cell, batches, condition, window
from joinengine.lab.inline import inline_runs
from joinengine.lab.inline.two_way import Input, two_way
from joinengine.layouts import choose

LAYOUTS = ("hash", "mnrt", "auto")
#: A large side with a hot key, a small one with even keys, four batches of a million rows.
STREAM = Cell("eq5", 1.5, None, 8, 1_000_000)
#: Seconds that pytest-benchmark gives each kernel, beyond its fewest rounds.
KERNEL_S = 0.1


def main() -> None:
    """Measure, and print measure -> seconds."""
    folder, tree = Path(sys.argv[1]), Path(joinengine.__file__).parents[1]
    print("\n" + json.dumps({"tree": str(tree), "seconds": _kernels(tree, folder) | _runs()}))


def _kernels(tree: Path, folder: Path) -> dict[str, float]:
    """The least of the rounds of each kernel, since other work slows some of them down."""
    report = folder / "kernels.json"
    command = [sys.executable, "-m", "pytest", "-q", "benchmarks/kernels", "--benchmark-only"]
    command += ["--benchmark-timer=time.process_time", f"--benchmark-max-time={KERNEL_S}"]
    command += [f"--benchmark-json={report}"]
    subprocess.run(command, cwd=tree, stdout=sys.stderr, check=True)
    return {
        kernel["name"].removeprefix("test_"): kernel["stats"]["min"]
        for kernel in json.loads(report.read_text())["benchmarks"]
    }


def _runs() -> dict[str, float]:
    """A whole run under each layout; one before warms up."""
    frames = list(batches(STREAM))
    inputs = Input(frames[0][0].schema), Input(frames[0][1].schema)
    on, within = condition(STREAM), window(STREAM)
    seconds = dict[str, float]()
    for name in (LAYOUTS[0], *LAYOUTS):
        query = two_way(inputs, on, within, STREAM.instances)
        start = time.process_time()
        inline_runs.run(query, choose(name), frames)
        seconds[f"run {STREAM.stream} {name}"] = time.process_time() - start
    return seconds


if __name__ == "__main__":
    main()
