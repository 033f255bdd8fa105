"""The ways in which a query goes on after an instance has lost its state, and what it waits for."""

from __future__ import annotations

from enum import StrEnum


class Recovery(StrEnum):
    """What takes the place of state that is lost: copies of keys, of instances, or of files."""

    REPLICAS = "replicas"
    TASKB = "taskb"
    STORE = "store"


class Durability(StrEnum):
    """What a batch waits for: uploads, or tuples on the disks of two executors."""

    BATCH = "batch"
    REPLICAS = "replicas"
