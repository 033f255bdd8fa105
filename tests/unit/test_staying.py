"""Tasks that stay, as threads of this process: how they are met, given orders, and let go."""

from __future__ import annotations

import os
import pickle
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from joinengine.spark.jobs import slots as session_slots
from joinengine.staying import pool as pools
from joinengine.staying.door import Hosts
from joinengine.staying.orders import Failed, answers, serve
from joinengine.staying.pool import Lost, Pool, Slots
from joinengine.staying.wire import Caller, connected, introduce
from tests.waiting import soon

LOOPBACK = Hosts("127.0.0.1", "localhost")


class Threads(Slots):
    """Slots whose tasks are threads; `locations`: of their executors, None: they have none."""

    def __init__(self, locations, hosts=LOOPBACK):
        self.locations, self._hosts = locations, hosts
        self.alive = {one for one in locations if one is not None}
        self.waiting, self.said, self.silent = False, None, False
        self.cancelled, self.groups, self.copies = [], [], 1
        self.settled = []
        self.ends = {}

    hosts = property(lambda self: self._hosts)

    def count(self):
        return len(self.locations)

    def executors(self):
        return set(self.alive)

    def is_on(self, location, executors):
        return location in executors

    def occupy(self, group, count, door):
        self.groups.append(group)
        tasks = [
            threading.Thread(target=self._stay, args=(door, number, copy), daemon=True)
            for copy in range(self.copies)
            for number in range(count)
        ]
        job = threading.Thread(target=lambda: [one.join() for one in tasks], daemon=True)
        self.job = job
        for one in (*tasks, job):
            one.start()
        return job

    def _stay(self, door, number, copy):
        if self.silent:
            return
        with suppress(OSError, EOFError), connected(door.address, 5) as driver:
            caller = Caller(number, os.getpid(), self.locations[number])
            if introduce(driver, door.secret, caller):
                driver.settimeout(None)
                serve(driver, lambda code: _bound(pickle.loads(code), self.locations[number]))
        self.ends[number, copy] = True

    def cancel(self, group):
        self.cancelled.append(group)

    def settle(self, within_s):
        self.settled.append(self.job.is_alive())

    def others_wait(self, group):
        return self.waiting

    def unreached(self, group):
        return self.said

    def code(self, function):
        return pickle.dumps(function)


def _bound(function, location):
    return lambda *order: function(location, *order)


def where(location, order):
    return f"{order.decode()} at {location}".encode()


def slow(location, order):
    time.sleep(0.3)
    return b""


def wrong(location, order):
    raise ValueError(f"{order.decode()} is wrong")


_held = threading.Event()


def held(location, order):
    _held.wait(20)
    return b"done"


@pytest.fixture
def made():
    """Makes pools, and lets them go; what they have begun must end."""
    before, found = threading.active_count(), []
    _held.clear()

    def make(*locations, **more):
        slots = Threads(locations, **more)
        found.append(Pool(slots))
        return found[-1], slots

    yield make
    _held.set()
    for one in found:
        one.end()
    soon(lambda: threading.active_count() <= before)


def carry_out(pool, function, orders, places=None, owner="query"):
    return pool.carry_out(owner, function.__name__, function, orders, places)


ORDERS = [(b"0",), (b"1",), (b"2",), (b"3",)]


def test_an_order_goes_to_its_executor_and_others_to_whoever_is_free(made):
    pool, _ = made("a", "b")
    assert carry_out(pool, where, ORDERS[:3], ["b", "a", "b"]) == [b"0 at b", b"1 at a", b"2 at b"]
    found = carry_out(pool, where, ORDERS, ["b", None, None, "b"])
    assert [found[0], found[3]] == [b"0 at b", b"3 at b"]
    assert {one.split()[0] for one in found} == {b"0", b"1", b"2", b"3"}


def test_without_places_an_order_goes_to_the_same_task_each_time(made):
    pool, _ = made("a", "b")
    first = carry_out(pool, where, ORDERS[:2])
    assert [carry_out(pool, where, ORDERS[:2]) for _ in range(5)] == [first] * 5
    assert first != [b"0 at a", b"1 at a"]


def test_where_state_is_there_is_no_task_so_a_job_does_it_and_slots_go_back(made):
    pool, _ = made("a", "b")
    said = carry_out(pool, where, ORDERS[:2], ["a", "c"])
    assert said == "no slot was free where state is"
    assert not pool.holds
    assert carry_out(pool, where, ORDERS[:1]) == "other jobs of the session occupy the slots"


