"""Both sides at the same time, in real time, each from a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from benchmarks.kafka.messages import CLICKS_PER_PURCHASE, PART, SIDES


def sent_live(
    servers: str, topics: Mapping[str, str], clicks_per_s: float, seconds: float, part: float = PART
) -> list[int]:
    """Send for some seconds; returns the number of messages of each side.

    `topics`: side -> topic. `part`: the hot user's part of both sides.
    """
    rates = dict(zip(SIDES, (clicks_per_s, clicks_per_s / CLICKS_PER_PURCHASE), strict=True))
    command = [sys.executable, "-m", "benchmarks.kafka.messages", servers]
    running = [
        subprocess.Popen(
            [*command, topics[side], side, str(rates[side]), str(seconds), str(part)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for side in SIDES
    ]
    return [int(process.communicate()[0]) for process in running]
