"""Bands: lower <= right - left <= upper, found through cells.

How: the number line is cut into cells. A tuple is stored under the cell of its own value, as if the
cell were its key, and probes the few cells in which a partner can be. So the code that moves,
splits and finds keys also serves bands. The only difference is that a tuple probes several keys.

Numbers: integers, dates (days), timestamps (microseconds) and decimals (in units of the last digit)
are 64-bit integers here. If one side is a float, both sides become doubles, differences are
computed as in SQL, and the interval to probe is rounded outwards.

Law: a tuple probes every cell that holds a partner, and at most `most_cells` cells.
Cost: about 20 ns a tuple and cell. If values are spread evenly over a cell, there are at most about
three candidate pairs for each match.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words, fixed_width, mix
from joinengine.kernels.probing import Ints
from joinengine.model.conditions import Distance
from joinengine.model.keys import U_BITS, Side
from joinengine.model.windows import INT_MAX, plus_held

Numbers = NDArray[np.int64] | NDArray[np.float64]
Bools = NDArray[np.bool_]

#: If a band holds at most this many integers, each is its own cell, and every candidate pair is
#: within the band.
SINGLE_VALUES = 3
#: A stripe has 2**STRIPE_BITS cells, whose key hashes differ only in that many last bits.
STRIPE_BITS = 4
_PLACES = np.uint64((1 << STRIPE_BITS) - 1)
#: Floats beyond this cell share the outermost cells: out there, neighbouring doubles would be
#: several cells apart.
FARTHEST_CELL = float(1 << 48)
#: The greatest double, and the gap to the next one below.
GREATEST = float(np.finfo(np.float64).max)
_GREATEST_STEP = 2.0**971


def width_of(distance: Distance) -> float:
    """The width of a cell."""
    assert distance.lower is not None
    assert distance.upper is not None
    span = distance.upper - distance.lower
    if distance.floating:
        farthest = max(abs(distance.lower), abs(distance.upper))
        step = _GREATEST_STEP if farthest == GREATEST else float(np.spacing(farthest))
        rounded = 4 * step  # so that three cells cover the error of rounding
        # A band wider than the type has three cells: below 0, from 0 on, and the greatest double.
        return max(span if span > 0 else 1.0, rounded) if np.isfinite(span + rounded) else GREATEST
    return 1 if span < SINGLE_VALUES else span + 1


def most_cells(distance: Distance) -> int:
    """The greatest number of cells that a tuple probes."""
    if not distance.is_bounded:
        return 1
    if distance.floating:
        return 3
    return int(distance.upper - distance.lower) + 1 if width_of(distance) == 1 else 2  # type: ignore[operator]


def own_cells(distance: Distance, values: Numbers) -> Ints:
    """(n,) values -> (n,) their cells, for a band with both bounds."""
    if distance.floating:
        with np.errstate(over="ignore"):
            scaled = np.floor(values / width_of(distance))
        return np.clip(scaled, -FARTHEST_CELL, FARTHEST_CELL).astype(np.int64)
    width = int(width_of(distance))
    if width > INT_MAX:
        return np.where(values < 0, -1, 0)
    cells: Ints = values if width == 1 else values // np.int64(width)  # type: ignore[assignment]
    return cells


def probed_cells(
    distance: Distance, side: Side, values: Numbers
) -> list[tuple[Ints, Bools | None]]:
    """For each i: (n,) the i-th cell that each tuple of `side` probes, and (n,) whether it has one.

    None in place of the latter: all have one.
    """
    assert distance.lower is not None
    assert distance.upper is not None
    low, high = distance.lower, distance.upper
    if side is Side.RIGHT:
        low, high = -high, -low
    if distance.floating:
        start, stop = _lowest_partner(values, low), -_lowest_partner(-values, -high)
    else:
        start, stop = _plus(values, int(low))[0], _plus(values, int(high))[0]
    first, last = own_cells(distance, start), own_cells(distance, stop)
    return [(first + i, None if i == 0 else first + i <= last) for i in range(most_cells(distance))]


def _lowest_partner(values: Numbers, low: float) -> Numbers:
    """(n,) floats -> (n,) the least that may be `low` away from each, clipped to the type.

    The result is two units in the last place lower than the sum: one because a difference just
    outside the bound is rounded onto the bound, one because the sum is also rounded.
    """
    beyond = math.nextafter(low, -math.inf)
    with np.errstate(over="ignore"):
        if math.isfinite(beyond):
            start = values + beyond
        else:  # near the least double there is no lower number: step from the sum instead
            start = (values + low) - _GREATEST_STEP
        return np.clip(np.nextafter(start, -np.inf), -GREATEST, GREATEST)


def within_distance(distance: Distance, left: Numbers, right: Numbers) -> Bools:
    """(n,) whether lower <= right - left <= upper."""
    lower, upper = distance.lower, distance.upper
    if distance.floating:
        with np.errstate(invalid="ignore", over="ignore"):
            difference = right - left
        keep = ~np.isnan(difference)
        if lower is not None:
            keep &= difference >= lower
        if upper is not None:
            keep &= difference <= upper
        return keep
    keep = np.ones(len(left), bool)
    if lower is not None:
        low, beyond = _plus(left, int(lower))
        keep &= (right >= low) & ~(beyond & (lower > 0))
    if upper is not None:
        high, beyond = _plus(left, int(upper))
        keep &= (right <= high) & ~(beyond & (upper < 0))
    return keep


def _plus(values: Numbers, k: int) -> tuple[Ints, Bools]:
    """(n,) values + k, clipped to the type, and (n,) whether each was clipped."""
    return plus_held(values.astype(np.int64, copy=False), k)


def numbers_of(distance: Distance, column: pa.Array) -> Numbers:
    """(n,) the values of a column, none of them NULL, as numbers that can be subtracted."""
    kind = column.type
    if distance.floating:
        doubles = pc.cast(column, pa.float64(), safe=False)
        return np.asarray(doubles.to_numpy(zero_copy_only=False), np.float64)
    if pa.types.is_decimal(kind):
        # Arrow stores a decimal as an integer of 16 bytes, in units of its last digit.
        raw = np.frombuffer(column.buffers()[1], np.int64)
        own = raw[2 * column.offset : 2 * (column.offset + len(column)) : 2]
        scaled: Ints = own * np.int64(10 ** (distance.scale - kind.scale))
        return scaled
    values = fixed_width(column, np.dtype(f"i{kind.bit_width // 8}")).astype(np.int64)
    whole: Ints = values * np.int64(10**distance.scale) if distance.scale else values
    return whole


def mix_cells(hashes: Words, cells: Ints) -> Words:
    """(n,) hashes of the equality columns, (n,) cells -> (n,) hashes of both.

    The cells of a stripe, 16 in a row, differ only in the last four bits of the key hash. So a base
    function that uses the leading bits (ring, cells) keeps neighbours together, and a tuple finds
    most of the cells that it probes at one instance. Each stripe has its own order of cells, so
    that patterns in the values cause no load skew where the last bits decide (modulo).
    """
    stripes = (cells >> STRIPE_BITS).astype(np.uint64)
    mixed = mix(hashes ^ mix(stripes + np.uint64(0x42414E44)))
    turned = (cells.astype(np.uint64) ^ mixed >> np.uint64(U_BITS + 8)) & _PLACES
    return mixed & ~(_PLACES << np.uint64(U_BITS)) | turned << np.uint64(U_BITS)
