"""Moves the messages of one queue of the old broker to the queue of that name at the new one, each exactly once.

A message keeps its id. The new broker takes that for its duplicate id, because our connection says that it tolerates
faults, and confirms a message that it has already without storing it again. Invariant: a message is acknowledged at the
old broker only when the new one has confirmed it. So whatever dies, a message is at the old broker, or at both; and one
that is at both is confirmed, acknowledged and not stored again the next time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from amq.client.errors import CallTimeoutError
from amq.core.errors import AmqError, CommandError
from amq.protocols.openwire import table
from amq.protocols.openwire.messages import SCHEDULED, id_text
from amq.protocols.openwire.primitives import decode_map, encode_map
from amq.protocols.openwire.table import Structure, structure
from amq_migrate.openwire.peer import OtherBroker, pump
from amq_migrate.openwire.queues import INDIVIDUAL, Looking, acknowledge, consuming, queue_of
from amq_migrate.openwire.wire import SESSION

REFUSED_MAX: Final = 100  # of one queue: then the rest of it stays, too
QUIET_S: Final = 0.01  # nothing has come for so long: is that all?
PUMP_S: Final = 0.2  # bytes move when they come; so often we look at the clock
MESSAGE_BYTES: Final = 1024  # that one counts for, beside its content and its properties
CONSUMER, FIRST_LOOK = 1, 1000


class MovingLimits(NamedTuple):
    """messages, bytes  that have left the old broker and are not confirmed by the new one
    idle_s     a queue that is not empty, and of which nothing comes for so long, is held by others
    confirm_s  the new broker has confirmed nothing for so long: it does not take the messages
    """

    messages: int = 1000
    bytes: int = 64 << 20
    idle_s: float = 5.0
    confirm_s: float = 60.0


@dataclass
class Counts:
    """The fate of the messages of one queue.

    moved      messages that the new broker has, and the old one has been told so
    bytes      of their bodies
    hardened   of them: were not persistent, and are now
    released   of them: asked for a delay that was over, or that the old broker did not grant
    remaining  that others hold at the old broker, or that came after the refusals
    refused    by id: why the new broker does not take it
    """

    moved: int = 0
    bytes: int = 0
    hardened: int = 0
    released: int = 0
    remaining: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return not (self.remaining or self.refused)


class _Held(NamedTuple):
    """A message on its way: its dispatch, and what it counts for."""

    found: Structure
    size: int
    content_bytes: int
    hardened: bool
    released: bool


class Moving:
    """Moves `queue`. `counts` are those of all tries; `on_moved` is called when a message is moved."""

    def __init__(self, old: OtherBroker, new: OtherBroker, queue: str, counts: Counts, limits: MovingLimits) -> None:
        self.confirmed_at = old.clock.monotonic()
        self.on_moved: Callable[[], None] = lambda: None
        self._old, self._new = old, new
        self._queue = queue
        self._counts = counts
        self._limits = limits
        self._held: dict[int, _Held] = {}  # by the number of the command that sends it
        self._held_bytes = 0
        self._arrived_at = self.confirmed_at
        self._arrived = 0
        self._gives_up = False
        self._producer = structure(table.PRODUCER_ID, connection=new.wire.connection, session=SESSION, value=1)

    def run(self) -> None:
        """Until the queue is empty, or the rest is not for us. Raises AmqError."""
        old, new = self._old, self._new
        new.request(structure(table.PRODUCER_INFO, id=self._producer, destination=queue_of(self._queue)))
        old.wire.on_dispatch = self._dispatched
        looking = Looking(old, FIRST_LOOK)
        with consuming(old, CONSUMER, queue_of(self._queue), self._limits.messages):
            while True:
                self._move()
                if self._gives_up:
                    break
                self._counts.remaining = looking.count(self._queue, len(self._counts.refused) + 1)
                if self._counts.remaining <= len(self._counts.refused) and not self._held:
                    break
                if not self._held and old.clock.monotonic() - self._arrived_at > self._limits.idle_s:
                    break
                pump((old, new), PUMP_S)
        gave_up = self._gives_up
        self.settle(self._limits.confirm_s)  # what came with the last words
        if gave_up or self._counts.remaining > len(self._counts.refused):
            self._counts.remaining = looking.count(self._queue, 1 << 30)
        self._counts.remaining = max(0, self._counts.remaining - len(self._counts.refused))
        new.wire.send(structure(table.REMOVE_INFO, id=self._producer))

    def _move(self) -> None:
        """Move messages until none is on its way and none comes."""
        quiet = False
        while not quiet or self._held:
            self._old.listens = self._held_bytes < self._limits.bytes
            arrived, confirmed_at = self._arrived, self.confirmed_at
            came = pump((self._old, self._new), PUMP_S if self._held else QUIET_S)
            quiet = not came and arrived == self._arrived
            if self._gives_up and not self._held:
                return
            self._check_confirms(confirmed_at)

    def _check_confirms(self, since: float) -> None:
        if not self._held:
            self.confirmed_at = self._old.clock.monotonic()
        elif self._old.clock.monotonic() - since > self._limits.confirm_s:
            raise CallTimeoutError(
                f"{self._new.wire.whose} has confirmed nothing for {self._limits.confirm_s:g} s: it makes producers "
                f"wait, because the queue {self._queue}, its memory or its store is full; see amq status",
            )

    def settle(self, timeout_s: float) -> None:
        """Wait for what is on its way, and take no more. Raises AmqError."""
        self._gives_up = True
        self._old.listens = True
        end = self._old.clock.monotonic() + timeout_s
        while self._held and self._old.clock.monotonic() < end:
            pump((self._old, self._new), PUMP_S)
        pump((self._old,), 0)

    def _dispatched(self, found: Structure) -> None:
        message = found.get("message")
        if message is None:
            return
        self._arrived += 1
        self._arrived_at = self._old.clock.monotonic()
        if self._gives_up:
            return  # it goes back when the consumer ends
        name = id_text(message.get("id"))
        if name in self._counts.refused:
            return
        try:
            self._forward(found, message)
        except (ValueError, CommandError) as error:
            self._refuse(name, str(error))

    def _forward(self, found: Structure, message: Structure) -> None:
        """Raises ValueError, CommandError."""
        if message.type == table.BLOB_MESSAGE:
            raise CommandError("blob messages, whose body is at another server, are not moved", code="NOT_SUPPORTED")
        fields = message.fields
        content, properties = fields.get("content") or b"", fields.get("properties") or b""
        released = SCHEDULED in properties
        sent: dict[str, Any] = {
            **fields,
            "producer": self._producer,
            "destination": queue_of(self._queue),
            "transaction": None,
            "original_transaction": None,
            "persistent": True,
            "target_consumer": None,
            "path": None,
            "cluster": None,
            "redelivery_counter": 0,
            "properties": _released(properties) if released else fields.get("properties"),
        }
        size = len(content) + len(properties) + MESSAGE_BYTES
        held = _Held(found, size, len(content), not fields.get("persistent"), released)
        number = self._new.wire.send(Structure(message.type, sent), lambda answer: self._answered(number, answer))
        self._held[number] = held
        self._held_bytes += size

    def _answered(self, number: int, answer: Structure | AmqError) -> None:
        held = self._held.pop(number)
        self._held_bytes -= held.size
        self.confirmed_at = self._new.clock.monotonic()
        if isinstance(answer, AmqError):
            self._refuse(id_text(held.found.fields["message"].get("id")), str(answer))
            return
        acknowledge(self._old, held.found, held.found.fields["consumer"], INDIVIDUAL)
        counts = self._counts
        counts.moved += 1
        counts.bytes += held.content_bytes
        counts.hardened += held.hardened
        counts.released += held.released
        self.on_moved()

    def _refuse(self, name: str, why: str) -> None:
        self._counts.refused[name] = why
        self._gives_up = self._gives_up or len(self._counts.refused) >= REFUSED_MAX


def _released(properties: bytes) -> bytes:
    """`properties` without the words that would make the new broker deliver it later: the old one delivers it now."""
    scheduled = SCHEDULED.decode()
    return encode_map({name: value for name, value in decode_map(properties).items() if not name.startswith(scheduled)})
