"""How a query recovers the lost state of an instance, and what its batches wait for to allow it."""

from __future__ import annotations

from enum import StrEnum


class Recovery(StrEnum):
    """What replaces lost state: copies of keys, of instances, or of files."""

    REPLICAS = "replicas"
    TASKB = "taskb"
    STORE = "store"


class Durability(StrEnum):
    """What a batch waits for: uploads, or tuples on the disks of two executors."""

    BATCH = "batch"
    REPLICAS = "replicas"
