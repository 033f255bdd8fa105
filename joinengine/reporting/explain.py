"""A query in words: its operators, their layouts, when a tuple leaves the state, what waits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

from joinengine.driver.records import BatchRecord, OperatorRecord
from joinengine.driver.settings import Settings
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.durations import describe
from joinengine.model.keys import Side
from joinengine.model.query import FromOperator, Input
from joinengine.model.spelling import printed_lines
from joinengine.model.texts import Shown, counted
from joinengine.operators.base import Operator, QuerySpec, sides_of
from joinengine.operators.join.join_spec import JoinSpec
from joinengine.operators.timing import Flow
from joinengine.state.wished import Relayout

#: A line warns of so many compared pairs for each result, if there were enough pairs.
IN_VAIN = 100
IN_VAIN_FROM = 1_000_000


def explain(
    query: QuerySpec,
    choices: Sequence[LayoutChoice],
    rates: Mapping[tuple[int, Side], Flow] | None = None,
    instances: Sequence[int] | None = None,
    wishes: Sequence[Relayout] = (),
    records: Sequence[BatchRecord] = (),
    tasks: str | None = None,
) -> str:
    """A few lines for each operator.

    `rates`: (operator, side) -> the flow of the sides that have been measured. The lines of these
    sides forecast how much the state will hold. `instances`: how many the operators have now; None:
    as many as they start with. `wishes`: those of users, for the next batch. `records`: those of
    the batches so far; if hardly any of the compared pairs have matched, a line says so. `tasks`:
    in words, the tasks that carry out a batch.
    """
    lines = list[str]()
    for now, own in described(query, choices, rates, instances):
        lines += own
        finish = [] if now.finish is None else now.finish.lines
        lines += [f"  then  {printed_lines(step)}" for step in finish]
        lines += compared_in_vain(now, [record.joins[now.index] for record in records])
    lines += [] if tasks is None else [f"tasks: {tasks}"]
    lines += [f"requested: {_wished(wishes)}; takes effect with the next batch"] if wishes else []
    return Shown("\n".join(lines))


def described(
    query: QuerySpec,
    choices: Sequence[LayoutChoice],
    rates: Mapping[tuple[int, Side], Flow] | None,
    instances: Sequence[int] | None,
) -> Iterator[tuple[Operator, list[str]]]:
    """Each operator at its present size, and its lines; the arguments are those of `explain`."""
    for operator, choice in zip(query.operators, choices, strict=True):
        inputs = [input_name(query, source) for source in operator.inputs]
        flows = {side: flow for (n, side), flow in (rates or {}).items() if n == operator.index}
        now = operator if instances is None else sized(operator, instances[operator.index])
        yield now, list(map(printed_lines, now.lines(inputs, choice, flows)))


def compared_in_vain(operator: Operator, batches: Sequence[OperatorRecord]) -> list[str]:
    """A line if an operator has compared IN_VAIN times as many pairs as it has made results.

    Empty for semi and anti joins, whose results are not pairs.
    """
    if isinstance(operator, JoinSpec) and not operator.makes_pairs:
        return []
    candidates = sum(batch.work.candidates for batch in batches)
    made = sum(sum(batch.work.made) for batch in batches)
    if candidates <= max(IN_VAIN * made, IN_VAIN_FROM):
        return []
    window = "a window" if operator.window is None else "a shorter window"
    return [
        f"  {candidates:,} pairs were compared for {made:,} results; to compare fewer, use "
        f"{window}, or add an equality or a band to the predicate"
    ]


def name_of(operator: Operator) -> str:
    """The name of an operator in metrics: its kind and its number."""
    return f"joinengine {operator.kind} {operator.index}"


def waiting_for(query: QuerySpec, records: Sequence[BatchRecord]) -> list[str]:
    """Why tuples still wait after a run that read all there was: a side brought no tuples.

    Or none at or after the time that the user has named. One sentence per such operator; a
    watermark that only lags needs none.
    """
    lines = list[str]()
    last = records[-1].joins if records else []
    for operator, join in zip(query.operators, last, strict=False):
        window, until_us = operator.window, operator.until_us
        if until_us is not None and join.sides[Side.RIGHT].newest < until_us:
            read = input_name(query, operator.inputs[Side.RIGHT])
            lines.append(
                f"no left row of operator {operator.index} has been read: {read} has brought no "
                f"version from latest(.., until=..) on. The next start waits for one, too"
            )
        if window is None or not join.state.pending_rows:
            continue
        silent = [side for side in sides_of(operator) if join.sides[side].newest == -math.inf]
        for side in silent:
            read = input_name(query, operator.inputs[side])
            idle = window.idle_after_us
            then = "without idle_after= this side holds the watermark back for ever"
            if idle is not None:
                then = (
                    f"with another trigger, it would wait {describe(idle)} for this side, if the "
                    f"other brings rows meanwhile"
                )
            lines.append(
                f"{join.state.pending_rows:,} rows of operator {operator.index} are still waiting: "
                f"its {side.name.lower()} side ({read}) has delivered no row with an event time, "
                f"so there is no watermark. With availableNow the query ends here; {then}"
            )
    return lines


def not_reached(settings: Settings, batches: range) -> list[str]:
    """A sentence on what was scheduled for batches that the run did not reach; else empty.

    `batches`: the numbers of the run's batches. A layout for the batch after the last one counts as
    reached.
    """
    kills = ((batch, "the kill of an executor") for batch in settings.kills)
    missed = [event for event in (*settings.trial.planned, *kills) if event[0] not in batches]
    missed += [(at, "the change of layout") for at in settings.schedule if at > batches.stop]
    if not missed:
        return []
    events = ", ".join(f"{what} before batch {batch}" for batch, what in sorted(missed))
    which = f", {batches[0]} to {batches[-1]}" if batches else ""
    return [f"not reached: {events}; this run had {counted(len(batches), 'batch')}{which}"]


def sized(operator: Operator, instances: int) -> Operator:
    """The operator as it would be on `instances` instances, if it depends on them."""
    plain: Any = operator
    named = is_dataclass(plain) and "instances" in plain.__dataclass_fields__
    return replace(plain, instances=instances) if named else operator


def _wished(wishes: Sequence[Relayout]) -> str:
    """The last wish of each kind in words: the next batch grants only these."""
    layouts = [f"layout {wish.choice.label}" for wish in wishes if wish.choice is not None]
    sizes = [counted(wish.instances, "instance") for wish in wishes if wish.instances is not None]
    return " on ".join([*layouts[-1:], *sizes[-1:]])


def input_name(query: QuerySpec, source: Input) -> str:
    """The name of an input: its source, or the operator that it reads."""
    if isinstance(source, FromOperator):
        return f"operator {source.operator}"
    return query.sources[source.source]
