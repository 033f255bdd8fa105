"""The world of an actor: a disk that all share, on which every verb may fail.

Faults of a verb: it fails before anything has happened; it succeeds and then reports a failure; it
is delayed, perhaps until others have long gone on; what it reads is cut off; a listing is one of
some moments ago. And at each verb the process may be killed.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field

from joinengine.world.buckets import is_url
from joinengine.world.memory import MemoryStorage
from joinengine.world.world import World
from tests.simulator.store import Remote

READS = ("get", "map", "get_ranges")
LISTS = ("entries", "names")
WRITES = ("create", "put", "move", "copy", "delete", "delete_folder", "close")
#: Listings may lack what was made in the last seconds of virtual time.
STALE_S = 0.1
#: A delayed verb comes after so many virtual seconds.
DELAYS_S = (0.01, 0.1, 1.0, 5.0)


class Broken(OSError):
    """A verb of storage has failed, as the simulator wanted it to."""


@dataclass
class Faults:
    """How likely each fault is at a step; `injected`: how many of each there were.

    `left`: so many faults in all, so that work gets done in the end.
    """

    rng: object
    rates: dict
    left: int
    injected: Counter = field(default_factory=Counter)

    @property
    def count(self):
        """How many faults there were."""
        return self.injected.total()

    def at(self, verb):
        """The fault of this verb; None: it does what it should."""
        if self.left <= 0:
            return None
        drawn = self.rng.random()
        for kind, rate in self.rates.items():
            if drawn < rate:
                return self.take(kind) if _can(kind, verb) else None
            drawn -= rate
        return None

    def take(self, kind):
        """Count a fault; its kind."""
        self.left -= 1
        self.injected[kind] += 1
        return kind


def _can(kind, verb):
    """Whether a verb can fail in this way."""
    if kind == "fails after":
        return verb in WRITES
    if kind == "cut off":
        return verb in READS
    if kind == "stale":
        return verb in LISTS
    return True


@dataclass
class Disk:
    """Files, and when each was made; `watchers` are called after each change with (verb, path)."""

    files: dict = field(default_factory=dict)
    born_s: dict = field(default_factory=dict)
    watchers: list = field(default_factory=list)

    def changed(self, verb, path, now_s):
        if path in self.files:
            self.born_s.setdefault(path, now_s)
        else:
            self.born_s.pop(path, None)
        for watcher in self.watchers:
            watcher(verb, path)


class Output(io.BytesIO):
    """A file that is torn until it is closed."""

    def __init__(self, storage, name):
        super().__init__()
        self._storage, self._name = storage, name
        storage.tear(name)

    def __del__(self):
        """A process that was killed closes nothing."""

    def close(self):
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._storage.close_output(self._name, content)


class FaultyStorage:
    """Storage whose verbs are steps of an actor."""

    fetched = None

    def __init__(self, folder, world):
        self.folder, self._world = folder, world
        self._plain = MemoryStorage(folder, world.disk.files)

    def at(self, name):
        return FaultyStorage(f"{self.folder}/{name}", self._world)

    def _do(self, verb, name, act):
        path = f"{self.folder}/{name}" if name else self.folder
        fault = self._world.step(f"{verb} {path}", verb)
        if fault == "fails before":
            raise Broken(5, "injected: nothing happened", path)
        found = act()
        if verb in WRITES:
            self._world.disk.changed(verb, path, self._world.scheduler.now_s)
        if fault == "fails after":
            raise Broken(5, "injected: it happened all the same", path)
        return found, fault

    def make(self, mode=None):
        pass

    def entries(self):
        found, fault = self._do("entries", "", self._plain.entries)
        return [one for one in found if not self._is_recent(one.name, fault)]

    def names(self):
        found, fault = self._do("names", "", self._plain.names)
        return [name for name in found if not self._is_recent(name, fault)]

    def _is_recent(self, name, fault):
        return self._world.is_recent(f"{self.folder}/{name}", fault)

    def exists(self, name):
        return self._do("exists", name, lambda: self._plain.exists(name))[0]

    def get(self, name):
        found, fault = self._do("get", name, lambda: self._plain.get(name))
        return found[: len(found) // 2] if fault == "cut off" else found

    def create(self, name, content):
        # Equal contents may be one object, and then it would seem to be the one that was created.
        return self._do(
            "create", name, lambda: self._plain.create(name, bytes(bytearray(content)))
        )[0]

    def put(self, name, content):
        self._do("put", name, lambda: self._plain.put(name, content))

    def move(self, name, to):
        self._do("move", name, lambda: self._plain.move(name, to))
        self._world.disk.changed("move to", f"{self.folder}/{to}", self._world.scheduler.now_s)

    def copy(self, name, to):
        self._do("copy", name, lambda: self._plain.copy(name, to))
        self._world.disk.changed("copy to", f"{self.folder}/{to}", self._world.scheduler.now_s)

    def delete(self, *names):
        for name in names:
            self._do("delete", name, lambda name=name: self._plain.delete(name))

    def delete_folder(self, name):
        self._do("delete_folder", name, lambda: self._plain.delete_folder(name))

    def tear(self, name):
        """A writer has begun a file."""
        self._world.step(f"open {self.folder}/{name}", "open")
        self._plain.put(name, b"")

    def output(self, name):
        return Output(self, name)

    def close_output(self, name, content):
        """A writer has closed a file."""
        self._do("close", name, lambda: self._plain.put(name, content))

    def map(self, name):
        found, fault = self._do("map", name, lambda: self._plain.map(name))
        return found.slice(0, found.size // 2) if fault == "cut off" else found

    def is_near(self, name):
        return True

    def get_ranges(self, name, ranges):
        found, fault = self._do("get_ranges", name, lambda: self._plain.get_ranges(name, ranges))
        return [one.slice(0, one.size // 2) for one in found] if fault == "cut off" else found

    def forget(self, name):
        return False

    def seal(self, name):
        return self._do("seal", name, lambda: self._plain.seal(name))[0]


class FaultyWorld(World):
    """What an actor sees of the world; `cache_folder`: of its machine, for files of a store."""

    cache_folder = None

    def __init__(self, scheduler, actor, disk, faults):
        self.scheduler, self.actor, self.disk, self.faults = scheduler, actor, disk, faults

    def step(self, what, verb):
        """A step of the actor, in which it may be killed or held; the fault that is left."""
        fault = self.faults.at(verb)
        if fault == "killed":
            self.scheduler.note(self.actor, f"is killed before: {what}")
            self.kill()
        if fault == "held":
            self.actor.wakes_s = self.scheduler.now_s + self.faults.rng.choice(DELAYS_S)
        if fault == "clock":
            self.actor.skew_s = self.faults.rng.choice((-3600.0, -1.0, 1.0, 3600.0))
        self.actor.step(what if fault is None else f"{what} ({fault})")
        return fault

    def is_recent(self, path, fault):
        """Whether a stale listing lacks the path."""
        since = self.scheduler.now_s - STALE_S
        return fault == "stale" and self.disk.born_s.get(path, 0.0) > since

    def kill(self):
        """End the process."""
        self.actor.die()

    def now_s(self):
        return 1.8e9 + self.scheduler.now_s + self.actor.skew_s

    def timer_s(self):
        return self.scheduler.now_s

    def sleep(self, seconds):
        self.actor.sleep(seconds)

    def nonce(self):
        return f"{self.scheduler.number():012d}"

    def process(self):
        return {"host": "simulated", "pid": self.actor.name}

    def storage(self, folder, *, fsync=False, cache_bytes=0, is_behind=False):
        if is_url(str(folder)):
            return Remote(str(folder), cache_bytes, self)
        return FaultyStorage(str(folder), self)


class LostTask(BaseException):
    """The process of a task has been killed; its driver goes on."""


class TaskWorld(FaultyWorld):
    """The world of an attempt of a task, whose death is not that of its driver."""

    dead = False

    def step(self, what, verb):
        if self.dead:
            raise LostTask
        return super().step(what, verb)

    def kill(self):
        self.dead = True
        raise LostTask
