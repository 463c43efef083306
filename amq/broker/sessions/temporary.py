"""Temporary queues and topics: for replies. They live as long as the connection whose name they bear, and in memory.

Invariant: only that connection consumes them, anybody sends to them; what is sent to one whose connection is gone is
gone too. Their names, `temp-queue://3-17.replies`, begin with what stands for the connection (the master's epoch and
the connection's number), which no other connection ever has, also not after a takeover; or the client chose the name,
and says when the destination begins and ends (`make`, `remove`).
"""

from __future__ import annotations

from collections.abc import Iterator

from amq.broker.core import Core
from amq.broker.events import TemporaryGone, TemporaryMade
from amq.broker.names import is_temporary
from amq.broker.sessions.links import OWN_NAME, Links
from amq.broker.topics.buffer import TopicBuffer
from amq.broker.topics.topics import Topics
from amq.core.destination import TEMPORARY_QUEUE_SCHEME, plain_name, wire_name
from amq.core.errors import AccessError, CommandError
from amq.core.message import Message

QUEUES_MAX = 1000  # of one connection, about 3 MB: anybody who sends to a new name makes one
OWNER_S = 30.0  # replies wait here for a connection of a store that has left the cluster


class TemporaryQueue(TopicBuffer):
    """Its consumers share what is sent to it, as with any queue. None of it is missed: where memory is full its senders
    wait."""

    __slots__ = ()

    def dead_letter_name(self, message: Message, given_up: bool = False) -> str:  # noqa: ARG002
        """The shared dead-letter queue: there is not one for each temporary queue that ever existed."""
        return "queue://" + self.options.shared_dead_letter_queue


