"""When the tables of a stream come."""

from __future__ import annotations

from enum import StrEnum


class TableOrder(StrEnum):
    """When dimension tables come: among the facts, before them, or after them."""

    UNIFORM = "uniform"
    FIRST = "first"
    LAST = "last"
