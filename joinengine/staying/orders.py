"""Orders for resident tasks: how they are given, carried out and answered.

An order is the name of a function, its code if the task does not have it yet, and arguments. An
answer is the function's return value, or the traceback of its error. All are bytes.
"""

from __future__ import annotations

import selectors
import socket
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cache

from joinengine.staying.door import Resident
from joinengine.staying.wire import received, send

#: Carries out one order: bytes in, bytes out. It returns None if no answer is expected.
Function = Callable[..., bytes | None]
Order = tuple[bytes, ...]
#: How an answer begins.
_DONE, _FAILED = b"+", b"-"


class Failed(Exception):
    """An order failed in its task; the text is the traceback."""


def serve(driver: socket.socket, loaded: Callable[[bytes], Function]) -> None:
    """Carry out orders until the connection ends, which raises EOFError or OSError.

    `loaded`: makes a function from its code.
    """
    functions = dict[str, Function]()
    while True:
        name_sent, code, *order = received(driver)
        name = name_sent.decode()
        try:
            if code:
                functions[name] = loaded(code)
            if (reply := functions[name](*order)) is None:
                continue
            answer = _DONE, reply
        except Exception:
            answer = _FAILED, traceback.format_exc().encode()
        send(driver, *answer)


def give(task: Resident, name: str, code: Callable[[], bytes], order: Order) -> None:
    """Send an order to a task, with the code if it is new there. OSError: the task is lost."""
    send(task.there, name.encode(), b"" if name in task.known else code(), *order)
    task.known.add(name)


def answers(
    residents: Sequence[Resident],
    name: str,
    code: Callable[[], bytes],
    orders: Sequence[Order],
    places: Sequence[str | None],
) -> list[bytes]:
    """The answer of the function `name` to each order; `code`: gives its code.

    `places`: the executor for each order; None: any. An order whose executor has no task goes to
    any task. Raises Failed if an order fails, and EOFError or OSError if a task is lost.
    """
    replies, failed = dict[int, bytes](), None
    waiting, code_once = _by_place(residents, places), cache(code)
    with selectors.DefaultSelector() as busy:

        def next_one(task: Resident) -> None:
            queue = waiting[task.who.location] or waiting[None]
            if not queue:
                return
            number = queue.popleft()
            give(task, name, code_once, orders[number])
            busy.register(task.there, selectors.EVENT_READ, (task, number))

        for resident in residents:
            next_one(resident)
        while busy.get_map():  # even after a failure: no task may still write afterwards
            for key, _ in busy.select():
                task, number = key.data
                how, replies[number] = received(task.there)
                busy.unregister(task.there)
                if how != _DONE:
                    failed = failed or Failed(replies[number].decode())
                    waiting.clear()
                next_one(task)
    if failed is not None:
        raise failed
    return [replies[number] for number in range(len(orders))]


def _by_place(
    residents: Sequence[Resident], places: Sequence[str | None]
) -> dict[str | None, deque[int]]:
    """Place -> the numbers of its orders; None: any place, also if a place has no task."""
    locations = {resident.who.location for resident in residents}
    numbers = defaultdict[str | None, deque[int]](deque)
    for number, place in enumerate(places):
        numbers[place if place in locations else None].append(number)
    return numbers