class Temporaries:
    """The connections that there are, and their queues. A connection is known by the beginning of its names, `3-17.`"""

    def __init__(self, core: Core, topics: Topics, links: Links) -> None:
        self._core = core
        self._links = links
        self._topics = topics
        topics.provide = self.provide
        self.owned: dict[str, dict[str, TemporaryQueue | None]] = {}  # owner → its queues by name; None = a topic
        self._owners: dict[str, str] = {}  # of destinations whose names the clients chose
        self._early: dict[str, tuple[TemporaryQueue, float]] = {}  # their connections are not here yet; until when
        self._early_until_s = 0.0

    def names(self) -> Iterator[tuple[str, str]]:
        """Full names of all that are there, and their connections."""
        return ((name, owner.removesuffix(".")) for owner, owned in self.owned.items() for name in owned)

    def open(self, owner: str) -> None:
        """That connection is there."""
        self.owned[owner] = {}
        for name in [name for name in self._early if plain_name(name).startswith(owner)]:
            self.owned[owner][name] = self._early.pop(name)[0]
            self._tell(name, owner)

    def close(self, owner: str) -> None:
        """The connection `owner` has closed: remove its temporary destinations."""
        for name, queue in self.owned.pop(owner, {}).items():
            self._end(name, owner, queue)

    def _end(self, name: str, owner: str, queue: TemporaryQueue | None) -> None:
        self._owners.pop(name, None)
        if queue is not None:
            self._close_queue(queue)
        if TemporaryGone in self._core.events.heard:
            self._core.events.tell(TemporaryGone(name, owner.removesuffix(".")))

    def _close_queue(self, queue: TemporaryQueue) -> None:
        queue.is_closed = True
        self._topics.close(queue)
        self._core.dirty[queue] = None

    def make(self, name: str, owner: str, user: str = "") -> None:
        """The connection `owner` of `user` has a destination of that full name from now on. Its name must not begin
        with the connection id of another user, or with what stands for a connection. Raises AccessError,
        CommandError."""
        if self._owners.get(name) == owner:
            return
        if not is_temporary(name):
            raise CommandError(f"{wire_name(name)} is not a temporary destination", code="DESTINATION_INVALID")
        plain = plain_name(name)
        others = self._links.user_of(plain.rpartition(":")[0]) not in (None, user)
        if name in self._owners or others or OWN_NAME.fullmatch(plain.partition(".")[0]):
            raise AccessError(
                f"{wire_name(name)} is there already, and belongs to another connection", code="DESTINATION_REFUSED"
            )
        owned = self.owned.get(owner, {})
        if len(owned) >= QUEUES_MAX:
            raise self._too_many(name)
        self._owners[name] = owner
        if name in self._early:
            owned[name] = self._early.pop(name)[0]
        elif name.startswith(TEMPORARY_QUEUE_SCHEME):
            self._open(name, owned)
        else:
            owned[name] = None
        self._tell(name, owner)

    def check_there(self, name: str) -> None:
        """Raises CommandError where nobody has a destination of that name."""
        if name in self._owners or plain_name(name).partition(".")[0] + "." in self.owned:
            return
        if name in self._early or self._may_be_early(name):
            return
        raise CommandError(
            f"{name} is not there: its connection has ended, or has removed it", code="DESTINATION_UNKNOWN"
        )

    def remove(self, name: str, owner: str) -> None:
        """That destination is not wanted any more. Raises CommandError where it has consumers."""
        if self._owners.get(name) != owner:
            return
        queue = self.owned[owner][name]
        if queue.subscriptions if queue is not None else self._topics.consumers(name):
            raise CommandError(f"{wire_name(name)} has consumers: close them first", code="DESTINATION_IN_USE")
        del self.owned[owner][name]
        self._end(name, owner, queue)

    def _tell(self, name: str, owner: str) -> None:
        if TemporaryMade in self._core.events.heard:
            self._core.events.tell(TemporaryMade(name, owner.removesuffix(".")))

    @staticmethod
    def _too_many(name: str) -> CommandError:
        return CommandError(
            f"{wire_name(name)}: this connection has {QUEUES_MAX} temporary destinations already; use one for many "
            "requests, and tell the answers apart by their correlation ids",
            code="TEMPORARY_QUEUES_TOO_MANY",
        )

    def check_consumer(self, name: str, owner: str) -> None:
        """Raises AccessError where the connection `owner` may not consume that destination, CommandError where it has
        too many queues."""
        if not owner or not (plain_name(name).startswith(owner) or self._owners.get(name) == owner):
            raise AccessError(
                f"{wire_name(name)}: only the connection that made a temporary destination consumes it; "
                "subscribe to one of your own",
                code="DESTINATION_REFUSED",
            )
        owned = self.owned.get(owner, {})
        if len(owned) >= QUEUES_MAX and name not in owned and name.startswith(TEMPORARY_QUEUE_SCHEME):
            raise self._too_many(name)

    def provide(self, name: str) -> TemporaryQueue | None:
        """The queue of that name, made if its connection is there. None = that is gone, or has QUEUES_MAX already: a
        message to one more is dropped, so that no service suffers from a client that asks for it."""
        owner = self._owners.get(name) or plain_name(name).partition(".")[0] + "."
        owned = self.owned.get(owner)
        if owned is None:
            return self._early_queue(name)
        if not name.startswith(TEMPORARY_QUEUE_SCHEME):
            return None
        queue = owned.get(name)
        if queue is None and len(owned) < QUEUES_MAX:
            queue = self._open(name, owned)
            self._tell(name, owner)
        return queue

    # -- after a store has left the cluster ---------------------------------------------------------------------------

    def sweep(self) -> None:
        """Call every second or so."""
        now_s, homes = self._core.clock.monotonic(), self._core.homes
        if homes is not None and homes.is_another_leaving:
            self._early_until_s = now_s + OWNER_S
        for name in [name for name, (_, until_s) in self._early.items() if now_s >= until_s]:
            self._close_queue(self._early.pop(name)[0])

    def _may_be_early(self, name: str) -> bool:
        """May the connection of that destination be on its way here, from a store that leaves the cluster?"""
        homes = self._core.homes
        if homes is None or self._core.clock.monotonic() >= self._early_until_s or len(self._early) >= QUEUES_MAX:
            return False
        return name.startswith(TEMPORARY_QUEUE_SCHEME) and homes.gets_temporary(name)

    def _early_queue(self, name: str) -> TemporaryQueue | None:
        """The queue for replies that have come here before the connection that waits for them."""
        found = self._early.get(name)
        if found is None and self._may_be_early(name):
            until_s, owned = self._core.clock.monotonic() + OWNER_S, dict[str, TemporaryQueue | None]()
            found = self._early[name] = self._open(name, owned), until_s
        return None if found is None else found[0]

    def _open(self, name: str, owned: dict[str, TemporaryQueue | None]) -> TemporaryQueue:
        queue = owned[name] = TemporaryQueue(name, (name,), self._core.state.options_of(name))
        self._topics.open(queue)
        return queue
