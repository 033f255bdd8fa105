"""What tasks and batches report: numbers and names, never tuples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joinengine.model.keys import Side


@dataclass(frozen=True, slots=True)
class Block:
    """A file of routed tuples for one side of one join.

    Its record batches are sorted by instance; batch c holds instance i in the rows
    bounds[c][i]:bounds[c][i + 1].
    """

    join: int
    side: Side
    file: str
    bounds: tuple[NDArray[np.int64], ...]


@dataclass(slots=True)
class InputReport:
    """What one task saw of one side of one join (of a source, or of an earlier join's results)."""

    join: int
    side: Side
    rows: int = 0
    null_rows: int = 0
    late_rows: int = 0
    newest_time: int | None = None
    deliveries: int = 0
    #: late and NULL-key tuples, where the user wants them (state.storage.StoredFile)
    refused: Any = None

    def see_time(self, time_us: int) -> None:
        """Take note of an event time."""
        self.newest_time = time_us if self.newest_time is None else max(self.newest_time, time_us)


@dataclass(slots=True)
class RouteReport:
    """One map task: what it read, what it refused, where the rest is."""

    partition: int
    source_rows: int = 0
    inputs: list[InputReport] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    #: source number -> no earlier event time will follow from it (microseconds)
    progress: dict[int, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class InstanceReport:
    """One instance in one batch; pairs are (left, right)."""

    received: list[int] = field(default_factory=lambda: [0, 0])
    stored: list[int] = field(default_factory=lambda: [0, 0])
    probe_copies: int = 0
    results: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What one task did to the runs of its watchers, and the marks that it made (`unread`).

    Fields are state.keeper.Changes, typed loosely because that type lives above this module.
    """

    pending: Any
    unread: Any
    seen: Any


@dataclass(slots=True)
class JoinReport:
    """One join task: what it did to its instances, and the files it leaves.

    `changes` (state.keeper.Changes), `keys` (balancing.statistics.KeyCounts) and `result_files`
    (state.storage.StoredFile) are typed loosely because their types live above this module.
    """

    task: int
    instances: dict[int, InstanceReport] = field(default_factory=dict)
    changes: Any = None
    watched: WatchReport | None = None
    keys: list[Any] = field(default_factory=list)
    result_files: list[Any] = field(default_factory=list)
    result_rows: int = 0
    result_checksum: int = 0
    #: (seconds since the epoch, rows): when results left
    left_at: list[tuple[float, int]] = field(default_factory=list)
    next_input: InputReport | None = None
    next_block: Block | None = None
    seconds: dict[str, float] = field(default_factory=dict)