def noted(location, order, *more):
    """Notes an order; with more than one part it answers what was noted there before."""
    if not more:
        _notes.setdefault(location, []).append(order)
        return None
    return b",".join(_notes.pop(location, [])) + b" at " + location.encode()


_notes = {}


def test_hints_go_where_the_next_orders_go_and_are_not_answered(made, monkeypatch):
    monkeypatch.setattr(pools, "_WATCH_S", 1.0)  # who looks for others has the turn for a moment
    pool, _ = made("a", "b")
    first, second = carry_out(pool, where, ORDERS[:2])  # tasks come in any order
    here, there = (answer.partition(b" at ")[2] for answer in (first, second))
    assert {here, there} == {b"a", b"b"}
    for _ in range(3):
        pool.hint("noted", noted, ORDERS)  # two of them have no task
        pool.hint("noted", noted, ORDERS[2:3])
        told = carry_out(pool, noted, [(b"", b"?"), (b"", b"?")])
        assert told == [b"0,2 at " + here, b"1 at " + there]
    assert carry_out(pool, where, ORDERS[:2]) == [first, second]


def test_hints_take_no_slot_and_keep_none(made):
    pool, slots = made("a")
    pool.hint("noted", noted, ORDERS)
    assert not slots.groups
    carry_out(pool, where, ORDERS[:1])
    pool._is_wanted = True  # another job waits
    pool.hint("noted", noted, ORDERS)
    assert not _notes
    pool._is_wanted = False
    pool._tasks[0].end()
    pool.hint("noted", noted, ORDERS)
    assert carry_out(pool, where, ORDERS[:1]) == "a resident task was lost"


def test_hints_wait_for_nobody(made):
    pool, _ = made("a")
    carry_out(pool, where, ORDERS[:1])
    busy = threading.Thread(target=carry_out, args=(pool, held, ORDERS[:1]))
    busy.start()
    soon(pool._turn.locked)
    pool.hint("noted", noted, ORDERS)  # as another query of the session
    assert busy.is_alive()
    _held.set()
    busy.join()
    assert not _notes


def test_an_error_is_told_and_the_task_stays(made):
    pool, slots = made("a")
    with pytest.raises(Failed, match="ValueError: 2 is wrong"):
        carry_out(pool, wrong, [(b"2",)])
    assert carry_out(pool, where, ORDERS[:1]) == [b"0 at a"]
    assert len(slots.groups) == 1


def test_a_second_copy_of_a_task_is_told_to_go(made):
    pool, slots = made("a", "b")
    slots.copies = 2
    assert len(carry_out(pool, where, ORDERS)) == 4
    pool._count = 3  # as if a slot were left
    soon(lambda: len(carry_out(pool, where, ORDERS)) == 4 and len(slots.ends) == 2)
    assert sorted(one.who.number for one in pool._tasks) == [0, 1]


def test_a_lost_task_is_replaced_by_a_job_and_the_next_order_by_a_new_pool(made, caplog):
    pool, slots = made("a", "b")
    carry_out(pool, where, ORDERS)
    pool._tasks[0].end()
    assert carry_out(pool, where, ORDERS) == "a resident task was lost"
    assert "a resident task was lost; a job does its work" in caplog.text
    assert slots.cancelled == slots.groups[:1]
    assert len(carry_out(pool, where, ORDERS)) == 4
    assert len(slots.groups) == 2


def test_an_executor_that_is_gone_without_a_word_ends_the_order(made):
    pool, slots = made("a", "b")
    carry_out(pool, where, ORDERS)
    begun = time.monotonic()
    threading.Timer(0.2, slots.alive.discard, ["b"]).start()
    assert carry_out(pool, held, ORDERS[:2]) == "a resident task was lost"
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("change", ["come", "gone"])
def test_slots_are_taken_anew_when_executors_change(made, change):
    pool, slots = made("a", "b")
    carry_out(pool, where, ORDERS)
    slots.alive = {"a", "b", "c"} if change == "come" else {"a"}
    slots.locations = sorted(slots.alive)
    soon(lambda: not pool.holds)
    assert len(carry_out(pool, where, ORDERS)) == 4
    assert sorted(one.who.location for one in pool._tasks) == slots.locations
    assert len(slots.groups) == 2


def test_others_get_the_slots_after_the_order_that_is_out(made):
    pool, slots = made("a")
    slots.waiting = True
    assert carry_out(pool, slow, ORDERS[:1]) == [b""]
    assert not pool.holds
    assert carry_out(pool, where, ORDERS[:1]) == "other jobs of the session occupy the slots"


