"""The engine's own driver, asleep at a step while a second one takes its checkpoint over.

Both are in this process: while the first one sleeps, the second runs from inside the first's step.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from joinengine.driver import cleaning
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import Mnrt
from joinengine.model.errors import CheckpointMismatch, DamagedState, TakenOver
from joinengine.model.keys import Side
from joinengine.state import fence, manifests
from joinengine.state.manifest import Handed, Link
from joinengine.world.local import LocalStorage
from joinengine.world.storage import verify
from tests.harness import LocalQuery, rows, two_way

BATCHES = 12
#: The batch in which the first driver falls asleep.
TIRED = 3


def tuples(batch):
    rng = random.Random(batch)
    left = [(rng.choice([0, rng.randrange(9)]), 1000 * batch + i, i) for i in range(30)]
    right = [(rng.choice([0, rng.randrange(9)]), 1000 * batch + i, i) for i in range(10)]
    return left, right


def start(folder, jobs=None):
    choice = Mnrt(imbalance=0.0, intervals=2)
    query = two_way(None, 3)
    return LocalQuery(folder, query, "mnrt", choice=choice, jobs=jobs or InlineJobs(), aside=True)


def go_on(query, batches):
    """Ask for batches as Spark does after a start: the last batch may come again."""
    first = query.runner.manifest.batch
    for batch in range(max(first, 0), first + batches + 1):
        query.run_tuples(batch, *tuples(batch))


def around(module, name, monkeypatch):
    """Calls the test's function when the first driver falls asleep, once, at a call."""

    def arm(asleep, when):
        called = getattr(module, name)

        def call(*args, **kwargs):
            if when == "before":
                monkeypatch.setattr(module, name, called)
                asleep()
            found = called(*args, **kwargs)
            if when == "after":
                monkeypatch.setattr(module, name, called)
                asleep()
            return found

        monkeypatch.setattr(module, name, call)

    return arm


PLACES = {
    "before the commit": (LocalStorage, "create", "before"),
    "after the create": (LocalStorage, "create", "after"),
    "after the commit": (manifests, "commit", "after"),
    "before the boundary": (fence, "raise_boundary", "before"),
    "after the boundary": (fence, "raise_boundary", "after"),
    "before a removal": (cleaning, "remove_unnamed", "before"),
    "after a removal": (cleaning, "remove_unnamed", "after"),
}
STEPS = ("routed", "joined", "committed", "delivered", *PLACES)


def sleep_at(step, first, asleep, monkeypatch):
    """Let `asleep` happen once, at `step` of the first driver's batch."""
    if step in PLACES:
        module, name, when = PLACES[step]
        around(module, name, monkeypatch)(asleep, when)
        return
    armed = [step]

    def at(name):
        if name in armed:
            armed.clear()
            asleep()

    first.jobs.step = at
    first.runner.delivery.sink.step = at


def check(query):
    left, right = Counter(), []
    for batch in range(BATCHES):
        ours, others = tuples(batch)
        left.update(ours)
        right += others
    pairs = Counter((*a, *b) for a in left.elements() for b in right if a[0] == b[0])
    found = query.output()
    assert len(found) == found.total() == pairs.total()  # no two pairs are equal
    newest = manifests.newest(query.checkpoint.manifests)
    assert newest.batch == BATCHES - 1
    (state,) = newest.operators
    for stored in (*state.shelves.files.values(), *state.layouts.history):
        verify(query.checkpoint.runs, stored, "file")
    # Nothing of the older driver is left over.
    assert {
        path.name for path in Path(query.checkpoint.runs.folder).iterdir()
    } == newest.named_files()
    assert not list(Path(query.checkpoint.exchange.folder).iterdir())
    # The manifests are those of the chain.
    assert sorted(path.name for path in Path(query.checkpoint.manifests.folder).iterdir()) == [
        manifests.name_of(batch) for batch in range(newest.chain.full.batch, BATCHES)
    ]


@pytest.mark.parametrize("batches", [0, 1, 5])
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_asleep_at_a_step_does_no_harm(step, batches, tmp_path, monkeypatch):
    monkeypatch.setattr(manifests, "FULL_EVERY", 3)  # the others are changes
    first = start(tmp_path)
    for batch in range(TIRED):
        first.run_tuples(batch, *tuples(batch))
    others = []

    def asleep():
        others.append(start(tmp_path))
        go_on(others[0], batches)

    sleep_at(step, first, asleep, monkeypatch)
    with pytest.raises(TakenOver, match="another driver"):
        for batch in range(TIRED, TIRED + 4):
            first.run_tuples(batch, *tuples(batch))
    (second,) = others
    go_on(second, BATCHES - 1 - second.runner.manifest.batch)
    check(second)


