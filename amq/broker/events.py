"""Events: what happens in the broker, for all that want to know: log, advisories, metrics, console.

Each kind of event is a class whose fields are plain values, which another process can be given. The broker asks first
whether anybody listens (`if Expired in events.heard`), so an event of which nobody wants to know costs one look into a
dictionary, and is not made. No event is told for each message that comes, is delivered or leaves: its queue counts
those (`Queue.enqueued`, `Queue.acknowledged`), and is read as often as somebody wants the figures.

Invariant: a listener cannot harm the broker. Its error is logged, and after `FAILURES_MAX` of them it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from amq.core.destination import Source

FAILURES_MAX = 10  # of one listener
LISTENERS_MAX = 100  # of one kind of event: each is a part of the broker or of the console, not a client
_log = structlog.get_logger("amq.broker")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened. Names of destinations are full ones."""


@dataclass(frozen=True, slots=True)
class RoleChanged(Event):
    """This broker is now `role`: starting, slave, master or stopped."""

    role: str


@dataclass(frozen=True, slots=True)
class GroupChanged(Event):
    """Clients find the brokers of this group at `brokers` from now on: the master's own addresses first. () = they are
    not told any more."""

    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JournalRead(Event):
    """A takeover takes long: it has read so much of the journal, and needs perhaps `left_s` more."""

    read_bytes: int
    of_bytes: int
    messages: int
    left_s: float


@dataclass(frozen=True, slots=True)
class Connected(Event):
    """A client has logged in. `connection` is its name as long as it lasts, and no other's."""

    connection: str
    user: str
    client_id: str


@dataclass(frozen=True, slots=True)
class Disconnected(Event):
    """A connection that was `Connected` has ended."""

    connection: str


@dataclass(frozen=True, slots=True)
class Subscribed(Event):
    """A consumer of `sources` has begun; `subscription` is the connection's name for it. Browsers do not count."""

    connection: str
    subscription: str
    sources: tuple[Source, ...]
    selector: str = ""


@dataclass(frozen=True, slots=True)
class ProducerOpened(Event):
    """A client says that it begins to send to `destination`; `producer` is its name for that. Others send
    without a word."""

    connection: str
    producer: str
    destination: str


@dataclass(frozen=True, slots=True)
class ProducerClosed(Event):
    """It has ended, or its connection has."""

    connection: str
    producer: str
    destination: str


@dataclass(frozen=True, slots=True)
class Unsubscribed(Event):
    """A consumer has ended, or its connection has."""

    connection: str
    subscription: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class TemporaryMade(Event):
    """The connection has a temporary destination of that name from now on."""

    destination: str
    connection: str


@dataclass(frozen=True, slots=True)
class TemporaryGone(Event):
    """The connection has that temporary destination no more."""

    destination: str
    connection: str


@dataclass(frozen=True, slots=True)
class QueueMade(Event):
    """A queue is used for the first time, or again after it was forgotten."""

    queue: str


@dataclass(frozen=True, slots=True)
class QueueForgotten(Event):
    """A queue was idle. Its figures at the end: this many messages came, and left in one way or another."""

    queue: str
    enqueued: int
    dequeued: int


@dataclass(frozen=True, slots=True)
class TopicMade(Event):
    """Somebody uses a topic: for the first time, or again after it was forgotten."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicForgotten(Event):
    """A topic was idle, or a client has removed it."""

    topic: str


@dataclass(frozen=True, slots=True)
class QueueLimitReached(Event):
    """`policy` decides what becomes of more messages."""

    queue: str
    limit_bytes: int
    policy: str


@dataclass(frozen=True, slots=True)
class QueueLimitLeft(Event):
    """There is room again, and some more."""

    queue: str
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class StoreFull(Event):
    """The disk of `store` has less than `floor_bytes` free, or says that it is full: messages are rejected."""

    store: str
    floor_bytes: int


@dataclass(frozen=True, slots=True)
class StoreHasRoom(Event):
    """The disk of `store` was full, and has room again."""

    store: str


@dataclass(frozen=True, slots=True)
class StoreLimitReached(Event):
    """The journal has come to `storeLimit`: producers wait or are rejected."""

    limit_bytes: int


@dataclass(frozen=True, slots=True)
class StoreLimitLeft(Event):
    """The journal is below `storeLimit` again."""

    limit_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryLimitReached(Event):
    """A producer has met `memoryLimit`: producers wait or are rejected."""

    limit_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryLimitLeft(Event):
    """There is memory again, and some more."""

    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Expired(Event):
    """`count` messages of `queue` are past their time and leave it."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class DeadLettered(Event):
    """The message `seq` goes to the dead-letter (or expiry) queue `moved_to`."""

    destination: str
    seq: int
    moved_to: str
    reason: str


@dataclass(frozen=True, slots=True)
class SlowConsumer(Event):
    """A topic's consumer keeps no pace and misses messages from now on, or loses its connection: `policy`."""

    connection: int
    subscription: str
    destinations: tuple[str, ...]
    policy: str
    limit: int


@dataclass(frozen=True, slots=True)
class Discarded(Event):
    """A topic's slow consumer has missed `count` more messages."""

    subscription: str
    destinations: tuple[str, ...]
    count: int


E = TypeVar("E", bound=Event)


class Events:
    """The port. `heard` = for each kind of event that anybody listens to, the listeners."""

    def __init__(self) -> None:
        self.heard: dict[type[Event], tuple[Callable[..., None], ...]] = {}
        self._failures: dict[Callable[..., None], int] = {}

    def listen(self, kind: type[E], listener: Callable[[E], None]) -> None:
        """Call `listener` with each event of that kind, on the event loop, until `ignore`. It must not wait."""
        listeners = self.heard.get(kind, ())
        assert len(listeners) < LISTENERS_MAX
        self.heard[kind] = (*listeners, listener)

    def ignore(self, kind: type[E], listener: Callable[[E], None]) -> None:
        """Do not call `listener` any more, if it was called."""
        listeners = tuple(each for each in self.heard.get(kind, ()) if each != listener)
        self._failures.pop(listener, None)
        if listeners:
            self.heard[kind] = listeners
        else:
            self.heard.pop(kind, None)

    def tell(self, event: Event) -> None:
        """Call those that listen. No error of theirs comes back."""
        kind = type(event)
        for listener in self.heard.get(kind, ()):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 (whatever it is, it is the listener's and not the broker's)
                failures = self._failures[listener] = self._failures.get(listener, 0) + 1
                _log.error("a listener failed", kind=kind.__name__, failures=failures, exc_info=error)
                if failures >= FAILURES_MAX:
                    self.ignore(kind, listener)
