"""Names of hosts, looked up in threads of their own: a resolver may take long, or hang.

Invariants: each name is looked up once at a time, however many connections ask; an answer that is too late for the
attempt that asked is kept for the next one. So a slow resolver makes no connection impossible.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from amq.doors.clock import Clock, SystemClock

KEPT_S = 60.0  # a late answer

Address = tuple[str, int]
Answer = tuple[Any, ...] | OSError | UnicodeError  # of getaddrinfo, or why there is none; several may hold it
Take = Callable[[Answer], bool]  # from any thread; False = it came too late


class Names:
    """Answers of the resolver, for all connections of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: dict[Address, dict[object, Take]] = {}  # by whom: one take for each
        self._late: dict[Address, tuple[Answer, float]] = {}

    def find(self, address: Address, owner: object, take: Take) -> None:
        """Call `take` with the addresses of a host, at once or later. It replaces an older one of the same `owner`."""
        try:
            answer: Answer = _resolve(address, socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            pass  # a name
        else:
            take(answer)
            return
        with self._lock:
            late = self._late.pop(address, None)
            if late is None or self._clock.monotonic() - late[1] > KEPT_S:
                late = None
                asked = self._asked.setdefault(address, {})
                first = not asked
                asked[owner] = take
        if late is not None:
            take(late[0])
        elif first:
            thread = threading.Thread(target=self._ask, args=(address,), name=f"amq-look-up {address[0]}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the host has no more threads, or the program ends
                self._give(address, OSError(str(error)))

    def _ask(self, address: Address) -> None:
        try:
            answer: Answer = _resolve(address)
        except (OSError, UnicodeError) as error:
            answer = error
        self._give(address, answer)

    def _give(self, address: Address, answer: Answer) -> None:
        """`answer` to all who asked; the next one asks anew."""
        with self._lock:
            takes = self._asked.pop(address)
        taken = [take(answer) for take in takes.values()]
        if not any(taken):
            with self._lock:
                self._late[address] = (answer, self._clock.monotonic())


def _resolve(address: Address, flags: int = 0) -> tuple[Any, ...]:
    return tuple(socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=flags))


NAMES = Names(SystemClock())
