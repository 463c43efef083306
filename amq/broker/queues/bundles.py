"""Bundle: plain messages of a run that stay together from the journal to their consumer and out again.

To make an object of each costs a third of what a message costs. So a queue keeps a run as columns as long as nobody
asks for one of its messages: as long as it waits to be handed out, a consumer holds it, or its acknowledgement is on
its way to the journal. Invariant: a bundle has the bodies of its own messages and no others, so it takes the memory
that they count for.
"""

from __future__ import annotations

from array import array
from itertools import accumulate

from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.core.message import Message, stood
from amq.journal.live import Segment


class Bundle:
    """`like` = what the messages are but for seq, time and body; `seq` = that of the first, those of the others follow.

    sizes   of their records, which follow each other from `offset` of `segment` on
    size    of all these, bytes
    beside  of each record beside its body, bytes
    """

    __slots__ = ("beside", "bodies", "count", "like", "offset", "segment", "seq", "size", "sizes", "times")

    def __init__(
        self,
        like: Message,
        segment: Segment,
        place: tuple[int, int, int],
        bodies: list[bytes],
        times: array[int],
        sizes: array[int],
    ) -> None:
        """`place` = `seq`, `offset`, `size`."""
        self.like = like
        self.segment = segment
        self.seq, self.offset, self.size = place
        self.bodies = bodies
        self.count = len(bodies)
        self.times = times
        self.sizes = sizes
        self.beside = sizes[0] - len(bodies[0])

    @classmethod
    def of_messages(cls, messages: list[Message], segment: Segment) -> Bundle | None:
        """Messages for one queue, without ids, that stand side by side in `segment`; None = they are not alike."""
        first, count = messages[0], len(messages)
        if messages[-1].seq - first.seq != count - 1:
            return None
        for message in messages:
            if message.envelope is not None or message.properties or message.shared is not None:
                return None
            if not is_like(message, first):
                return None
        times = array("Q", [message.timestamp_ms for message in messages])
        sizes = array("I", [message.size for message in messages])
        bodies = [message.body for message in messages]
        place = first.seq, first.offset, sum(sizes)
        return cls(first.with_body(b""), segment, place, bodies, times, sizes)

    @property
    def seqs(self) -> range:
        return range(self.seq, self.seq + self.count)

    @property
    def cost(self) -> int:
        """The sum of the `cost` of each message."""
        return self.size + self.count * (self.like.header_bytes + MESSAGE_OVERHEAD_BYTES - self.beside)

    def extend(self, other: Bundle) -> bool:
        """`other` is part of it from now on. False: it does not follow."""
        place = self.segment, self.seq + self.count, self.offset + self.size
        if (other.segment, other.seq, other.offset) != place or not is_like(self.like, other.like):
            return False
        self.bodies += other.bodies
        self.count += other.count
        self.times += other.times
        self.sizes += other.sizes
        self.size += other.size
        return True

    def cut(self, count: int) -> tuple[Bundle, Bundle]:
        """The first `count` messages, and the others."""
        like, segment, bodies, times, sizes = self.like, self.segment, self.bodies, self.times, self.sizes
        size = sum(sizes[:count])
        place, rest = (self.seq, self.offset, size), (self.seq + count, self.offset + size, self.size - size)
        return (
            Bundle(like, segment, place, bodies[:count], times[:count], sizes[:count]),
            Bundle(like, segment, rest, bodies[count:], times[count:], sizes[count:]),
        )

    def messages(self) -> list[Message]:
        """As it would be if it had never been together."""
        places = accumulate(self.sizes, initial=self.offset)
        facts = self.seqs, self.times, places, self.sizes
        return stood(self.like, self.bodies, facts, None, self.segment)


def is_like(message: Message, other: Message) -> bool:
    """Do these, which have no properties, differ in seq, time and body alone?"""
    return (
        message.content_type == other.content_type
        and message.priority == other.priority
        and message.content == other.content
        and message.destination == other.destination
    )
