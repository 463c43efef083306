"""Message: what a producer handed over, independent of the protocol it came by."""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof
from typing import Self

DEFAULT_PRIORITY = 4
# A larger body is never joined with anything: it is written, read and delivered where it lies, and is in memory only on
# its way. Measured: to write one in pieces costs 26 µs against 10 at 4 KiB, the same at 128 KiB, 545 against 613 at
# 1 MiB; a lower limit would cost more when waiting messages are read back, about 1 ms for each MiB.
LARGE_BODY_BYTES = 1 << 20


HEADER_OVERHEAD_BYTES = 60  # a dictionary's share, beside the two strings: what it is for three, less for more
SUBSCRIPTION_SCHEME = "subscription://"  # of the queues of durable subscriptions, which nobody can address
ORIGINAL_DESTINATION = "original-destination"  # property: where a message for another destination was sent


def wire_name(name: str) -> str:
    """The full name as it stands in headers: `/queue/orders`, of a composite one `/queue/a,/topic/b`, of a temporary
    one as others than its owner know it."""
    parts = [part.replace("://", "/", 1) for part in name.split(",")]
    return ",".join(["/remote-" + part if part.startswith("temp-") else "/" + part for part in parts])


class Shared:
    """Of a message that several queues may hold.

    origin   the connection that sent it
    others   how many queues more than one hold it
    encoded  what protocols wrote of it once for all, by their own key; None where nothing is, and from the end of the
             turn on in which it was handed out: what waits takes the memory of its body only
    """

    __slots__ = ("encoded", "origin", "others")

    def __init__(self, origin: object, others: int = 0, encodes: bool = True) -> None:
        self.origin = origin
        self.others = others
        self.encoded: dict[object, bytes] | None = {} if encodes else None


class Batch:
    """Messages for many subscriptions, in order. `encoded` = what protocols wrote of all, by their own key."""

    __slots__ = ("encoded", "messages")

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.encoded: dict[object, list[bytes]] = {}


class Message:
    """One message. Everything but `seq` is fixed when it is made; `seq` is given once, by the broker that stores it.

    destination     full name, `queue://orders` or `topic://prices`
    body            bytes as sent
    properties      application and protocol-neutral headers, str → str, in the order sent
    content_type    MIME type or ""
    priority        0 (lowest) to 9
    persistent      survives a takeover
    timestamp_ms    wall clock of the broker at arrival
    expires_ms      absolute wall-clock milliseconds, 0 = never
    duplicate_id    id given by the producer for duplicate detection, or ""
    text            True when the producer sent text rather than bytes (STOMP: no content-length)
    segment         where the journal keeps it; None = not in the journal
    offset, size    of its record in that segment, bytes
    header_bytes    that `properties` take in memory
    shared          what several holders of the message share; None = it has one
    seq             store-wide sequence number, unique and growing over the life of the store; 0 = not stored yet
    """

    __slots__ = (
        "body", "content_type", "destination", "duplicate_id", "expires_ms", "header_bytes", "offset", "persistent",
        "priority", "properties", "segment", "seq", "shared", "size", "text", "timestamp_ms",
    )  # fmt: skip

    def __init__(
        self,
        destination: str,
        body: bytes,
        properties: dict[str, str] | None = None,
        content_type: str = "",
        priority: int = DEFAULT_PRIORITY,
        persistent: bool = True,
        timestamp_ms: int = 0,
        expires_ms: int = 0,
        duplicate_id: str = "",
        text: bool = False,
        seq: int = 0,
    ) -> None:
        self.destination = destination
        self.body = body
        self.properties = properties
        self.header_bytes = _memory_of(properties) if properties else 0
        self.content_type = content_type
        self.priority = priority
        self.persistent = persistent
        self.timestamp_ms = timestamp_ms
        self.expires_ms = expires_ms
        self.duplicate_id = duplicate_id
        self.text = text
        self.seq = seq
        self.segment: object = None
        self.shared: Shared | None = None
        self.offset = 0
        self.size = 0

    @classmethod
    def made_of(cls, message: Message, destination: str, properties: dict[str, str] | None, seq: int = 0) -> Self:
        """`message` as it goes to `destination` with these properties. The body is shared."""
        return cls(
            destination, message.body, properties, message.content_type, message.priority, message.persistent,
            message.timestamp_ms, message.expires_ms, message.duplicate_id, message.text, seq,
        )  # fmt: skip

    @property
    def is_stripped(self) -> bool:
        """Its large body is on the disk, or in a consumer's socket, and no more here."""
        return not self.body and self.size > LARGE_BODY_BYTES

    @property
    def queue_name(self) -> str:
        """Full name of the queue that holds it, or will."""
        return self.destination

    def send_to(self, queue_name: str) -> None:
        """It goes to the queue of that full name instead."""
        self.destination = queue_name

    def __repr__(self) -> str:
        return f"<Message {self.seq} {self.destination} {len(self.body)} B>"


