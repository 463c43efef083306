"""Copies: messages that a gateway delivers again on the same connection, because their store has got another master.

The consumer may have the first delivery in its buffer, in the program's hands, or acknowledged without an answer yet.
Invariants: the program never gets a message again whose acknowledgement was confirmed to it; each message that was not
acknowledged is there once. A settlement of one delivery counts for the other one: both have the same id.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import Any, Protocol

from amq.client.requests import Request
from amq.protocols.stomp.frame import Frame


class Numbered(Protocol):
    """A delivery, as `amq.client.core.Delivery` is one."""

    frame: Frame
    number: int
    settled: bool

    @property
    def is_settled(self) -> bool: ...
    @property
    def buffer(self) -> deque[Any]:
        """Of its consumer: what was not handed over, in the order of the numbers."""
        ...


class DeliveryCopies:
    """The deliveries of one consumer by the ids of their messages, as long as these may come again."""

    __slots__ = ("_asked", "_copied", "_known", "_taken")

    def __init__(self) -> None:
        self._known: dict[str, Numbered] = {}  # the newest, in the order of their numbers
        self._asked: deque[tuple[set[str], Request]] = deque()  # settled, with the request whose answer is awaited
        self._taken: set[str] = set()  # in the transaction that is open; its end decides about all copies
        self._copied: list[tuple[Numbered, str]] = []  # in the program's hands when their message came again

    def clear(self) -> None:
        """The broker delivers from now on what it has not delivered before."""
        self._known.clear()
        self._asked.clear()
        self._taken.clear()
        self._copied.clear()

    def needless(self, delivery: Numbered) -> bool:
        """`delivery` comes next. True = its message is just being acknowledged, or part of a transaction."""
        known, asked = self._known, self._asked
        while asked and asked[0][1].done:
            self._forget(asked.popleft()[0])
        id = delivery.frame.headers.get("message-id", "")
        before = known.get(id)
        if before is not None:
            if id in self._taken:
                return True
            if any(id in ids and request.frame.startswith((b"ACK", b"COMMIT")) for ids, request in asked):
                return True
            if _waits(before):
                delivery.buffer.remove(before)
            elif not before.is_settled:
                self._copied.append((before, id))
            del known[id]
        known[id] = delivery
        return False

    def settle(self, delivery: Numbered, together: bool, request: Request | None) -> None:
        """`delivery` was settled, with all before it where they are settled `together`."""
        number = delivery.number
        ids = {delivery.frame.headers.get("message-id", "")}
        if together:
            ids.update(id for id, _ in takewhile(lambda known: known[1].number <= number, self._known.items()))
        copied, self._copied = self._copied, []
        for before, id in copied:
            if before is not delivery and not (together and before.number <= number):
                self._copied.append((before, id))
                continue
            ids.add(id)
            newest = self._known.get(id)
            if newest is not None and _waits(newest):
                newest.buffer.remove(newest)
                newest.settled = True
        if request is None:
            self._forget(ids)
        else:
            self._asked.append((ids, request))

    def taken(self, delivery: Numbered) -> None:
        """`delivery` is part of the open transaction."""
        self._taken.add(delivery.frame.headers.get("message-id", ""))

    def commit(self, request: Request) -> None:
        """The transaction ends so. Where it is rolled back, all comes again on another connection or subscription."""
        taken, self._taken = self._taken, set()
        for id in taken & self._known.keys():
            self._known[id].settled = True
        self._asked.append((taken, request))

    def _forget(self, ids: set[str]) -> None:
        for id in ids:
            if (newest := self._known.get(id)) is not None and newest.is_settled:
                del self._known[id]


def _waits(delivery: Numbered) -> bool:
    """Was it not yet handed over?"""
    buffer = delivery.buffer
    return bool(buffer) and delivery.number >= buffer[0].number
