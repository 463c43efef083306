"""Memory: the bytes that messages take in the memory of one broker.

Invariant: nobody else counts them. A message counts from its admission on until it has left, is on disk alone, or was
refused; content that several queues share counts once, its overhead once for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from amq.core.message import Message

MESSAGE_OVERHEAD_BYTES = 600  # objects and index entries of one message in memory, measured on CPython 3.11
PAGING_SHARE = 0.7  # of the limit may be taken by what waits; the rest is for what is on its way


class Memory:
    """`taken_bytes` of the `limit_bytes` that `memoryLimit` allows. `lent_bytes` = those of large bodies that are on
    their way to consumers; `paging_bytes` = as much may be taken by messages that wait."""

    __slots__ = ("lent_bytes", "limit_bytes", "paging_bytes", "taken_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.taken_bytes = 0
        self.lent_bytes = 0
        self.set_limit(limit_bytes)

    def set_limit(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.paging_bytes = int(limit_bytes * PAGING_SHARE)

    @property
    def is_full(self) -> bool:
        return self.taken_bytes >= self.limit_bytes

    @property
    def free_to_page_bytes(self) -> int:
        """Bytes that waiting messages may take in addition; negative where they take too much already."""
        return self.paging_bytes - self.taken_bytes

    def take(self, size: int) -> None:
        """`size` bytes are taken."""
        self.taken_bytes += size

    def give_back(self, size: int) -> None:
        """`size` bytes are free again."""
        self.taken_bytes -= size

    def admit(self, message: Message) -> None:
        """`message`, of which nothing is shared yet, is in memory from now on."""
        self.taken_bytes += len(message.body) + message.header_bytes + MESSAGE_OVERHEAD_BYTES

    def free(self, message: Message) -> None:
        """`message` is in memory no more. Its body and headers are as long as others share them."""
        shared = message.shared
        if shared is None or not shared.others:
            self.taken_bytes -= len(message.body) + message.header_bytes + MESSAGE_OVERHEAD_BYTES
        else:
            shared.others -= 1
            self.taken_bytes -= MESSAGE_OVERHEAD_BYTES

    def free_all(self, messages: Sequence[Message]) -> None:
        """`free` for each of these, in a quarter of the time."""
        if len(messages) == 1:  # as a lone client acknowledges them
            self.free(messages[0])
            return
        alone = [message for message in messages if message.shared is None]
        self.taken_bytes -= cost_of_all(alone)
        if len(alone) < len(messages):
            for message in messages:
                if message.shared is not None:
                    self.free(message)

    def lend(self, size: int) -> None:
        """`size` bytes, taken already, are on their way to a consumer."""
        self.lent_bytes += size

    def take_back(self, size: int) -> None:
        """Lent memory is free again."""
        self.lent_bytes -= size
        self.taken_bytes -= size


def cost(message: Message) -> int:
    """Bytes that `message` takes, of which nothing is shared."""
    return len(message.body) + message.header_bytes + MESSAGE_OVERHEAD_BYTES


def cost_of_all(messages: Sequence[Message]) -> int:
    """The sum of the `cost` of each."""
    sizes = sum([len(message.body) + message.header_bytes for message in messages])
    return sizes + len(messages) * MESSAGE_OVERHEAD_BYTES


def cost_of_run(bodies: Sequence[bytes], header_bytes: int) -> int:
    """The `cost` of messages with these bodies, whose headers take `header_bytes` together."""
    return sum(map(len, bodies)) + len(bodies) * MESSAGE_OVERHEAD_BYTES + header_bytes