class Stub(Message):
    """A stored message that waited on disk alone and is about to leave its queue: only where it stands is here."""

    __slots__ = ()

    @property
    def is_stripped(self) -> bool:
        return True


class Copy(Message):
    """A message as one of several queues gets it; in the journal they have one record (`Multicast`).

    queue_name  of the queue, which may be another than `destination`
    original    the message as it was sent, as long as it is not on its way to the journal
    """

    __slots__ = ("original", "queue_name")

    queue_name: str
    original: Message | None

    def send_to(self, queue_name: str) -> None:
        self.destination = self.queue_name = queue_name

    @classmethod
    def of(cls, message: Message, queue_name: str, seq: int = 0) -> Copy:
        """The copy of `message` for the queue of that name."""
        return Copier(message).copy(queue_name, seq)


class Copier:
    """Makes the messages that several destinations get of `message`. Those to which it was not sent get a property that
    names its destination. They share these properties, which are as long as a composite name, and which count once."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._led: dict[str, str] | None = None
        self._led_bytes = message.header_bytes

    def led(self) -> tuple[dict[str, str], int]:
        """Properties of a message for another destination, and the memory that they take."""
        if self._led is None:
            original = {ORIGINAL_DESTINATION: wire_name(self._message.destination)}
            self._led = {**(self._message.properties or {}), **original}
            self._led_bytes = _memory_of(self._led)
        return self._led, self._led_bytes

    def copy(self, queue_name: str, seq: int = 0) -> Copy:
        """The copy for the queue of that name."""
        message = self._message
        copy = Copy.made_of(message, queue_name, None, seq)
        copy.properties, copy.header_bytes = message.properties, message.header_bytes  # shared, and counted once
        copy.queue_name = queue_name
        copy.original = None
        if queue_name.startswith(SUBSCRIPTION_SCHEME):
            copy.destination = message.destination
        elif queue_name != message.destination:
            copy.properties, copy.header_bytes = self.led()
        return copy

    def message(self, destination: str) -> Message:
        """The message for the destination of that name, where it is stored for that alone."""
        if destination == self._message.destination:
            return Message.made_of(self._message, destination, self._message.properties)
        message = Message.made_of(self._message, destination, None)
        message.properties, message.header_bytes = self.led()
        return message


def _memory_of(properties: dict[str, str]) -> int:
    """By contents alone, so that a replay counts the same."""
    places = HEADER_OVERHEAD_BYTES * len(properties)
    return places + sum(map(getsizeof, properties)) + sum(map(getsizeof, properties.values()))


def alike(like: Message, bodies: Iterable[bytes]) -> list[Message]:
    """Messages without properties and ids that differ from `like` in their bodies alone."""
    destination, content_type, priority, text = like.destination, like.content_type, like.priority, like.text
    persistent, timestamp_ms, expires_ms = like.persistent, like.timestamp_ms, like.expires_ms
    return [
        Message(destination, body, None, content_type, priority, persistent, timestamp_ms, expires_ms, "", text)
        for body in bodies
    ]
