"""The targets into which tasks of the last operator put results; the query's sink chooses one."""

from __future__ import annotations

from dataclasses import dataclass

from joinengine.results.staging import PLAIN, Cutting


@dataclass(frozen=True, slots=True)
class Discard:
    """The target that drops results."""


@dataclass(frozen=True, slots=True)
class ToParquet:
    """The target that stages results in `folder` as Parquet, for the driver of `generation`."""

    folder: str
    generation: int
    cutting: Cutting = PLAIN


SinkTarget = Discard | ToParquet
