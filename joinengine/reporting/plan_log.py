"""Log records of plans, for people or for tools.

The logger is `joinengine`. The new loads of candidate layouts, after every batch, are logged as
DEBUG; every other change of a layout as INFO.
"""

from __future__ import annotations

import json
import logging
from enum import StrEnum
from typing import Any

from joinengine.balancing.reasons import Cause, KeyChange, Reason
from joinengine.driver.records import BatchRecord, OperatorRecord
from joinengine.reporting.words import Shares, hash_text, key_change_words, plan_words, shares_of

_log = logging.getLogger("joinengine")
#: How many keys of a plan a log record names.
_MOST_KEYS = 8


class PlanLog(StrEnum):
    """How plans are logged: a sentence, or an object of JSON on one line."""

    WORDS = "words"
    JSON = "json"


def log_plans(record: BatchRecord, form: PlanLog, query: str | None) -> None:
    """Log why the layouts of a batch's operators change; `query`: the name of the query."""
    for number, join in enumerate(record.joins):
        if join.reason is None:
            continue
        level = logging.DEBUG if join.reason.cause is Cause.LOADS else logging.INFO
        if not _log.isEnabledFor(level):
            continue
        names = {key.hash_: key.text for key in join.heat.keys if key.text is not None}
        words = plan_words(
            join.reason, names, join.instances, shares=shares_of(join), sided=join.sided
        )
        plan = _told(record, number, join, join.reason, names, words) | {"query": query}
        if form is PlanLog.JSON:
            _log.log(level, "%s", json.dumps(plan), extra={"plan": plan})
        else:
            _log.log(
                level,
                "joinengine: batch %s, operator %s: %s",
                *(record.batch, number, words),
                extra={"plan": plan},
            )


def _told(
    record: BatchRecord,
    number: int,
    join: OperatorRecord,
    reason: Reason,
    names: dict[int, str],
    words: str,
) -> dict[str, Any]:
    """A plan as plain values."""
    cost, shares = reason.cost, shares_of(join)
    return {
        "event": "plan",
        "batch": record.batch,
        "operator": number,
        "layout": join.layout,
        "instances": join.instances,
        "cause": reason.cause.value,
        "replan": reason.cause.is_replan,
        "words": words,
        "skew_before": reason.before.skew,
        "skew_expected": None if reason.after is None else reason.after.skew,
        "rows_to_move": None if cost is None else cost.rows,
        "keys": [
            _told_key(change, names, shares.get(change.hash_), sided=join.sided)
            for change in reason.keys[:_MOST_KEYS]
        ],
        "more_keys": max(0, len(reason.keys) - _MOST_KEYS) + reason.more_keys,
    }


def _told_key(
    change: KeyChange, names: dict[int, str], shares: Shares | None, *, sided: bool
) -> dict[str, Any]:
    """A key of a plan; its shares are known while it is among the hottest of the batch."""
    return {
        "key": names.get(change.hash_),
        "hash": hash_text(change.hash_),
        "done": key_change_words(change, sided=sided),
        "share": None if shares is None else shares.batch,
        "state_share": None if shares is None else shares.state,
    }
