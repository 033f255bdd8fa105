"""Replaces each chain of joins on one key by one multiway join.

Why: a chain sends and stores the results of its first joins, and a hot key makes most of them.
Equality is transitive, so if all joins of a chain compare the same keys, all streams can meet at
once.

Law: the results are those of the chain. Under windows, other rows may be late than in the chain,
because there is one watermark in place of several.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from joinengine.exchange.finishing import Finish
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.conditions import Equi, Floats, Multiway, Predicate
from joinengine.model.keys import PAIR, Side
from joinengine.model.lateness import Delays
from joinengine.model.query import FromOperator, Input, JoinType, OutputColumn
from joinengine.model.windows import Within
from joinengine.operators.base import Operator, QuerySpec
from joinengine.operators.join.join_operator import Join
from joinengine.operators.multiway.multiway_operator import MultiwayJoin
from joinengine.operators.multiway.nearness import Bound, Nearness

#: The least and the greatest number of streams of a multiway join; two streams are a join.
LEAST, MOST = 3, len(Side)


class Planned(NamedTuple):
    """A query and the layouts of its operators."""

    query: QuerySpec
    choices: tuple[LayoutChoice, ...]


def with_multiway(
    query: QuerySpec, choices: Sequence[LayoutChoice], apart: Collection[int] = ()
) -> Planned:
    """The query with a multiway join in place of each chain that can be one.

    `apart`: joins that must stay as they are.
    """
    chains = dict[int, _Chain]()
    for operator, choice in zip(query.operators, choices, strict=True):
        if operator.index not in apart and (alone := _as_chain(operator, choice)):
            chains[operator.index] = _longest(alone, chains)
    used = {join for chain in chains.values() for join in chain.joins[:-1]}
    longest = {
        number: chain
        for number, chain in chains.items()
        if number not in used and len(chain.streams) >= LEAST
    }
    return _renumbered(query, choices, longest) if longest else Planned(query, tuple(choices))


@dataclass(frozen=True)
class _Stream:
    """A stream of a chain: its source, and its part of the condition."""

    source: Input
    schema: pa.Schema
    filter: Predicate | None
    keys: tuple[str, ...]
    time: str | None
    delay_us: int | None

    @property
    def key_types(self) -> list[pa.DataType]:
        """The types of its keys."""
        return [self.schema.field(name).type for name in self.keys]


class _Terms(NamedTuple):
    """What all joins of a chain have in common.

    `late`: after how long a stream is idle, and how far one may be ahead; None: no windows.
    """

    choice: LayoutChoice
    instances: int
    floats: Floats
    late: tuple[int | None, int | None] | None


@dataclass(frozen=True)
class _Chain:
    """Joins that can become one: their numbers, streams and windows, and the last one's output."""

    joins: tuple[int, ...]
    streams: tuple[_Stream, ...]
    bounds: tuple[Bound, ...]
    output: tuple[OutputColumn, ...]
    terms: _Terms
    is_selected: bool
    finish: Finish | None

    def owner(self, name: str) -> tuple[Side, str]:
        """The stream and the column from which column `name` of the results comes."""
        (column,) = (column for column in self.output if column.name == name)
        assert column.side is not None
        return column.side, column.column


def _as_chain(operator: Operator, choice: LayoutChoice) -> _Chain | None:
    """A join as a chain of one; None: it cannot be part of a chain."""
    if not isinstance(operator, Join) or not _is_plain(operator):
        return None
    on, window = operator.condition, operator.window
    assert isinstance(on, Equi)
    bounds, late = tuple[Bound, ...](), None
    times: list[str | None] = [None, None]
    delays: Delays = (None, None)
    if isinstance(window, Within):
        assert window.lower_us is not None
        assert window.upper_us is not None
        bounds = (Bound(*PAIR, window.lower_us, window.upper_us),)
        late = window.idle_after_us, window.ahead_us
        times, delays = [name for (name,) in window.times], window.delays_us
    facts = operator.inputs, operator.schemas, operator.filters, (on.left, on.right), times, delays
    streams = tuple(_Stream(*side_facts) for side_facts in zip(*facts, strict=True))
    keys = Multiway(tuple(stream.keys for stream in streams))
    if streams[0].key_types != streams[1].key_types or not choice.serving(keys).meets_all:
        return None
    terms = _Terms(choice, operator.instances, on.floats, late)
    shown = operator.output, terms, operator.is_selected, operator.finish
    return _Chain((operator.index,), streams, bounds, *shown)


def _is_plain(join: Join) -> bool:
    """Whether it is an inner join of two streams only on equal keys and, perhaps, near times.

    A window that keeps the rows of one side for ever does not count: it would keep all sides' rows.
    """
    more = join.predicate, join.table, join.max_pairs, join.changes
    if join.how is not JoinType.INNER or any(setting is not None for setting in more):
        return False
    window = join.window
    if isinstance(window, Within):
        near = window.endless is None and all(len(names) == 1 for names in window.times)
    else:
        near = window is None
    return near and isinstance(join.condition, Equi)


