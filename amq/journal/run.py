"""Run: messages that follow each other and differ in their bodies alone, in one piece on their way to the journal.

Invariant: in the journal each is a record of its own, the same that it would have had alone; so readers know nothing of
runs. Spec: docs/journal-format.md, the record of a message.
"""

from __future__ import annotations

from array import array

from amq.message import Message, alike


class Run:
    """`like` is what the messages are but for seq and body. They have no properties and no ids.

    bodies        at least one
    seq           of the first, 0 = not given yet; those of the others follow
    sizes         of their records, bytes, once they are encoded
    offset, size  where the first record stands in its segment, and bytes of all
    """

    kind = 2  # MESSAGE, as each of its records is
    __slots__ = ("bodies", "like", "offset", "seq", "size", "sizes")

    def __init__(self, like: Message, bodies: list[bytes]) -> None:
        self.like = like
        self.bodies = bodies
        self.seq = self.offset = self.size = 0
        self.sizes = array("I")

    @property
    def destination(self) -> str:
        return self.like.destination

    @property
    def queue_name(self) -> str:
        """Full name of the queue that holds them, or will."""
        return self.like.destination

    def send_to(self, queue_name: str) -> None:
        """They go to the queue of that full name instead."""
        self.like.send_to(queue_name)

    @property
    def persistent(self) -> bool:
        return self.like.persistent

    @property
    def seqs(self) -> range:
        return range(self.seq, self.seq + len(self.bodies))

    def messages(self) -> list[Message]:
        """One by one, with what is known of each."""
        found = alike(self.like, self.bodies)
        for message, seq in zip(found, self.seqs if self.seq else (), strict=False):
            message.seq = seq
        for message, size in zip(found, self.sizes, strict=False):
            message.size = size
        return found

    def stored(self, begin: int = 0, end: int | None = None) -> list[Message]:
        """Those messages, with the places where they stand."""
        end = len(self.bodies) if end is None else end
        found = alike(self.like, self.bodies[begin:end])
        offset = self.offset + sum(self.sizes[:begin])
        for message, seq, size in zip(found, self.seqs[begin:end], self.sizes[begin:end], strict=True):
            message.seq, message.offset, message.size = seq, offset, size
            offset += size
        return found

    def measure(self, head_bytes: int) -> int:
        """Say how long their records are, which have `head_bytes` before the body. Returns the sum."""
        self.sizes = array("I", [head_bytes + len(body) for body in self.bodies])
        return sum(self.sizes)

    def place(self, offset: int, size: int) -> None:
        """The records are `size` bytes at `offset`."""
        self.offset, self.size = offset, size
