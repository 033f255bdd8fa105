"""Heartbeats: show that a driver runs on a checkpoint, so that no second start ends it by accident.

Why: the fence keeps results right, whichever drivers are started (`joinengine.state.fence`). But it
cannot tell a restart after a crash from a program that was started twice.

How: a running query *beats*: it writes a file with its process and the number of the beat, and
removes the file when it ends. A start that finds such a file looks whether that process lives, if
it is on the same machine, and otherwise waits for the next beat. The first beat follows the claim
of a generation at once. And a start claims only the generation after the one that it has checked.
So of two starts at the same time, one is refused.

Law: no result depends on it.
Cost: a small file every BEAT_S.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from threading import Event, Thread
from typing import Any

from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.fence import claimed_by, claims, greatest
from joinengine.world.storage import Storage
from joinengine.world.world import World

_log = logging.getLogger("joinengine")
#: Seconds between two beats, and seconds without a beat after which a query counts as dead.
BEAT_S, DEAD_S = 2.0, 7.0
#: Seconds that the end of a query waits for its last beat.
_PATIENCE_S = 3.0
#: Where Linux describes processes.
_PROC = Path("/proc")
#: Seconds between two looks of a start that waits for a beat.
_LOOK_S = 0.25
#: Seconds within which a driver of this machine beats after it has claimed the checkpoint.
_BEGIN_S = 1.0


class Takeover(StrEnum):
    """What a start does if another driver runs on the checkpoint: it is refused, or takes over."""

    WAIT = "wait"
    TAKE = "take"


class Heartbeat:
    """The beats of one driver, of `generation`, from `start` to `stop`."""

    def __init__(self, checkpoint: Checkpoint, generation: int) -> None:
        self._beats = checkpoint.heartbeats
        self._name = f"{generation:08d}"
        self._who = _process(checkpoint.world)
        self._begun, self._stopping = Event(), Event()
        self._thread = Thread(target=self._run, name="joinengine heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat; removes the files of earlier drivers."""
        self._thread.start()
        self._begun.wait(_PATIENCE_S)

    def stop(self) -> None:
        """Stop beating, and remove the file; does not wait for a store that does not answer."""
        self._stopping.set()
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        beats = 0
        self._beat(beats)
        self._begun.set()
        with suppress(Exception):  # no result depends on it
            self._beats.delete(*(name for name in self._beats.names() if name < self._name))
        while not self._stopping.wait(BEAT_S):
            beats += 1
            self._beat(beats)
        with suppress(Exception):
            self._beats.delete(self._name)

    def _beat(self, beats: int) -> None:
        try:
            self._beats.put(self._name, json.dumps(self._who | {"beats": beats}).encode())
        except Exception:  # a disk may be full for a while
            _log.debug("joinengine: the heartbeat could not be written", exc_info=True)


@contextmanager
def beating(checkpoint: Checkpoint, generation: int) -> Iterator[Heartbeat]:
    """A heartbeat that continues after the block, unless the block raises an error."""
    beat = Heartbeat(checkpoint, generation)
    beat.start()
    try:
        yield beat
    except BaseException:
        beat.stop()
        raise


def check_alone(checkpoint: Checkpoint, takeover: Takeover) -> int:
    """The newest generation, whose driver has ended or is taken over.

    Raises InvalidRequest if that driver is running; under TAKE, logs a warning instead. If the
    driver ran on another machine, this waits up to DEAD_S; under TAKE, it does not wait.
    """
    generation = greatest(checkpoint.generations, 0)
    newest = f"{generation:08d}"
    who = _read(checkpoint.heartbeats, newest)
    if who is None and takeover is Takeover.WAIT and _may_begin(checkpoint, generation):
        who = _first_beat(checkpoint, newest)
    if who is None:
        return generation
    other = f"another driver (on {who.get('host')}, process {who.get('pid')})"
    lives = _lives_here(who, _process(checkpoint.world))
    if takeover is Takeover.TAKE:
        if lives is not False:
            _log.warning(
                "joinengine: %s %s on checkpoint %s; this driver takes over and stops it",
                *(other, "is running" if lives else "may be running", checkpoint.location),
            )
        return generation
    if not (_beats_again(checkpoint, newest, who) if lives is None else lives):
        return generation
    raise InvalidRequest(
        f"takeover: {other} is running on checkpoint {checkpoint.location}; stop it first, or "
        "start with .option('takeover', 'take'), which stops it"
    )


def claim_after(checkpoint: Checkpoint, generation: int, takeover: Takeover) -> int:
    """Claim the generation after `generation`, which `check_alone` returned, for this driver.

    If another driver has started since, that driver is checked, too. Raises as `check_alone`.
    """
    while not claims(checkpoint, generation + 1):
        generation = check_alone(checkpoint, takeover)
    return generation + 1


def _may_begin(checkpoint: Checkpoint, generation: int) -> bool:
    """Whether the process that has claimed `generation` is another live process of this machine.

    Then its query has just begun, or has ended while the process does something else.
    """
    who, mine = claimed_by(checkpoint.generations, generation), checkpoint.world.process()
    is_other = who.get("host") == mine["host"] and who.get("pid") != mine["pid"]
    return is_other and _started(who.get("pid")) is not None


def _first_beat(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    """The heartbeat that appears within _BEGIN_S; None: none does."""
    waited_s = 0.0
    while (who := _read(checkpoint.heartbeats, name)) is None and waited_s < _BEGIN_S:
        checkpoint.world.sleep(_LOOK_S)
        waited_s += _LOOK_S
    return who


def _lives_here(who: dict[str, Any], mine: dict[str, Any]) -> bool | None:
    """Whether the writer of a heartbeat is another live process here; None: on another machine."""
    if who.get("machine") != mine["machine"]:
        return None
    started = _started(who.get("pid"))
    return who.get("pid") != mine["pid"] and started is not None and started == who.get("started")


def _beats_again(checkpoint: Checkpoint, name: str, who: dict[str, Any]) -> bool:
    """Whether a heartbeat changes within DEAD_S."""
    waited_s = 0.0
    while waited_s < DEAD_S:
        checkpoint.world.sleep(_LOOK_S)
        waited_s += _LOOK_S
        now = _read(checkpoint.heartbeats, name)
        if now is None:
            return False
        if now != who:
            return True
    return False


def _read(beats: Storage, name: str) -> dict[str, Any] | None:
    """A heartbeat; None: there is none, or it cannot be read."""
    try:
        beat = json.loads(beats.get(name))
    except (OSError, ValueError, RecursionError, JoinEngineError):
        return None
    return beat if isinstance(beat, dict) else None


def _process(world: World) -> dict[str, Any]:
    """The facts that identify this process, for people and for other processes."""
    who = world.process()
    return {**who, "machine": _machine(str(who["host"])), "started": _started(who["pid"])}


def _machine(host: str) -> list[str]:
    """The facts shared by processes that can see each other: host, boot, and namespace."""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return [host, boot, os.readlink(_PROC / "self/ns/pid")]
    return [host]


def _started(pid: Any) -> str | None:
    """When a process was started, to tell it from a later one with its number; None: it is gone.

    If the system has no such times: a fixed text as long as the process exists.
    """
    if not (_PROC / "self/stat").exists():
        try:
            os.kill(int(pid), 0)
        except (OSError, TypeError, ValueError):
            return None
        return "is there"
    try:
        # The name of the program is in parentheses, and may hold any characters.
        state, *fields = (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else fields[18]
