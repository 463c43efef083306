"""Moves queues from one broker to another, one after the other, and begins again where a connection breaks.

Invariant: whatever breaks, both connections are made anew, and what was on its way comes again from the old broker:
the same words as after a crash of this process.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Final

from amq.client.errors import CallTimeoutError, ConnectError, ConnectionLostError
from amq.client.tls import Contexts
from amq.client.uri import BrokerUrl
from amq.core.errors import AmqError, CommandError
from amq.doors.clock import Clock
from amq_migrate.openwire.moving import Counts, Moving, MovingLimits
from amq_migrate.openwire.peer import OtherBroker, connect
from amq_migrate.openwire.queues import OURS, Looking

PAUSE_S: Final = 0.5  # between two tries to connect
INTERRUPTED_S: Final = 5.0  # after Ctrl-C, to acknowledge what the new broker confirms


class Side:
    """One of the two brokers: where it is, and how to log in. `whose` = as errors name it."""

    def __init__(self, whose: str, url: BrokerUrl, user: str, password: str) -> None:
        """Raises UriError where the files that `url` names cannot be used."""
        self.whose = whose
        self.url = url
        self._user, self._password = user, password
        self._contexts = Contexts()
        self._contexts.check(url)

    def connect(self, clock: Clock) -> OtherBroker:
        """Raises AmqError."""
        connection = f"ID:amq-migrate-{secrets.token_hex(8)}:1"
        return connect(self.url, self._user, self._password, connection, clock, self.whose, self._contexts)


class Migration:
    """`counts` = by queue. `on_event` learns what a person may want to know, `on_progress` how many are moved."""

    def __init__(
        self,
        old: Side,
        new: Side,
        limits: MovingLimits,
        patience_s: float,
        clock: Clock,
        on_event: Callable[[str], None],
        on_progress: Callable[[int], None],
    ) -> None:
        self.counts: dict[str, Counts] = {}
        self.reconnects = 0
        self.compares = True  # does the new broker compare the ids of messages?
        self._sides = (old, new)
        self._limits = limits
        self._patience_s = patience_s
        self._clock = clock
        self._on_event = on_event
        self._on_progress = on_progress
        self._peers: list[OtherBroker] = []
        self._alive_at = clock.monotonic()
        self._stop = threading.Event()  # only ever waited for: a pause that Ctrl-C ends

    def run(self, names: Sequence[str]) -> None:
        """Move the queues that `names` name, none = all. Raises AmqError."""
        try:
            self._open(is_first=True)
            for queue in self._named(names):
                self._move(queue)
            for peer in self._peers:
                peer.leave()
        finally:
            self._close()

    def look(self, names: Sequence[str]) -> dict[str, int]:
        """How many messages are on the queues that `names` name, none = all, of the old broker. Raises AmqError."""
        try:
            self._peers.append(self._sides[0].connect(self._clock))
            looking = Looking(self._peers[0])
            found = {queue: looking.count(queue, 1 << 30) for queue in self._named(names)}
            self._peers[0].leave()
        finally:
            self._close()
        return found

    def _named(self, names: Sequence[str]) -> list[str]:
        there = Looking(self._peers[0], 100).queues()
        if not there and not names:
            raise CommandError(
                f"{self._peers[0].wire.whose} names no queues: it has none, or does not announce them "
                '(advisorySupport="false"): give their names',
                code="QUEUE_UNKNOWN",
            )
        return there if not names else resolve(names, there, self._peers[0].wire.server.startswith(OURS))

    def _move(self, queue: str) -> None:
        counts = self.counts[queue] = Counts()
        others = Looking(self._peers[0], 200).consumers(queue)
        if others:
            self._on_event(f"queue {queue} has {others} consumers, which take messages as well: stop them")
        while True:
            moving: Moving | None = None
            try:
                if not self._peers:
                    self._open(is_first=False)
                old, new = self._peers
                moving = Moving(old, new, queue, counts, self._limits)
                moving.on_moved = self._moved
                moving.run()
                return
            except (ConnectionLostError, ConnectError) as error:
                self._lost(error)
            except KeyboardInterrupt:
                self._interrupted(moving)
                raise

    def _moved(self) -> None:
        self._alive_at = self._clock.monotonic()
        self._on_progress(sum(counts.moved for counts in self.counts.values()))

    def _interrupted(self, moving: Moving | None) -> None:
        """So that little is to be compared the next time. An error here is no worse than a crash."""
        if moving is None:
            return
        try:
            moving.settle(INTERRUPTED_S)
            for peer in self._peers:
                peer.leave()
        except AmqError as error:
            self._on_event(f"some moved messages are not acknowledged at the old broker yet: {error}")

    def _lost(self, error: AmqError) -> None:
        """Raises `error` where it has been like this for too long."""
        self._close()
        if self._clock.monotonic() - self._alive_at > self._patience_s:
            raise error
        self._on_event(f"{error}; connecting again")
        self._stop.wait(PAUSE_S)

    def _open(self, is_first: bool) -> None:
        """Connect to both. Raises AmqError."""
        end = self._clock.monotonic() + self._patience_s
        for side in self._sides:
            while True:
                try:
                    self._peers.append(side.connect(self._clock))
                    break
                except (ConnectError, ConnectionLostError, CallTimeoutError):
                    if (is_first and not side.url.failover) or self._clock.monotonic() > end:
                        raise
                    self._stop.wait(PAUSE_S)
        if not is_first:
            self.reconnects += 1
        self.compares = self._peers[1].wire.server.startswith(OURS)
        if is_first and not self.compares:
            self._on_event(
                "the new broker is none of amq and does not compare the ids of messages: what is on its way when a "
                "connection breaks, or this command is killed, can arrive twice"
            )

    def _close(self) -> None:
        for peer in self._peers:
            peer.close()
        self._peers.clear()


def resolve(names: Sequence[str], there: Sequence[str], tells: bool) -> list[str]:
    """The queues that `names` mean: names, or patterns as `orders.>` and `orders.*`. `tells`: the broker certainly
    names its queues; another that names none may keep them to itself, so names are taken as they are. Raises
    CommandError."""
    found: dict[str, None] = {}
    for name in names:
        name = name.removeprefix("/queue/").removeprefix("queue://")
        matching = [queue for queue in there if _matches(name, queue)]
        if not matching and (there or tells or _is_pattern(name)):
            shown = ", ".join(there[:10]) + (", …" if len(there) > 10 else "")
            raise CommandError(f"the old broker has no queue {name}; it has {shown or 'none'}", code="QUEUE_UNKNOWN")
        found |= dict.fromkeys(matching or [name])
    return list(found)


def _is_pattern(name: str) -> bool:
    return "*" in name.split(".") or name.endswith(">")


def _matches(name: str, queue: str) -> bool:
    wanted, parts = name.split("."), queue.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        parts = parts[: len(wanted)]
    return len(wanted) == len(parts) and all(word in ("*", part) for word, part in zip(wanted, parts, strict=True))
