"""What is done to a run: each function does one harm, waits, and undoes it.

A harm returns False where there is nothing that it could harm just now.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time

from joinengine.driver.cleaning import REMOTE_EVERY

#: How long disks stay full or read-only, the store is away, and a short sleep takes, in seconds.
HARM_S = (1.0, 6.0)
#: The most that a second driver is waited for while the first one sleeps.
TAKEOVER_S = 40.0
#: Small files may be open for writing when a disk is to be made read-only.
_BUSY_S = 5.0


def kill_machine(run):
    """The driver and all that it has started end at once."""
    run.driver.kill(alone=False)


def kill_driver(run):
    """The driver and its JVM end; its executors find that out by themselves."""
    run.driver.kill(alone=True)


def kill_executor(run):
    """An executor ends, and its workers with it."""
    return _kill_one(run, "executor")


def kill_worker(run):
    """A Python worker ends, of an executor or of the driver, or the process that forks workers."""
    return _kill_one(run, "worker")


def _kill_one(run, kind):
    found = run.driver.children(kind)
    if not found:
        return False
    os.kill(run.rng.choice(found), signal.SIGKILL)
    return True


def kill_store(run):
    """The object store ends, and starts again on what it has on disk."""
    if run.store is None:
        return False
    run.store.kill()
    run.mind(run.rng.uniform(*HARM_S))
    run.store.start()
    return True


def sleep(run):
    """The driver sleeps and goes on, as if nothing had happened."""
    run.driver.signal(signal.SIGSTOP)
    run.mind(run.rng.uniform(*HARM_S))
    run.driver.signal(signal.SIGCONT)


def sleep_past_removal(run):
    """A second driver goes on until it has removed files of the one that sleeps, which wakes up."""
    first = run.driver
    if not first.batches:
        return False
    first.aside = True
    first.signal(signal.SIGSTOP)
    run.start_driver()
    enough = 2 * REMOTE_EVERY if run.case.stored else 3
    end = time.monotonic() + TAKEOVER_S
    while len(run.driver.batches) < enough and time.monotonic() < end:
        run.mind(0.5)
    if run.driver.batches:
        run.counts["taken over while asleep"] += 1
    first.signal(signal.SIGCONT)
    return True


def fill(run):
    """A disk has no room left."""
    return _spoil_one(run, "full", Disk.fill, Disk.empty)


def forbid(run):
    """A disk can be read only."""
    return _spoil_one(run, "read-only", Disk.forbid, Disk.allow)


def _spoil_one(run, state, spoil, mend):
    disk = run.rng.choice(run.disks)
    if not spoil(disk):
        return False
    run.counts[f"{state} {disk.name}"] += 1
    run.mind(run.rng.uniform(*HARM_S))
    mend(disk)
    return True


#: What may be done, as often as it stands here.
HARMS = (
    *(kill_machine, kill_machine, kill_driver, kill_driver),
    *(kill_executor,) * 4,
    *(kill_worker,) * 4,
    *(kill_store,) * 4,
    *(sleep, sleep_past_removal, sleep_past_removal),
    *(fill,) * 3,
    *(forbid,) * 2,
)


class Disk:
    """A disk in memory, mounted at a folder."""

    def __init__(self, folder, size_kb):
        self.folder, self.name, self.size_kb = folder, folder.name, size_kb
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k,mode=700", "tmpfs", str(folder)]
        subprocess.run(command, check=True)

    def fill(self):
        """Leave no room: the disk shrinks to what it holds. False: it grows too fast for that."""
        return any(self._remounted(f"size={self._used_kb()}k") for _ in range(20))

    def empty(self):
        """Make room again."""
        assert self._remounted(f"size={self.size_kb}k")

    def forbid(self):
        """Make it read-only; False: somebody was writing all the time."""
        end = time.monotonic() + _BUSY_S
        while not (done := self._remounted("ro")) and time.monotonic() < end:
            time.sleep(0.01)
        return done

    def allow(self):
        """Let it be written again."""
        assert self._remounted("rw")

    def _used_kb(self):
        facts = os.statvfs(self.folder)
        return max((facts.f_blocks - facts.f_bfree) * facts.f_frsize >> 10, 64)

    def _remounted(self, asks):
        command = ["mount", "-o", f"remount,{asks}", str(self.folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
