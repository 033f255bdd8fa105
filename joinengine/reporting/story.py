"""The story of a run: what its page draws, as plain values, bounded however long the run is.

Why: a page shows each batch in full (loads of every instance, hot keys, plans), and a run may have
any number of batches and instances. So neighbouring batches are merged two by two once there are
too many; a viewer loses resolution, but never the beginning.

Law: counts of an entry are sums over its batches, so their sums over all entries are those of the
run; figures of the state are those after its last batch. The story is a function of the records,
in their order, except for the batch at which merging begins again.
Cost: some microseconds an instance for each batch; a merge touches all entries, and halves them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from joinengine.balancing.reasons import Cause, Reason
from joinengine.driver.figures import FIGURES
from joinengine.driver.hot_keys import Heat, HotKey
from joinengine.driver.rates import rates_seen
from joinengine.driver.records import BatchRecord, OperatorRecord
from joinengine.operators.base import QuerySpec
from joinengine.reporting.heads import short_name
from joinengine.reporting.progress import steps_of, whole_s
from joinengine.reporting.run_report import behind
from joinengine.reporting.thinning import Entry, halved, merged, size_of
from joinengine.reporting.words import (
    Manner,
    Shares,
    hash_text,
    is_elsewhere,
    key_change_words,
    key_words,
    manner,
    placement_words,
    plan_words,
    shares_of,
)

LIMIT_BYTES = 8_000_000
#: The most entries, plans, and keys of a plan in a story.
MOST_ENTRIES = 600
MOST_PLANS = 1_000
_MOST_PLAN_KEYS = 8
#: A forecast looks at so many batches; a new one is made once the run has grown by a twentieth.
_FORECAST_BATCHES = 1_000
#: How many partitions of topics an entry names: those in which most messages wait.
_MOST_PARTITIONS = 32
_FORECAST_GROWTH = 1.05


@dataclass
class _Told:
    """A plan in the story, with the facts from which its words are made."""

    entry: Entry
    reason: Reason
    instances: int
    shares: Mapping[int, Shares]


class Story:
    """Folds records into a story. `head`: see `head_of`; `limit_bytes`: its most JSON, roughly."""

    def __init__(self, head: Entry, query: QuerySpec, limit_bytes: int = LIMIT_BYTES) -> None:
        self._head = head
        self._query = query
        self._limit = limit_bytes
        self._each = 1
        self._entries = list[Entry]()
        self._sizes = list[int]()
        self._plans = list[Entry]()
        self._left_out = 0
        self._changed = list[Entry]()
        self._open: dict[int, _Told] = {}
        self._declined = set[int]()
        self._records = deque[BatchRecord](maxlen=_FORECAST_BATCHES)
        self._batches = 0
        self._forecast_at = 0.0
        self._forecasts: list[tuple[float, float] | None] = [None] * len(query.operators)
        #: per key its manner, the first batch with it, and the last batch in which it was seen
        self._since: list[dict[int, tuple[Manner, int | None, int]]] = [{} for _ in query.operators]
        self._names: list[dict[int, str]] = [{} for _ in query.operators]
        self._fullest = [(0, 0)] * len(query.operators)
        #: the first batch under the present layout, if the run has changed the layout as a whole
        self._relaid: list[int | None] = [None] * len(query.operators)
        self._ended: Entry | None = None
        #: records come in one thread, and the whole may be asked for in another
        self._turn = Lock()
        #: the last record, and its seconds according to the story
        self._last: BatchRecord | None = None
        self._told_s = 0.0
        self._corrected: Entry | None = None

    def add(self, record: BatchRecord) -> bool:
        """Take the next record; True: entries were merged, so viewers need the whole anew."""
        with self._turn:
            return self._add(record)

    def _add(self, record: BatchRecord) -> bool:
        self._changed = []
        self._corrected = self._correct()
        if self._head["started"] is None:
            self._head["started"] = record.started
        self._forecast(record)
        entry = self._entry(record)
        self._tell_plans(record)
        self._batches += 1
        newest = self._entries[-1] if self._entries else None
        if newest is not None and newest["last"] - newest["first"] + 1 < self._each:
            self._entries[-1] = merged(newest, entry)
            self._sizes[-1] = size_of(self._entries[-1])
        else:
            self._entries.append(entry)
            self._sizes.append(size_of(entry))
        self._last, self._told_s = record, whole_s(record)
        return self._thin()

    def whole(self) -> Entry:
        """The story so far, as a JSON value."""
        with self._turn:
            self._correct()
            return {
                **self._head,
                "batches_per_entry": self._each,
                "batches": list(self._entries),
                "plans": list(self._plans),
                "plans_left_out": self._left_out,
                "ended": self._ended,
            }

    def newest(self) -> Entry:
        """The change by the last `add` or `end`: the newest entry, and new or changed plans.

        An entry replaces one with the same `first`, a plan one with the same batch and operator.
        `corrected`: the entry before the newest, if it has changed.
        """
        return {
            "batch": self._entries[-1] if self._entries else None,
            "corrected": self._corrected,
            "plans": list(self._changed),
            "plans_left_out": self._left_out,
        }

    def end(self, how: str, words: str, at: float) -> None:
        """Say that the run has ended: `finished`, `stopped` or `failed`, and a sentence."""
        with self._turn:
            self._changed, self._corrected = [], self._correct()
            self._ended = {"how": how, "words": words, "at": at}

    def _correct(self) -> Entry | None:
        """Correct the total time of the last batch, which Spark reports later; the entry."""
        if self._last is None:
            return None
        more = whole_s(self._last) - self._told_s
        if more <= 0:
            return None
        self._told_s += more
        entry = self._entries[-1]
        steps = {**entry["steps"], "other": round(entry["steps"]["other"] + more, 6)}
        elapsed_s = round(entry["elapsed_s"] + more, 6)
        self._entries[-1] = {**entry, "elapsed_s": elapsed_s, "steps": steps}
        return self._entries[-1]

    def _thin(self) -> bool:
        """Merge entries, two by two, until they are few and small enough."""
        is_merged = False
        while len(self._entries) > 1 and (
            len(self._entries) > MOST_ENTRIES or sum(self._sizes) > self._limit
        ):
            self._entries = halved(self._entries)
            self._sizes = [size_of(entry) for entry in self._entries]
            self._each *= 2
            is_merged = True
        return is_merged

    # One batch

    def _entry(self, record: BatchRecord) -> Entry:
        return {
            "first": record.batch,
            "last": record.batch,
            "at": record.started,
            "input_rows": record.input_rows,
            "output_rows": record.output_rows,
            "elapsed_s": round(whole_s(record), 6),
            "steps": {step: round(seconds, 6) for step, seconds in steps_of(record).items()},
            "work": {part: round(seconds, 6) for part, seconds in record.work_s.items()},
            "late_rows": sum(join.refused.late for join in record.joins),
            "null_rows": sum(join.refused.null for join in record.joins),
            "ahead_rows": sum(join.refused.ahead for join in record.joins),
            "skipped_files": len(record.skipped),
            "behind_rows": record.behind_rows,
            "behind": self._behind(record),
            "latency_p50": record.latency_s(0.5),
            "latency_p99": record.latency_s(0.99),
            "joins": [self._join(n, record.batch, join) for n, join in enumerate(record.joins)],
        }

    def _behind(self, record: BatchRecord) -> list[Entry]:
        """The partitions in which most messages wait."""
        furthest = sorted(behind(record), key=lambda partition: -partition["rows"])
        return [
            {**partition, "source": short_name(self._query.sources[partition["source"]])}
            for partition in furthest[:_MOST_PARTITIONS]
            if partition["rows"]
        ]

    def _join(self, number: int, batch: int, join: OperatorRecord) -> Entry:
        heat, forecast = join.heat, self._at_fullest(number, join)
        self._take_names(number, heat)
        known = [side.newest for side in join.sides if math.isfinite(side.newest)]
        return {
            "layout": join.layout,
            "instances": join.instances,
            "versions": join.layout_versions,
            "received": list(join.work.received),
            "stored": list(join.state.held),
            "busy": [round(seconds, 6) for seconds in join.work.busy_s],
            "watermark": join.watermark if math.isfinite(join.watermark) else None,
            "newest": max(known, default=None),
            "ended": join.watermark == math.inf,
            "forecast_rows": None if forecast is None else round(forecast[0]),
            "forecast_bytes": None if forecast is None else round(forecast[1]),
            **{name: figure.of(join) for name, figure in FIGURES.items()},
            "tuples": round(heat.tuples),
            "hot": [self._hot(number, batch, key, sided=join.sided) for key in heat.keys],
            "greatest": heat.greatest,
            "hash_greatest": None if heat.under_hash is None else round(heat.under_hash),
        }

    def _at_fullest(self, number: int, join: OperatorRecord) -> tuple[float, float] | None:
        """The forecast of the state at its fullest, at least what it has already held."""
        rows, size = self._fullest[number]
        self._fullest[number] = max(rows, join.state.rows), max(size, join.state.size_bytes)
        forecast, (rows, size) = self._forecasts[number], self._fullest[number]
        return None if forecast is None else (max(forecast[0], rows), max(forecast[1], size))

    def _take_names(self, number: int, heat: Heat) -> None:
        """Remember the values of keys, for plans; forget keys that are no longer hot."""
        names = self._names[number]
        names |= {key.hash_: key.text for key in heat.keys if key.text is not None}
        while len(names) > 4 * MOST_PLANS:
            del names[next(iter(names))]

    def _hot(self, number: int, batch: int, key: HotKey, *, sided: bool) -> Entry:
        done, words = placement_words(key.placement, listed=key.listed, sided=sided)
        return {
            "key": key.text,
            "hash": hash_text(key.hash_),
            "rows": round(key.rows),
            "share": round(key.share, 5),
            "state_share": None if key.state_share is None else round(key.state_share, 5),
            "done": done,
            "homes": [] if key.placement is None else sorted(key.placement.homes),
            "words": words,
            "since": self._placed_since(number, batch, key),
            "saved_rows": None if key.saved_rows is None else round(key.saved_rows),
        }

    def _placed_since(self, number: int, batch: int, key: HotKey) -> int | None:
        """The first batch under the key's present placement; None: a batch before this run.

        A key that no plan of the run has placed has had its placement since the run began, or since
        the layout last changed as a whole.
        """
        relaid, known = self._relaid[number], self._since[number].pop(key.hash_, None)
        now = manner(key.placement)
        if known is None:
            since = relaid
        elif known[0] == now:
            since = known[1]
        else:
            since = batch if relaid is None else max(relaid, known[2] + 1)
        self._since[number][key.hash_] = now, since, batch  # the newest stands last
        return since

    # Plans

    def _tell_plans(self, record: BatchRecord) -> None:
        """Add the plans of this batch, and complete those of the last one, which moved in it."""
        for number, join in enumerate(record.joins):
            reason = join.reason
            resumed = reason is not None and reason.cause is Cause.RESTART
            if not resumed:
                self._complete(number, join)
            if reason is None or reason.cause is Cause.LOADS:
                self._declined.discard(number)
                continue
            declined, again = reason.cause is Cause.DECLINED, number in self._declined
            (self._declined.add if declined else self._declined.discard)(number)
            if declined and again:  # batch after batch
                continue
            entry = self._plan(number, record, join, reason)
            self._plans.append(entry)
            self._changed.append(entry)
            if declined:  # the layout stays
                continue
            self._open[number] = _Told(entry, reason, join.instances, shares_of(join))
            if resumed:
                self._complete(number, join)
            since = record.batch if resumed else record.batch + 1
            if not reason.keys:
                self._relaid[number] = since
            for change in reason.keys:
                if is_elsewhere(change.before, change.after):
                    self._since[number].pop(change.hash_, None)
                    placed = manner(change.after), since, record.batch
                    self._since[number][change.hash_] = placed
        while len(self._plans) > MOST_PLANS:
            self._plans.pop(0)
            self._left_out += 1
        for known in self._since:
            while len(known) > 100 * MOST_PLANS:
                del known[next(iter(known))]

    def _plan(
        self, number: int, record: BatchRecord, join: OperatorRecord, reason: Reason
    ) -> Entry:
        names = self._names[number]
        keys = reason.keys[:_MOST_PLAN_KEYS]
        return {
            "batch": record.batch,
            "join": number,
            "at": record.started,
            "cause": reason.cause.value,
            "replan": reason.cause.is_replan,
            "words": plan_words(
                reason, names, join.instances, shares=shares_of(join), sided=join.sided
            ),
            "skew_before": round(reason.before.skew, 4),
            "skew_after": None if reason.after is None else round(reason.after.skew, 4),
            "moved_rows": None,
            "move_ms": None,
            "keys": [
                {
                    "key": names.get(change.hash_),
                    "hash": hash_text(change.hash_),
                    "words": f"{key_words(change.hash_, names)}: "
                    f"{key_change_words(change, sided=join.sided)}",
                }
                for change in keys
            ],
            "more_keys": len(reason.keys) + reason.more_keys - len(keys),
            "instances": None,
        }

    def _complete(self, number: int, join: OperatorRecord) -> None:
        """Add the outcome of the newest plan, from the batch that begins with its moves."""
        opened = self._open.pop(number, None)
        if opened is None:
            return
        entry, sizes = opened.entry, None
        if join.instances != opened.instances:
            sizes = opened.instances, join.instances
            entry["instances"] = list(sizes)
        moved = None
        if join.moved.from_rows:
            moved = join.moved.rows, join.moved.seconds
            entry["moved_rows"], entry["move_ms"] = moved[0], round(moved[1] * 1e3, 3)
        entry["words"] = plan_words(
            opened.reason,
            self._names[number],
            opened.instances,
            shares=opened.shares,
            moved=moved,
            sizes=sizes,
            sided=join.sided,
        )
        self._changed.append(entry)

    # Forecasts

    def _forecast(self, record: BatchRecord) -> None:
        """Forecast how much the state will hold; ever more rarely, since it looks far back."""
        self._records.append(record)
        if self._batches + 1 < self._forecast_at:
            return
        self._forecast_at = (self._batches + 1) * _FORECAST_GROWTH
        flows = rates_seen(self._records)
        for operator in self._query.operators:
            ours = {side: flow for (n, side), flow in flows.items() if n == operator.index}
            self._forecasts[operator.index] = operator.forecast(ours)
