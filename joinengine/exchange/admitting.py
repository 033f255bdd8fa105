"""Admitting: decides which tuples enter a side of an operator, and sets the others aside.

A tuple that fails the filter is dropped. A late tuple, and one that is ahead of time, is counted
and set aside. A tuple matches nothing if its key or time is NULL, or its value in a band is NaN.
Such a tuple is counted; it is admitted if it becomes a result, as in outer joins, and set aside
otherwise. Changes of 0 rows, and words that name no change, are counted and set aside.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from joinengine.exchange.roles import Matchless, Role
from joinengine.kernels.bands import Bools
from joinengine.kernels.cancelling import numbers_of_changes
from joinengine.kernels.comparing import latest_time, no_time
from joinengine.kernels.probing import Ints
from joinengine.model.columns import name_beside
from joinengine.model.keys import Side
from joinengine.predicates.theta import passes
from joinengine.results.staging import ParquetFile
from joinengine.wire.reports import InputReport
from joinengine.world.storage import StoredFile, tagged
from joinengine.world.world import World

#: The column of a refused tuple that says why, if no column of the user has this name.
REASON = "reason"


class Refusal(StrEnum):
    """Why a tuple was refused.

    It is late, lacks a key or event time, is too far ahead of the clock, or is a change of 0 rows
    or of unknown meaning.
    """

    LATE = "late"
    NULL = "null"
    AHEAD = "ahead"
    CHANGE = "change"


class Admitted(NamedTuple):
    """Tuples that enter a side. `matchless`: (n,) which match nothing; None: each may match."""

    batch: pa.RecordBatch
    matchless: Bools | None


class _Arrived(NamedTuple):
    """Tuples with their event times (us); None: the operator ignores event time.

    `untimed`: (n,) which tuples have no event time; None: all have one.
    """

    batch: pa.RecordBatch
    times: Ints | None
    untimed: Bools | None

    def where(self, kept: Bools) -> _Arrived:
        """The tuples for which `kept` is true."""
        return _Arrived(
            self.batch.filter(pa.array(kept)),
            None if self.times is None else self.times[kept],
            None if self.untimed is None else self.untimed[kept],
        )


class Admitting:
    """Admits the tuples that one task brings to one role, and counts them in its report."""

    def __init__(self, role: Role, world: World) -> None:
        self._role = role
        self.report = InputReport(role.operator, role.side)
        self._refused = RefusedWriter(role, world)

    def admit(self, batch: pa.RecordBatch) -> Admitted:
        """The tuples of `batch` that enter the side."""
        role, report = self._role, self.report
        report.rows += batch.num_rows
        arrived = self._seen(batch)
        if role.admission.filter is not None and batch.num_rows:
            arrived = arrived.where(passes(role.admission.filter, batch))
        if role.admission.change is not None:
            arrived = self._known(arrived, role.admission.change)
        nulls = self._matchless(arrived)
        if nulls is not None:
            useless = self._useless(nulls, arrived.untimed)
            if useless is not None:
                report.null_rows += self._set_aside(arrived.batch, useless, Refusal.NULL)
                arrived, nulls = arrived.where(~useless), nulls[~useless]
                nulls = nulls if nulls.any() else None
        if arrived.times is None:
            admitted = Admitted(arrived.batch, nulls)
        else:
            admitted = self._on_time(arrived, arrived.times, nulls)
        if admitted.matchless is not None:
            report.null_rows += int(admitted.matchless.sum())
        if role.admission.change is not None:
            admitted = admitted._replace(batch=_numbered(admitted.batch, role.admission.change))
        return admitted

    def close(self) -> None:
        """Seal the refused tuples, and enter their files into the report."""
        self.report.refused = self._refused.close()

    def _seen(self, batch: pa.RecordBatch) -> _Arrived:
        """The tuples with their event times; the greatest one is noted for the watermark.

        Tuples that are refused later count, too: event time follows all tuples of a side, whether
        they can match or not. Tuples that are ahead of time do not count: they would make all later
        tuples late.
        """
        own, latest = self._role.admission.times, self._role.latest
        names = own or self._role.noted
        if not names or not batch.num_rows:
            return _Arrived(batch, None, None)
        times, untimed = latest_time(batch, names), no_time(batch, names)
        able = times if untimed is None else times[~untimed]
        if latest < math.inf:
            able = able[able <= latest]
        if len(able):
            self.report.see_time(int(able.max()))
        return _Arrived(batch, times, untimed) if own else _Arrived(batch, None, None)

    def _known(self, arrived: _Arrived, change: str) -> _Arrived:
        """The tuples that are known changes of at least one row."""
        zero = pc.equal(numbers_of_changes(arrived.batch.column(change)), 0)
        unknown = pc.fill_null(zero, fill_value=True).to_numpy(zero_copy_only=False)
        if not unknown.any():
            return arrived
        self.report.unknown_change_rows += self._set_aside(arrived.batch, unknown, Refusal.CHANGE)
        return arrived.where(~unknown)

    def _matchless(self, arrived: _Arrived) -> Bools | None:
        """(n,) which tuples match nothing, because a value is missing; None: each may match."""
        unkeyed = self._role.admission.keying.unusable(self._role.side, arrived.batch)
        untimed = arrived.untimed
        nulls = untimed if unkeyed is None else unkeyed if untimed is None else untimed | unkeyed
        return nulls if nulls is not None and nulls.any() else None

    def _useless(self, nulls: Bools, untimed: Bools | None) -> Bools | None:
        """(n,) which of `nulls` cannot become results; None: each will become one."""
        match self._role.admission.matchless:
            case Matchless.NONE:
                return nulls
            case Matchless.TIMED:
                return untimed
            case Matchless.ALL:
                return None

    def _on_time(self, arrived: _Arrived, times: Ints, nulls: Bools | None) -> Admitted:
        """The tuples that are neither late nor ahead of time; a tuple without a time is neither."""
        role = self._role
        late, ahead = times < role.watermark, None
        refused = late
        if role.latest < math.inf:
            ahead = times > role.latest  # if the clock was set back, these may also be late
            late &= ~ahead
            refused = late | ahead
        if arrived.untimed is not None:
            refused = refused & ~arrived.untimed
        if not refused.any():
            return Admitted(arrived.batch, nulls)
        self.report.late_rows += self._set_aside(arrived.batch, late & refused, Refusal.LATE)
        if ahead is not None:
            self.report.ahead_rows += self._set_aside(arrived.batch, ahead & refused, Refusal.AHEAD)
        kept = arrived.batch.filter(pa.array(~refused))
        return Admitted(kept, None if nulls is None else nulls[~refused])

    def _set_aside(self, batch: pa.RecordBatch, which: Bools, why: Refusal) -> int:
        """Give the tuples refused for this reason to the side output; their number."""
        count = int(which.sum())
        if count:
            self._refused.add(batch, which, why)
        return count


def _numbered(batch: pa.RecordBatch, change: str) -> pa.RecordBatch:
    """The tuples with their changes as numbers."""
    place = batch.schema.get_field_index(change)
    return batch.set_column(place, change, numbers_of_changes(batch.column(change)))


class RefusedWriter:
    """Writes the refused tuples of one role, with the reason, to a staged file."""

    def __init__(self, role: Role, world: World) -> None:
        name = f"{refused_label(role.operator, role.side)}-{world.nonce()}.parquet"
        name = tagged(role.generation, name)
        self._file = None
        if role.aside is not None:
            self._file = ParquetFile(world.storage(role.aside, fsync=role.fsync), name)

    def add(self, batch: pa.RecordBatch, which: Bools, why: Refusal) -> None:
        """Take the rows of `batch` for which `which` (n,) is true."""
        if self._file is None:
            return
        rows = batch.filter(pa.array(which))
        reason = name_beside(batch.schema.names, REASON)
        rows = rows.append_column(reason, pa.array([why.value] * rows.num_rows, pa.string()))
        self._file.add(rows)

    def close(self) -> StoredFile | None:
        """The file; None if no tuple was refused."""
        return None if self._file is None else self._file.close()


def refused_label(join: int, side: Side) -> str:
    """The folder of one side of one operator in a side output.

    >>> refused_label(0, Side.LEFT)
    'join0-left'
    """
    return f"join{join}-{side.name.lower()}"
