"""One run: `python -m tests.chaos.run ROOT SEED SECONDS BUG`, in namespaces of its own.

It prints its outcome as JSON, in the last line. The disks that it makes end with it.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from tests.chaos.case import Case
from tests.chaos.harm import HARMS, Disk
from tests.chaos.processes import Driver
from tests.chaos.streams import Feed, tally
from tests.objects import SeaweedServer, make_bucket

#: A cache is used on a disk that has more than a gigabyte to spare.
DISK_KB, CACHE_KB = 1 << 18, 5 << 18
#: Seconds between two harms, and until a driver that has ended is started again.
GAP_S, AGAIN_S = (0.2, 3.0), 0.3
#: The longest that a query may take to its first batch, and to its end when nothing harms it.
FIRST_S, LAST_S = 90.0, 240.0
#: Seconds that a driver has to find out that it was taken over.
WAKE_S = 60.0
#: What a driver may say that has to end.
EXPECTED = {
    "killed",
    "CannotWrite",
    "refused folder",
    "worker gone",
    "StoreUnreachable",
    "TakenOver",
    "CheckpointMismatch",
}


class Run:
    """The query of a seed, its drivers, one after the other, and its disks."""

    def __init__(self, root, seed, bug):
        self.root, self.case, self.bug = root, Case.of(seed), bug
        self.rng, self.counts = random.Random(f"harm {seed}"), Counter()
        self.drivers, self.ends = list[Driver](), Counter()
        self.disks = [Disk(root / "checkpoint", DISK_KB), Disk(root / "out", DISK_KB)]
        self.store, self.state = None, ""
        (root / "scratch").mkdir()
        os.environ["TMPDIR"] = str(root / "scratch")
        os.environ["JOINENGINE_CACHE"] = str(root / "cache" / "files")
        if self.case.stored:
            self.disks.append(Disk(root / "cache", CACHE_KB))
            self.store = SeaweedServer(root / "store")
            self.store.start()
            os.environ.update(self.store.environment)
            self.state = f"{make_bucket(self.store.environment)}/query"
        self.feed = Feed(root / "in", seed)

    @property
    def driver(self):
        return self.drivers[-1]

    def start_driver(self):
        number = len(self.drivers)
        self.drivers.append(Driver(self.root, number, self.case, self.state, self.bug))

    def mind(self, seconds):
        """Wait, and start a driver again whenever the last one has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.driver.ended and not self.is_done:
                time.sleep(AGAIN_S)
                self.start_driver()
            time.sleep(0.1)

    @property
    def is_done(self):
        return self.driver.ended and self.driver.program.returncode == 0

    def play(self, seconds):
        """Do harm for so many seconds; returns why the query has not come to its end, in words."""
        self.feed.start()
        self.start_driver()
        if not self._within(FIRST_S, lambda: self.driver.batches):
            return "no first batch"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.mind(self.rng.uniform(*GAP_S))
            harm = self.rng.choice(HARMS)
            if not self.driver.ended and harm(self) is not False:
                self.counts[harm.__name__.replace("_", " ")] += 1
        self.feed.finish()
        Path(self.root, "stop").touch()
        if not self._within(LAST_S, lambda: self.is_done):
            return "no end"
        sleepers = [one for one in self.drivers if one.aside]
        if not self._within(WAKE_S, lambda: all(one.ended for one in sleepers)):
            return "a driver that was taken over goes on"
        return None

    def _within(self, seconds, holds):
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                return False
            self.mind(0.2)
        return True

    def outcome(self, stuck):
        """What has become of it."""
        found = tally(self.root / "in", self.root / "out" / "results", self.case.how)
        reported = Counter(number for one in self.drivers for number in set(one.batches))
        ends = Counter(one.last_words for one in self.drivers if one.ended)
        odd = [
            f"driver {one.number}: {one.sentence or _last_line(one.said)}"
            for one in self.drivers
            if one.ended and one.last_words not in EXPECTED | {"done"}
        ]
        return {
            "seed": self.case.seed,
            "case": str(self.case),
            **found,
            "stuck": stuck,
            "odd": odd,
            "batches": len(reported),
            "reported twice": sorted(n for n, times in reported.items() if times > 1),
            "drivers": len(self.drivers),
            "tuples": 2 * self.feed.rows,
            "harms": dict(self.counts),
            "ends": dict(ends),
        }

    def close(self, keep):
        """End what still runs; `keep`: what the disks hold is copied to where it outlives them."""
        for one in self.drivers:
            one.kill(alone=False)
        if self.store is not None:
            self.store.kill()
        if keep:
            for disk in self.disks:
                shutil.copytree(disk.folder, self.root / "kept" / disk.name, dirs_exist_ok=True)


def holds(outcome):
    """Whether all that a run promises has held."""
    wrong = ("lost", "twice", "alien", "stuck", "odd", "reported twice")
    return outcome["wanted"] > 0 and not any(outcome[name] for name in wrong)


def _last_line(text):
    lines = [line for line in text.splitlines() if re.search(r"\S", line)]
    return lines[-1][:400] if lines else "it said nothing"


def main():
    root, seed, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    run = Run(root, seed, sys.argv[4])
    found = None
    try:
        found = run.outcome(run.play(seconds))
    finally:
        run.close(keep=found is None or not holds(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
