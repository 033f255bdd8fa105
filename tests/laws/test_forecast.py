"""The forecast of `explain` says what the state will hold, over several streams."""

from __future__ import annotations

import random

import pytest

from joinengine.driver.rates import rates_seen
from joinengine.layouts import choose
from joinengine.model.keys import PAIR, Side
from joinengine.model.windows import tumbling, within
from joinengine.operators.timing import Flow, batches_held
from tests.harness import LocalQuery, two_way

S = 1_000_000
BOUNDS = {"lower": "-5 s", "upper": "20 s", "delay": "3 s"}
#: name -> (window, layout, seconds of event time of a batch)
STREAMS = {
    "interval, short batches": (within("lt", "rt", **BOUNDS), "mnrt", 0.7),
    "interval, long batches": (within("lt", "rt", **BOUNDS), "hash", 47.0),
    "tumbling": (tumbling("lt", "rt", "30 s", delay="2 s"), "mnrt", 4.0),
    "copies": (within("lt", "rt", **BOUNDS), "dynamic", 6.5),
}


def forecast(window, records):
    """(rows, bytes) of both sides, as `explain` adds them up."""
    flows = rates_seen(records)
    rows = {
        side: flows[0, side].batch_rows * batches_held(window, side, flows[0, side])
        for side in PAIR
    }
    return sum(rows.values()), sum(rows[side] * flows[0, side].copy_bytes for side in PAIR)


@pytest.mark.parametrize("name", STREAMS)
def test_the_forecast_is_within_a_third_of_what_is_held(name, tmp_path):
    window, layout, step = STREAMS[name]
    query = LocalQuery(tmp_path, two_way(window, 4), layout)
    rng = random.Random(3)
    batches = max(int(100 / step), 14)
    for batch in range(batches):
        left, right = (
            [(rng.randrange(9), n, int((batch + rng.random()) * step * S)) for n in range(rows)]
            for rows in (40, 90)
        )
        query.run_tuples(batch, left, right)
    half = query.records[: batches // 2]
    rows, size = forecast(window, half)
    later = [record.joins[0] for record in query.records[batches // 2 :]]
    held = max(later, key=lambda join: join.state.rows)
    assert rows == pytest.approx(held.state.rows, rel=0.3)
    assert size == pytest.approx(held.state.size_bytes, rel=0.3)


@pytest.mark.parametrize(("batch_s", "told"), [(2000.0, "33 min"), (4.5, "4.5 s"), (9e6, "2500 h")])
def test_the_length_of_a_batch_is_told_as_a_duration(batch_s, told):
    query = two_way(STREAMS["tumbling"][0], 4)
    flow = Flow(1000.0, batch_s * S, 0.0, 0.0, 40.0)
    operator = query.operators[0]
    lines = operator.lines(["a", "b"], choose("mnrt"), dict.fromkeys(Side, flow))
    assert sum(line.endswith(f", batches of {told})") for line in lines) == 2


def test_a_forecast_near_the_end_of_time_is_that_of_any_time():
    """Warnings of NumPy are errors here."""
    window, end_us = STREAMS["interval, long batches"][0], float((1 << 63) - 1)
    late, usual = (Flow(10.0, 30.0 * S, newest_us) for newest_us in (end_us, 0.0))
    for side in PAIR:
        assert batches_held(window, side, late) == batches_held(window, side, usual)