def _longest(alone: _Chain, chains: Mapping[int, _Chain]) -> _Chain:
    """The chain `alone`, extended by the chains that its join reads, as far as they fit."""
    longest = alone
    for side in reversed(PAIR):  # in this order, left streams keep their places
        source = alone.streams[side].source
        before = chains.get(source.operator) if isinstance(source, FromOperator) else None
        if before is not None:
            longest = _with(longest, side, before) or longest
    return longest


def _with(chain: _Chain, side: Side, before: _Chain) -> _Chain | None:
    """The chain with the streams of `before` in place of its stream `side`; None: they do not fit.

    They fit if both join on the same keys, and their windows use the same event times.
    """
    joined, n = chain.streams[side], len(before.streams)
    if before.finish is not None or chain.terms != before.terms or joined.filter:
        return None
    if len(chain.streams) + n - 1 > MOST:
        return None
    places = _places_of([before.owner(name) for name in joined.keys], before)
    owner, time = (Side.LEFT, None) if joined.time is None else before.owner(joined.time)
    if places is None or (joined.time is not None and time != before.streams[owner].time):
        return None
    inner = [
        replace(stream, keys=tuple(stream.keys[i] for i in places)) for stream in before.streams
    ]
    if inner[0].key_types != joined.key_types:
        return None

    def there(old: Side) -> Side:
        """The new place of a stream of `chain`; for stream `side`, that of its event time."""
        return Side(old + owner) if old is side else Side(old + (n - 1) * (old > side))

    bounds = [
        replace(bound, left=Side(bound.left + side), right=Side(bound.right + side))
        for bound in before.bounds
    ]
    bounds += [
        replace(bound, left=there(bound.left), right=there(bound.right)) for bound in chain.bounds
    ]
    output = list[OutputColumn]()
    for shown in chain.output:
        assert shown.side is not None
        place, column = there(shown.side), shown.column
        if shown.side is side:
            of_before, column = before.owner(column)
            place = Side(of_before + side)
        output.append(replace(shown, side=place, column=column))
    return replace(
        chain,
        joins=tuple(sorted({*before.joins, *chain.joins})),
        streams=(*chain.streams[:side], *inner, *chain.streams[side + 1 :]),
        bounds=tuple(bounds),
        output=tuple(output),
    )


def _places_of(keys: Sequence[tuple[Side, str]], before: _Chain) -> list[int] | None:
    """The key of `before` that each of `keys` is; None: they are not all its keys, each once."""
    places = list[int]()
    for side, name in keys:
        of_stream = before.streams[side].keys
        if name not in of_stream:
            return None
        places.append(of_stream.index(name))
    return places if sorted(places) == list(range(len(before.streams[0].keys))) else None


def _multiway(chain: _Chain, index: int) -> MultiwayJoin:
    """The operator of a chain; its inputs still have the old numbers of operators."""
    nearness = None
    if chain.terms.late is not None:
        idle_us, ahead_us = chain.terms.late
        times = tuple((stream.time or "",) for stream in chain.streams)
        delays = tuple(stream.delay_us for stream in chain.streams)
        nearness = Nearness(times, chain.bounds, delays, idle_us, ahead_us)
    return MultiwayJoin(
        index=index,
        condition=Multiway(tuple(stream.keys for stream in chain.streams)),
        nearness=nearness,
        inputs=tuple(stream.source for stream in chain.streams),
        schemas=tuple(stream.schema for stream in chain.streams),
        output=chain.output,
        instances=chain.terms.instances,
        filters=tuple(stream.filter for stream in chain.streams),
        chain=chain.joins,
        is_selected=chain.is_selected,
        finish=chain.finish,
    )


def _renumbered(
    query: QuerySpec, choices: Sequence[LayoutChoice], chains: Mapping[int, _Chain]
) -> Planned:
    """The query with one operator in place of the joins of each chain, numbered again."""
    gone = {join for chain in chains.values() for join in chain.joins[:-1]}
    kept = [operator for operator in query.operators if operator.index not in gone]
    numbers = {operator.index: number for number, operator in enumerate(kept)}
    operators, unsized = list[Operator](), set[int]()
    for old, number in numbers.items():
        chain = chains.get(old)
        operator = query.operators[old] if chain is None else _multiway(chain, number)
        inputs = tuple(
            FromOperator(numbers[source.operator]) if isinstance(source, FromOperator) else source
            for source in operator.inputs
        )
        operators.append(replace(operator, index=number, inputs=inputs))  # type: ignore[type-var]
        if {old} if chain is None else {*chain.joins} <= query.unsized:
            unsized.add(number)
    served = [
        choices[operator.index]
        if operator.index not in chains
        else choices[operator.index].serving(operators[numbers[operator.index]].condition)
        for operator in kept
    ]
    return Planned(
        replace(query, operators=tuple(operators), unsized=frozenset(unsized)), tuple(served)
    )
