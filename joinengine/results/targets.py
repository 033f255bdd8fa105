"""Where the tasks of the last operator put results, as the sink of the query says."""

from __future__ import annotations

from dataclasses import dataclass

from joinengine.results.staging import PLAIN, Cutting


@dataclass(frozen=True, slots=True)
class Discard:
    """Results are made and dropped."""


@dataclass(frozen=True, slots=True)
class ToParquet:
    """Results are staged in `folder` as Parquet, for the driver of `generation`."""

    folder: str
    generation: int
    cutting: Cutting = PLAIN


SinkTarget = Discard | ToParquet
