"""Describes the blocks that arrive at a task, with only the bounds that this task needs.

Why: each route task writes a block with the tuples of all instances, and each task of an operator
reads all blocks. With the bounds of all instances for every task, the driver would send tasks x
blocks x instances numbers: 300 MB a batch at 1,024 instances and 128 tasks. So a task gets the
bounds of its own instances, and the names of all blocks as one text.

Law: for its hosted instances, a task sees blocks with the bounds that were reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from joinengine.model.keys import Side
from joinengine.wire.reports import Block

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Arriving:
    """The B blocks of one side of an operator, as a task reads them; C record batches in all.

    `files`: the names of the blocks, one a line. `chunks` (B,): how many record batches each has.
    `width`: how many bounds a record batch has. `hosted` (H,): the instances, ascending. `spans`
    (2, C, H): the first row of each instance in each record batch, and the row after its last.
    """

    operator: int
    side: Side
    files: str
    chunks: Ints
    width: int
    hosted: Ints
    spans: Ints

    @classmethod
    def by_task(
        cls, blocks: Sequence[Block], side: Side, hosted_by_task: Sequence[Sequence[int]]
    ) -> list[Arriving]:
        """One description of the blocks of a side for each task.

        Under a shuffle, blocks have no files and have bounds by task, not by instance.
        """
        if not any(block.file for block in blocks):
            hosted_by_task = [(task,) for task in range(len(hosted_by_task))]
        operator = blocks[0].operator if blocks else 0
        files = "\n".join(block.file for block in blocks)
        chunks = np.array([len(block.bounds) for block in blocks], np.int64)
        every = [bounds for block in blocks for bounds in block.bounds]
        width = max(map(len, every), default=0)
        bounds = np.array(every, np.int64).reshape(len(every), width)
        arriving = list[Arriving]()
        for some in hosted_by_task:
            # After a shrink, an instance may remain as a watcher to which no tuple is routed.
            hosted = np.array(
                [instance for instance in sorted(some) if instance + 1 < width], np.int64
            )
            spans = np.stack([bounds[:, hosted], bounds[:, hosted + 1]])
            arriving.append(cls(operator, side, files, chunks, width, hosted, spans))
        return arriving

    @property
    def rows(self) -> int:
        """How many deliveries are on their way to the task."""
        return int((self.spans[1] - self.spans[0]).sum())

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks as reported; the bounds of instances hosted elsewhere are not meaningful."""
        bounds = np.zeros((self.spans.shape[1], self.width), np.int64)
        bounds[:, self.hosted], bounds[:, self.hosted + 1] = self.spans
        bounds = np.maximum.accumulate(bounds, axis=1)
        ends = np.cumsum(self.chunks)
        places = zip((ends - self.chunks).tolist(), ends.tolist(), strict=True)
        names = self.files.split("\n") if len(self.chunks) else ()
        return tuple(
            Block(self.operator, self.side, name, tuple(bounds[start:end]))
            for name, (start, end) in zip(names, places, strict=True)
        )
