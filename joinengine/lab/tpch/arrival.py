"""The order in which the tables of a stream arrive."""

from __future__ import annotations

from enum import StrEnum


class TableOrder(StrEnum):
    """When dimension tables arrive: among the facts, before them, or after them."""

    UNIFORM = "uniform"
    FIRST = "first"
    LAST = "last"
