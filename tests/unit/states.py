"""States, reports and plans of a query, in a line each, for tests of the driver's decisions."""

from __future__ import annotations

from dataclasses import replace

from joinengine.driver import clock, step
from joinengine.driver.settings import Settings
from joinengine.driver.stages import Opened, Program
from joinengine.layouts import Hash
from joinengine.model.keys import Side
from joinengine.model.query import FromOperator, FromSource
from joinengine.model.windows import within
from joinengine.operators.base import QuerySpec
from joinengine.state.operator_state import STATE, Shelves
from joinengine.state.run import Run
from joinengine.wire.reports import InputReport
from tests.harness import two_way

LEFT, RIGHT = Side.LEFT, Side.RIGHT
SECOND = 1_000_000


def window(lower="0 s", upper="10 s", idle_after=None):
    return within("lt", "rt", lower=lower, upper=upper, delay="0 s", idle_after=idle_after)


def program(query, **settings):
    return Program(query, Settings(**settings), "runs", 2, driver="one")


def opened(manifest, number=None, counts=None):
    """A batch that follows a manifest; `number`: as if it were that batch."""
    last = manifest if number is None else replace(manifest, batch=number - 1)
    return Opened(last, counts or {}, {}, {}, "exchange", 1, 100.0)


def manifest_of(query, *choices):
    return step.begin(query, choices or [Hash()] * len(query.operators), "q")


def seen(side, time, rows=1, operator=0):
    return InputReport(operator, side, rows=rows, newest_time=time)


def run_of(instance, side=LEFT, rows=10, oldest=0, newest=0, name="run", version=0):
    return Run(
        name, 0, side, instance, version, rows, rows * 8, 0, min_time=oldest, max_time=newest
    )


def holding(state, *runs, shelf=STATE):
    held = {run.ident: run for run in runs}
    return replace(state, shelves=Shelves({**state.shelves.runs, shelf: held}))


def with_state(manifest, state, at=0):
    operators = list(manifest.operators)
    operators[at] = state
    return replace(manifest, operators=tuple(operators))


def advanced(query, manifest, *inputs, now_s=0.0, progress=None, routed=()):
    """`routed`: reports of route tasks that tell of partitions."""
    partitions = clock.partitions_after(manifest.partitions, routed, now_s)
    states = clock.advance(
        *(query, manifest.operators, manifest.operators, inputs, progress or {}, now_s), partitions
    )
    return replace(manifest, operators=states, partitions=partitions)


def chain(how="inner", upper="10 s"):
    """A join whose left side is another join's result, by that one's right time."""
    first = two_way(window(), how=how).operators[0]
    second = replace(
        first,
        index=1,
        inputs=(FromOperator(0), FromSource(2)),
        schemas=(first.output_schema, first.schemas[1]),
        window=replace(window(upper=upper), times=(("rt",), ("rt",)), delays_us=(0, 0)),
    )
    return QuerySpec((first, second), ("left", "right", "third"))