def test_a_batch_of_the_older_driver_is_adopted(tmp_path, monkeypatch, caplog):
    """The older driver was first with the manifest; the newer has computed too, and adopts it."""
    first = start(tmp_path)
    go_on(first, 2)
    second = start(tmp_path)

    def overtake():
        with pytest.raises(TakenOver):
            first.runner._run(frame(2), {}, Handed("q", 2, ""))

    stray = Path(second.checkpoint.runs.folder) / "g1-run-stray.arrow"
    stray.touch()
    sleep_at("before the commit", second, overtake, monkeypatch)
    go_on(second, 1)
    assert second.runner.manifest.generation == 1
    assert stray.exists()  # the older one may have had more to commit, for all that this one knows
    assert not second.records
    (line,) = caplog.messages
    assert "has taken over" in line and "\n" not in line
    go_on(second, BATCHES - 3)
    check(second)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_batch_that_fails_because_an_older_driver_was_first_is_adopted(tmp_path, is_first):
    """It has removed what the batch needed; but if nobody was first, the failure is one."""
    first = start(tmp_path)
    go_on(first, 2)
    second = start(tmp_path)

    def fail():
        if is_first:
            with pytest.raises(TakenOver):
                first.runner._run(frame(2), {}, Handed("q", 2, ""))
        raise DamagedState("run file x is missing")

    sleep_at("routed", second, fail, None)
    if not is_first:
        with pytest.raises(DamagedState, match="run file x is missing"):
            go_on(second, 1)
        return
    go_on(second, 1)
    assert second.runner.manifest.generation == 1
    assert not second.records
    go_on(second, BATCHES - 3)
    check(second)


def frame(batch):
    left, right = tuples(batch)
    return [[(0, rows(Side.LEFT, left)), (1, rows(Side.RIGHT, right))]]


def test_batches_that_an_older_driver_has_committed_since_the_start_are_adopted(tmp_path):
    """Spark read its logs after that, and begins with the batch behind them."""
    first = start(tmp_path)
    go_on(first, 2)
    second = start(tmp_path)
    with pytest.raises(TakenOver):
        first.runner._run(frame(2), {}, Handed("q", 2, ""))
    second.run_tuples(3, *tuples(3))
    assert [record.batch for record in second.records] == [3]
    go_on(second, BATCHES - 4)
    check(second)


def test_a_driver_asleep_before_it_reads_takes_up_nothing(tmp_path, monkeypatch):
    """The driver sleeps between its generation and the newest manifest, then a newer driver's."""
    first = start(tmp_path)
    go_on(first, 2)
    others = []

    def asleep():
        others.append(start(tmp_path))
        go_on(others[0], 3)

    around(fence, "claim", monkeypatch)(asleep, "after")
    with pytest.raises(TakenOver, match="it has generation 3, and this driver has generation 2"):
        start(tmp_path)
    go_on(others[0], BATCHES - 5)
    check(others[0])


def test_an_old_batch_cannot_be_committed_again(tmp_path):
    query = start(tmp_path)
    go_on(query, 9)
    closed = query.runner.manifest.chain.full.batch - 1
    assert closed > 4
    old = replace(query.runner.manifest, batch=4, nonce="another")
    with pytest.raises(TakenOver, match=rf"batch 4 and all others up to {closed} are closed"):
        manifests.commit(query.checkpoint, old)
    query.restart()
    go_on(query, BATCHES - 9)
    check(query)


def test_a_reply_that_gets_lost_changes_nothing(tmp_path, monkeypatch):
    """The manifest was created, and the file system says that it was there already, or fails."""
    query = start(tmp_path)
    replies = iter([False, OSError("stale handle")] * BATCHES)

    def lost(storage, name, content):
        done = create(storage, name, content)
        if "/manifest" not in storage.folder:
            return done
        assert done
        reply = next(replies)
        if isinstance(reply, OSError):
            raise reply
        return reply

    create = LocalStorage.create
    monkeypatch.setattr(LocalStorage, "create", lost)
    go_on(query, BATCHES)
    check(query)
    assert len(query.records) == BATCHES


def test_a_batch_of_another_line_is_refused(tmp_path, monkeypatch):
    """Only a mixture of two checkpoints' files can be like this."""
    query = start(tmp_path)
    go_on(query, 2)
    other = replace(query.runner.manifest, batch=2, generation=0, nonce="x", parent=Link(1, "y", 1))

    def mix(*args, **kwargs):
        monkeypatch.undo()
        manifests.commit(query.checkpoint, replace(other, generation=query.runner.generation))

    sleep_at("before the commit", query, mix, monkeypatch)
    with pytest.raises(CheckpointMismatch, match="two checkpoints are mixed"):
        go_on(query, 1)


def test_generations_grow_and_the_boundary_does_not_fall(tmp_path):
    query = start(tmp_path)
    checkpoint = query.checkpoint
    assert [fence.claim(checkpoint) for _ in range(5)] == [2, 3, 4, 5, 6]
    # A driver that slept before it created its marker, whose number was used and removed since.
    assert fence.mark(checkpoint.generations, 2)
    assert fence.claim(checkpoint) == 7
    for batch in (1, 5, 3, 4):
        fence.raise_boundary(checkpoint, batch)
    assert fence.greatest(checkpoint.boundary, -1) == 5
    assert len(list(Path(checkpoint.boundary.folder).iterdir())) == 2


def test_a_number_that_was_used_and_removed_is_not_taken_again(tmp_path, monkeypatch):
    checkpoint = start(tmp_path).checkpoint
    mark = fence.mark

    def slow(*args):
        monkeypatch.setattr(fence, "mark", mark)
        for _ in range(4):
            fence.claim(checkpoint)
        return mark(*args)

    monkeypatch.setattr(fence, "mark", slow)
    assert fence.claim(checkpoint) == 6
