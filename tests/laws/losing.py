"""What the laws of layouts with copies share: a nervous planner, and instances that lose files."""

from __future__ import annotations

from collections import Counter

from joinengine.driver.settings import Settings
from joinengine.lab.emulation.emulating import Emulation
from joinengine.model.conditions import band
from tests.laws.cases import everything, of_keys

#: A planner that re-plans for the smallest imbalance and gain, by the last interval alone.
NERVOUS = {"imbalance": 0.0, "min_gain": 0.0, "intervals": 1}


def failing(losses, speed=None, **settings):
    """Settings with `losses`: batch -> instances that fail; `speed`: of an emulated store."""
    return Settings(trial=Emulation(losses=losses, speed=speed), **settings)


def lose(query, instances):
    """Remove all that some instances hold; the instances that held anything."""
    runs = query.state.shelves.state.values()
    gone = [run for run in runs if run.instance in instances]
    shared = {run.file for run in gone} & {run.file for run in runs if run not in gone}
    assert not shared, "instances share no file"
    for name in {run.file for run in gone}:
        query.checkpoint.runs.delete(name)
    return {run.instance for run in gone}


def feed(query, batches, losses, restarts=()):
    """Run the batches; `losses`: batch -> instances that lose their state before it."""
    lost = {}
    for number, (left, right) in enumerate(batches):
        if number in restarts:
            query.restart()
        gone = lose(query, losses.get(number, ()))
        lost |= {number: gone} if gone else {}
        query.run_tuples(number, left, right)
    return lost


#: A band of keys, which tell how far apart two tuples are.
NEAR = band("lk", "rk", lower=-2, upper=1)


def check_near(query, batches):
    """The results are all pairs within NEAR."""
    left, right = everything(batches)
    rights = of_keys(right)
    pairs = Counter(a + b for a in left for lead in range(-2, 2) for b in rights[a[0] + lead])
    assert pairs
    assert dict(query.output()) == dict(pairs)


def joins(query):
    """The record of the first join in each batch."""
    return [record.joins[0] for record in query.records]
