"""The first process of a machine: makes its disks, then becomes the machine's program.

Runs in namespaces of its own (mounts, processes, host name) and is given a `Plan` as JSON. The
system is there read-only; places where people and programs write are empty, except for what the
plan keeps and shares.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from pathlib import Path
from typing import NamedTuple

# sys/mount.h
READ_ONLY, REMOUNT, BIND, RECURSIVE = 1, 32, 4096, 16384
#: Flags of a mount that a remount must repeat: statvfs -> mount.
KEPT_FLAGS = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
#: What is no disk.
KERNEL = ("/proc", "/sys", "/dev")
HOSTS = "/etc/hosts"


class Plan(NamedTuple):
    """A machine: `hidden` folders are empty there, save that `kept` ones can be read.

    `mounted`: folder of the machine -> folder of this system that it has there, to write.
    """

    name: str
    hidden: list[str]
    kept: list[str]
    mounted: dict[str, str]
    hosts: dict[str, str]


_libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind=None, flags=0, data=None):
    """As the system call; its errors are OSErrors."""
    texts = [None if text is None else str(text).encode() for text in (source, target, kind, data)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def make_read_only(target):
    has = os.statvfs(target).f_flag
    flags = sum(flag for bit, flag in KEPT_FLAGS.items() if has & bit)
    mount(None, target, None, REMOUNT | BIND | READ_ONLY | flags)


def make(plan):
    """Make the disks of the machine."""
    socket.sethostname(plan.name)
    # A folder that is hidden soon can still be mounted elsewhere by its descriptor.
    below = [path for path in plan.kept if lies_in(path, plan.hidden)]
    opened = {path: os.open(path, os.O_PATH) for path in (*below, *plan.mounted.values())}
    for target in mounted_disks():
        make_read_only(target)
    for path in plan.hidden:
        mount("tmpfs", path, "tmpfs", 0, "mode=1777,size=2g")
    for path in below:
        os.makedirs(path, exist_ok=True)
        mount(f"/proc/self/fd/{opened[path]}", path, None, BIND | RECURSIVE)
        make_read_only(path)
    for path, source in plan.mounted.items():
        os.makedirs(path, exist_ok=True)
        mount(f"/proc/self/fd/{opened[source]}", path, None, BIND)
    names = Path(plan.hidden[0], "hosts")
    names.write_text("".join(f"{at} {name}\n" for name, at in plan.hosts.items()))
    mount(names, HOSTS, None, BIND)
    for descriptor in opened.values():
        os.close(descriptor)


def lies_in(path, folders):
    return any(Path(path).is_relative_to(folder) for folder in folders)


def mounted_disks():
    """Where this system has disks mounted that are not of the kernel's own making."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    targets = {line.split()[4].encode().decode("unicode_escape") for line in lines}
    return sorted(target for target in targets if not lies_in(target, KERNEL))


if __name__ == "__main__":
    make(Plan(*json.loads(sys.argv[1])))
    os.chdir("/")
    os.execvp(sys.argv[2], sys.argv[2:])
