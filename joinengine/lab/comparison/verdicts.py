"""The outcome of runs in words: the hot key, what a layout did with it, and the time saved.

Why: a load skew is only a number. To choose a layout, you want to know which key causes it, and how
long batches wait for that key. Keys are named by value, from the records of batches or from the
state, since the reasons of re-plans have only hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joinengine.balancing.reasons import KeyChange, Reason
from joinengine.driver.records import BatchRecord
from joinengine.lab.commands.inspection import key_held
from joinengine.lab.comparison.batch_loads import busy_by_batch, joined_by_batch
from joinengine.model.keys import Mode, Placement
from joinengine.operators.base import Operator

#: Measured seconds count if they are above WORTH_S. A layout is better if its figure is below ALIKE
#: times that of the other.
WORTH_S, ALIKE = 1.0, 0.95


def slowest_instance_s(report: dict[str, Any]) -> float | None:
    """Seconds for which batches wait for their slowest instance; None: no work is emulated.

    For each batch, the most tuples that an instance of the busiest operator receives, other than
    backups; their sum over the batches, times the work for a tuple. So no clock is involved.
    """
    work_us = report["work_per_tuple_us"]
    if not work_us:
        return None
    loads = joined_by_batch(report)
    return float(loads.max(axis=1).sum()) * work_us / 1e6 if len(loads) else 0.0


def busiest_s(report: dict[str, Any]) -> float | None:
    """Seconds that the busiest instance of each batch worked, added up; None: not reported."""
    busy = busy_by_batch(report)
    return float(busy.max(axis=1).sum()) if len(busy) else None


@dataclass(frozen=True, slots=True)
class _Heavy:
    """A key that an operator has placed anew, its load, and its share of all load."""

    operator: int
    change: KeyChange
    load: float
    share: float


def hot_key(
    records: Sequence[BatchRecord],
    operators: Sequence[Operator],
    checkpoint: Path | str,
    *,
    by_value: bool = True,
) -> dict[str, Any] | None:
    """The heaviest key that a re-plan has placed anew, and how; None: no re-plan has placed a key.

    `share`: the key's share of the load that the plan saw: expected work or, under `--load tuples`,
    tuples. `homes`: how many instances hold the key before the first such plan, and after the last.
    `key`: its value, from the newest batch in which the key was hot, or from the state; None:
    neither has it, or not `by_value`.
    """
    heavy = max(_replaced(records), key=lambda replaced: replaced.load, default=None)
    if heavy is None:
        return None
    hash_, number = heavy.change.hash_, heavy.operator
    same = [replaced.change for replaced in _replaced(records) if replaced.operator == number]
    same = [change for change in same if change.hash_ == hash_]
    before, after = same[0].before, same[-1].after
    value = _value(records, operators, checkpoint, heavy) if by_value else None
    return {
        "join": number,
        "on": operators[number].account()["on"],
        "key": value,
        "key_hash": hash_,
        "share": heavy.share,
        "cause": heavy.change.cause.value,
        "mode": after.mode.value,
        "homes": [len(before.homes), len(after.homes)],
        "done": _done(before, after),
    }


def _value(
    records: Sequence[BatchRecord],
    operators: Sequence[Operator],
    checkpoint: Path | str,
    heavy: _Heavy,
) -> str | None:
    """The value of a key. The state comes last: at the end of a run with a window it is empty."""
    number, hash_ = heavy.operator, heavy.change.hash_
    for record in reversed(records):
        for key in record.joins[number].heat.keys:
            if key.hash_ == hash_ and key.text is not None:
                return key.text
    held = key_held(checkpoint, number, hash_, operators[number])
    return None if held is None else ", ".join(map(str, held))


def verdict(reports: Sequence[dict[str, Any]]) -> list[str]:
    """What the best layout of each skew does and saves against `hash`, in sentences.

    The best layout is the one whose batches wait least for their slowest instance: by emulated
    work, or, if there is none, by the seconds that were measured. Where work takes so little that
    seconds are noise, it is the one with the most even load. Without `hash`, the others are
    compared with the first layout. A layout whose results differ from DuckDB's is left out, which
    a sentence says. Empty if there is only one layout.
    """
    sentences = list[str]()
    for z in dict.fromkeys(report["zipf"] for report in reports):
        ours = [report for report in reports if report["zipf"] == z]
        wrong = [report for report in ours if report.get("valid") is False]
        sentences += [
            f"{_at(report)}{report['layout']} is not compared, because its results differ from "
            f"DuckDB's"
            for report in wrong
        ]
        ours = [report for report in ours if report.get("valid") is not False]
        if len(ours) < 2:
            continue
        base = next((report for report in ours if report["layout"] == "hash"), ours[0])
        if not all(map(waited_s, ours)):
            sentences += _of_load(base, min(ours, key=_uneven), "the reports tell no seconds")
        elif base["work_per_tuple_us"] or waited_s(base) > WORTH_S:
            best = min(ours, key=waited_s)
            near = not base["work_per_tuple_us"] and waited_s(best) > waited_s(base) * ALIKE
            sentences += _sentences(base, base if near else best)
        else:
            why = f"batches waited {waited_s(base):.1f} s in all, too little to compare seconds"
            sentences += _of_load(base, min(ours, key=_uneven), why)
    return sentences


def waited_s(report: dict[str, Any]) -> float:
    """Seconds that batches have waited for their busiest instance; 0: not reported.

    By emulated work if there is any; else as measured.
    """
    emulated = report["work_per_tuple_us"]
    return float((report["slowest_instance_s"] if emulated else busiest_s(report)) or 0.0)


def _sentences(base: dict[str, Any], best: dict[str, Any]) -> list[str]:
    if best is base:
        less = "less" if base["work_per_tuple_us"] else "much less"
        return [
            f"{_at(base)}under no other layout did batches wait {less} for their slowest instance "
            f"than under {base['layout']}"
        ]
    was, now = waited_s(base), waited_s(best)
    less = f" ({1 - now / was:.0%} less)" if was else ""
    waited = (
        f"{_at(base)}batches waited {was:.1f} s for their slowest instance under {base['layout']} "
        f"and {now:.1f} s under {best['layout']}{less}. "
        f"The runs took {base['elapsed_s']:.1f} s and {best['elapsed_s']:.1f} s"
    )
    return [*_of_key(best), waited]


def _of_load(base: dict[str, Any], best: dict[str, Any], why: str) -> list[str]:
    """Which layout has the most even load; `why`: the reason not to compare seconds."""
    if _uneven(best) > _uneven(base) * ALIKE:
        return [f"{_at(base)}no layout had a more even load than {base['layout']}; {why}"]
    skews = (
        f"{_at(base)}the busiest instance received {_uneven(best):.2f} times the mean under "
        f"{best['layout']}, {_uneven(base):.2f} times under {base['layout']}; {why}"
    )
    return [*_of_key(best), skews]


def _of_key(report: dict[str, Any]) -> list[str]:
    """What was done with the hot key of a run."""
    key = report["hot_key"]
    if key is None:
        return []
    name = "a key" if key["key"] is None else f"key {key['key']}"
    left, _, right = key["on"].partition(" = ")
    name += f" of {left}" if left == right else f" ({key['on']})"
    share = f"{key['share']:.0%} of the load"
    return [f"{_at(report)}{name} carried {share}, and {report['layout']} {key['done']}"]


def _at(report: dict[str, Any]) -> str:
    return "" if report["zipf"] is None else f"zipf {report['zipf']:g}: "


def _uneven(report: dict[str, Any]) -> float:
    """The load skew of a run, in its last half."""
    return float(report["load_skew"]["received"]["last_half"])


def _done(before: Placement, after: Placement) -> str:
    """What was done with a key.

    >>> _done(Placement.whole(0), Placement.whole(3))
    'moved it to instance 3'
    """
    homes = len(after.homes)
    match after.mode:
        case Mode.WHOLE if before.homes == after.homes:
            return f"left it at instance {after.homes[0]} in the end"
        case Mode.WHOLE:
            return f"moved it to instance {after.homes[0]}"
        case Mode.SPLIT | Mode.COPIED:
            return f"divided it over {homes} instances"
        case Mode.GRID:
            return f"spread it over a grid of {homes} instances"


def _replaced(records: Sequence[BatchRecord]) -> list[_Heavy]:
    """The keys that re-plans have placed anew, in order; only those with known loads."""
    return [
        _Heavy(number, change, change.load, _share(change.load, join.reason, join.instances))
        for record in records
        for number, join in enumerate(record.joins)
        if join.reason is not None and join.reason.cause.is_replan
        for change in join.reason.keys
        if change.load is not None
    ]


def _share(load: float, reason: Reason, instances: int) -> float:
    total = reason.before.total(instances)
    return load / total if total else 0.0