def test_idle_slots_are_given_back(made, monkeypatch):
    monkeypatch.setattr(pools, "_IDLE_S", 0.2)
    pool, slots = made("a")
    carry_out(pool, where, ORDERS[:1])
    soon(lambda: not pool.holds)
    assert carry_out(pool, where, ORDERS[:1]) == [b"0 at a"]
    assert not slots.cancelled


def test_a_process_that_ends_waits_for_the_job_and_then_for_its_tasks(made):
    """Else Spark tells a process that is gone how they ended, and prints an error."""
    pool, slots = made("a", "b")
    carry_out(pool, where, ORDERS)
    pool.end()
    assert slots.settled == [False]
    assert not pool.holds


def test_a_cut_ends_an_order_of_its_owner_alone(made):
    pool, slots = made("a")
    carry_out(pool, where, ORDERS[:1])
    threading.Timer(0.2, pool.cut, ["another"]).start()
    threading.Timer(0.4, pool.cut, ["query"]).start()
    begun = time.monotonic()
    with pytest.raises(Lost, match="was interrupted"):
        carry_out(pool, held, ORDERS[:1])
    assert time.monotonic() - begun >= 0.4
    assert slots.groups[0] in slots.cancelled


def test_a_cut_after_the_last_answer_ends_no_later_order(made, monkeypatch, caplog):
    pool, slots = made("a")
    begun, cutting = threading.Event(), []

    def cancel(group):
        begun.set()
        time.sleep(0.2)  # meanwhile, the orders end

    def answered(*given):
        try:
            return answers(*given)
        finally:
            if not cutting:
                cutting.append(threading.Thread(target=pool.cut, args=("query",)))
                cutting[0].start()
                begun.wait(5)

    monkeypatch.setattr(slots, "cancel", cancel)
    monkeypatch.setattr(pools, "answers", answered)
    assert carry_out(pool, where, ORDERS[:1]) == [b"0 at a"]
    assert carry_out(pool, slow, ORDERS[:1], owner="another") == [b""]
    cutting[0].join()
    assert "was lost" not in caplog.text


def test_a_session_that_stops_ends_its_tasks_first(made):
    """Else Spark prints an error for each."""
    pool, slots = made("a", "b")
    pool.leave()
    carry_out(pool, where, ORDERS)
    pool.leave()
    assert not slots.job.is_alive()
    assert not pool.holds
    assert len(carry_out(pool, where, ORDERS)) == 4
    assert not slots.cancelled


def test_the_stop_of_a_session_lets_its_pool_leave_first(monkeypatch):
    steps = []
    context = SimpleNamespace(
        applicationId="app-of-a-test",
        accumulator=lambda *given: None,
        stop=lambda: steps.append("stopped"),
    )

    def leave(pool):
        steps.append(pool)

    monkeypatch.setattr(Pool, "leave", leave)
    pool = session_slots.pool_of(context)
    assert session_slots.pool_of(context) is pool
    context.stop()
    assert steps == [pool, "stopped"]
    del session_slots._pools[context.applicationId]


def test_a_session_that_stops_does_not_wait_for_orders(made):
    pool, _ = made("a")
    busy = threading.Thread(target=carry_out, args=(pool, held, ORDERS[:1]))
    busy.start()
    soon(pool._turn.locked)
    pool.leave()
    assert busy.is_alive()
    _held.set()
    busy.join()


def test_a_cut_ends_the_wait_for_tasks_that_do_not_come(made):
    pool, slots = made("a")
    stop, begun = threading.Event(), time.monotonic()
    slots._stay = lambda *given: stop.wait(20)
    threading.Timer(1.0, pool.cut, ["query"]).start()
    assert carry_out(pool, where, ORDERS[:1]) == "no slot was free where state is"
    assert time.monotonic() - begun < 10
    stop.set()


def test_a_driver_that_cannot_be_reached_is_told_once(made, caplog):
    pool, slots = made("a", "b")
    slots.silent, slots.said = True, "executors cannot reach the driver"
    for _ in range(2):
        assert carry_out(pool, where, ORDERS) == "executors cannot reach the driver"
    assert caplog.text.count("tasks cannot stay resident: executors cannot reach the driver") == 1
    assert len(slots.groups) == 1
    assert pool.obstacle == "executors cannot reach the driver"


def test_a_host_where_nothing_can_listen_is_told(made, caplog):
    pool, _ = made("a", hosts=Hosts("192.0.2.99", "here"))
    assert carry_out(pool, where, ORDERS).startswith("the driver cannot listen on a port (")
    assert "tasks cannot stay resident: the driver cannot listen on a port (" in caplog.text
