"""Run: messages that follow each other and differ in their bodies alone, in one piece on their way to the journal.

Invariant: in the journal each is a record of its own, the very one that it would have had alone; so nobody who reads
knows of runs. Spec: docs/journal-format.md, the record of a message.
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

    def place(self, offset: int, size: int) -> None:
        """The records are `size` bytes at `offset`."""
        self.offset, self.size = offset, size
