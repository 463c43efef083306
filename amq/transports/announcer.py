"""Announcer: where clients find the brokers of this group, and which clients have still to learn that it changed.

Lives on the event loop. Invariants: a client hears only what it can use, so one of another host hears of no loopback
address, and one that speaks TLS of no address without it; after a change each client that asked is told the list as it
is then, at most `STEP` of them in one round of the event loop, so that ten thousand clients hold nobody up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from amq.broker.events import Events, GroupChanged
from amq.config.transport_url import parse_transport_url

STEP = 100


class Informed(Protocol):
    """A connection."""

    def tell_brokers(self) -> None: ...


class Announcer:
    """The list as it is now. It is empty until `change` is first called."""

    def __init__(self, loop: asyncio.AbstractEventLoop, events: Events) -> None:
        self._loop = loop
        self._events = events
        self._brokers: tuple[str, ...] = ()
        # (the client is on this host, it speaks TLS) → those of them that it can use
        self._usable: dict[tuple[bool, bool], tuple[str, ...]] = {}
        self._untold: deque[Informed] = deque()

    def brokers(self, loopback: bool, tls: bool = False) -> tuple[str, ...]:
        """The addresses for a client, the master's own first. `loopback`: the client is on this host; `tls`: it speaks
        TLS."""
        return self._usable.get((loopback, tls), ())

    def change(self, brokers: Sequence[str], connections: Iterable[Informed]) -> None:
        """The list is now `brokers`: tell `connections`, where it was another one."""
        brokers = tuple(brokers)
        if brokers == self._brokers:
            return
        self._brokers = brokers
        parsed = [(url, parse_transport_url(url)) for url in brokers]
        self._usable = {
            (loopback, tls): tuple(text for text, url in parsed if url.tls == tls and (loopback or not url.loopback))
            for loopback in (False, True)
            for tls in (False, True)
        }
        if GroupChanged in self._events.heard:
            self._events.tell(GroupChanged(brokers))
        is_due = bool(self._untold)
        self._untold = deque(connections)
        if self._untold and not is_due:
            self._loop.call_soon(self._tell_some)

    @property
    def is_telling(self) -> bool:
        """Has somebody still to hear of the last change?"""
        return bool(self._untold)

    def stop(self) -> None:
        """Nobody is told any more."""
        self._untold.clear()

    def _tell_some(self) -> None:
        for _ in range(min(STEP, len(self._untold))):
            self._untold.popleft().tell_brokers()
        if self._untold:
            self._loop.call_soon(self._tell_some)
