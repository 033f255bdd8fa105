"""An object store whose requests are steps of an actor, and caches on the disks of machines.

The engine's own `RemoteStorage` and `FileCache` run on it; only the library that makes the requests
is ours. A cache may lose a copy, have an altered one, or take no more.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from obstore import exceptions

from joinengine.driver import cleaning, step
from joinengine.world import buckets, remote
from joinengine.world.file_cache import Draft, FileCache
from joinengine.world.remote import RemoteStorage

BUCKET = "s3://sim"
#: So many batches, so that a store is cleaned in short runs.
REMOTE_EVERY = 3
#: How likely a copy in a cache is harmed when it is looked for.
HARMED = 0.02


class Request:
    """The requests of `obstore`, of which each asks the world of whoever makes it."""

    exceptions = exceptions

    @staticmethod
    def put(world, key, content, mode="overwrite"):
        def act():
            if mode == "create" and path in world.disk.files:
                raise exceptions.AlreadyExistsError(path)
            world.disk.files[path] = bytes(content)

        path = _path(key)
        _ask(world, "create" if mode == "create" else "put", path, act)

    @staticmethod
    def get(world, key, options=None):
        whole, fault = _ask(world, "get", _path(key), lambda: _content(world, key))
        start, end = (options or {}).get("range", (0, len(whole)))
        part = whole[start:end]
        part = part[: len(part) // 2] if fault == "cut off" else part
        return SimpleNamespace(bytes=lambda: part, meta={"size": len(whole)})

    @staticmethod
    def get_ranges(world, key, *, starts, ends, coalesce=0):
        whole, fault = _ask(world, "get_ranges", _path(key), lambda: _content(world, key))
        parts = [whole[start:end] for start, end in zip(starts, ends, strict=True)]
        return [part[: len(part) // 2] for part in parts] if fault == "cut off" else parts

    @staticmethod
    def head(world, key):
        content, _ = _ask(world, "exists", _path(key), lambda: _content(world, key))
        return {"path": key, "size": len(content)}

    @staticmethod
    def list(world, prefix, chunk_size=50):
        found = [{"path": path.removeprefix(f"{BUCKET}/")} for path in _listed(world, prefix)]
        for start in range(0, len(found), chunk_size):
            yield found[start : start + chunk_size]

    @staticmethod
    def list_with_delimiter(world, prefix):
        below, objects = set(), []
        for path in _listed(world, prefix):
            name, slash, _ = path.removeprefix(_path(prefix)).partition("/")
            if slash:
                below.add(prefix + name)
            else:
                objects.append({"path": prefix + name})
        return {"common_prefixes": sorted(below), "objects": objects}

    @staticmethod
    def delete(world, keys):
        for key in [keys] if isinstance(keys, str) else keys:
            _ask(world, "delete", _path(key), lambda key=key: world.disk.files.pop(_path(key), 0))

    @staticmethod
    def copy(world, key, to):
        def act():
            world.disk.files[_path(to)] = _content(world, key)

        _ask(world, "copy", _path(to), act)


def _path(key):
    return f"{BUCKET}/{key}"


def _content(world, key):
    try:
        return world.disk.files[_path(key)]
    except KeyError:
        raise FileNotFoundError(_path(key)) from None


def _ask(world, verb, path, act):
    """What `act` returns, and the fault of the request."""
    fault = world.step(f"{verb} {path}", verb)
    if fault == "fails before":
        raise exceptions.GenericError(f"injected: nothing happened to {path}")
    found = act()
    if verb in ("put", "create", "delete", "copy"):
        world.disk.changed(verb, path, world.scheduler.now_s)
    if fault == "fails after":
        raise exceptions.GenericError(f"injected: it happened all the same to {path}")
    return found, fault


def _listed(world, prefix):
    """The paths that begin with a prefix, without the newest ones if the listing is stale."""
    start = _path(prefix)
    found, fault = _ask(world, "entries", start, lambda: list(world.disk.files))
    return sorted(p for p in found if p.startswith(start) and not world.is_recent(p, fault))


class Remote(RemoteStorage):
    """Files of the store, as an actor sees them."""

    __slots__ = ("_world",)

    def __init__(self, folder, cache_bytes, world):
        super().__init__(folder, cache_bytes)
        object.__setattr__(self, "_world", world)

    def at(self, name):
        return Remote(f"{self.folder}/{name}", self.cache_bytes, self._world)

    @property
    def _store(self):
        return self._world

    @property
    def _cache(self):
        return Cache(str(self._world.cache_folder), self._world)


class Cache(FileCache):
    """The cache of a machine, whose look-ups and drafts are steps of an actor."""

    def __init__(self, folder, world):
        super().__init__(folder)
        self._world = world

    def find(self, url):
        self._world.step(f"look for a copy of {url}", "find")
        found, faults = super().find(url), self._world.faults
        if found is None or faults.left <= 0 or faults.rng.random() > HARMED:
            return found
        if faults.take(faults.rng.choice(["copy gone", "copy altered"])) == "copy gone":
            os.unlink(found)
            return None
        altered = Path(f"{found}.altered")  # not in place: somebody may have mapped it
        content = Path(found).read_bytes()
        altered.write_bytes(content[: len(content) // 2])
        os.replace(altered, found)
        return found

    def draft(self):
        if self._world.step("a draft", "draft") == "fails before":
            return Draft(None)
        return super().draft()


def simulated(scheduler, inlined):
    """Requests are steps, inside; `inlined`: small runs are in the manifest."""
    clock = SimpleNamespace(monotonic=lambda: scheduler.now_s, sleep=lambda seconds: None)
    patches = ExitStack()
    patches.enter_context(patch.object(remote, "library", lambda: Request))
    patches.enter_context(patch.object(buckets, "library", lambda: Request))
    patches.enter_context(patch.object(remote, "time", clock))
    patches.enter_context(patch.object(cleaning, "REMOTE_EVERY", REMOTE_EVERY))
    if not inlined:
        patches.enter_context(patch.object(step, "INLINED_BYTES", 0))
    return patches
