"""The flow of each side of a query so far, from which operators forecast their state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from joinengine.driver.records import BatchRecord, OperatorRecord
from joinengine.model.keys import PAIR, Side
from joinengine.operators.timing import Flow


def rates_seen(records: Sequence[BatchRecord]) -> dict[tuple[int, Side], Flow]:
    """(operator, side) -> its flow so far; sides of which it is unknown are left out.

    The flow is measured from a side's first batch to its last. The tuples of the first batch do not
    count: it is unknown how much event time they span.
    """
    seen = dict[tuple[int, Side], Flow]()
    for number in range(len(records[0].joins)) if records else ():
        for side in PAIR[: len(records[0].joins[number].sides)]:
            flow = _flow([record.joins[number] for record in records], side)
            if flow is not None:
                seen[number, side] = flow
    return seen


def _flow(batches: Sequence[OperatorRecord], side: Side) -> Flow | None:
    brought = [
        (at_side, batch.watermark)
        for batch in batches
        for at_side in [batch.sides[side]]
        if at_side.homed and math.isfinite(at_side.newest)
    ]
    if len(brought) < 2:
        return None
    sides = [at_side for at_side, _ in brought]
    span_us = sides[-1].newest - sides[0].newest
    if span_us <= 0:
        return None
    lags = [
        at_side.newest - watermark for at_side, watermark in brought if math.isfinite(watermark)
    ]
    held = next((at_side for at_side in reversed(sides) if at_side.held_rows), None)
    return Flow(
        batch_rows=sum(at_side.homed for at_side in sides[1:]) / (len(sides) - 1),
        batch_us=span_us / (len(sides) - 1),
        newest_us=sides[-1].newest,
        lag_us=median(lags) if lags else None,
        copy_bytes=held.held_bytes / held.held_rows if held else 0.0,
    )
