"""Orders for tasks that stay: how they are dealt out, carried out, and answered.

An order is the name of a function, its code if the task has not had it yet, and arguments; an
answer is what the function returns, or the trace of its error. All are bytes.
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

#: Carries out one order: bytes in, bytes out; None: nobody waits for an answer.
Function = Callable[..., bytes | None]
Order = tuple[bytes, ...]
#: How an answer begins.
_DONE, _FAILED = b"+", b"-"


class Failed(Exception):
    """An order failed where it was carried out; the text is the trace."""


def serve(driver: socket.socket, loaded: Callable[[bytes], Function]) -> None:
    """Carry out orders until the connection ends (EOFError or OSError).

    `loaded`: the function of a code.
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
    """Send an order to a task. Raises OSError if the task is lost."""
    send(task.there, name.encode(), b"" if name in task.known else code(), *order)
    task.known.add(name)


def answers(
    residents: Sequence[Resident],
    name: str,
    code: Callable[[], bytes],
    orders: Sequence[Order],
    places: Sequence[str | None],
) -> list[bytes]:
    """What the function `name` makes of each order; `code`: of that function.

    `places`: the executor for each order; None: any. An order whose executor has no task goes to
    any. Raises Failed if an order fails, and EOFError or OSError if a task is lost.
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
        while busy.get_map():  # also once one has failed: none may write on behind its back
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
    """Place -> the numbers of its orders."""
    locations = {resident.who.location for resident in residents}
    numbers = defaultdict[str | None, deque[int]](deque)
    for number, place in enumerate(places):
        numbers[place if place in locations else None].append(number)
    return numbers
