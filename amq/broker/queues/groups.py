"""Groups: each group of messages (`JMSXGroupID`) has one consumer.

Groups fall into a fixed number of buckets by a hash of their name, and a bucket belongs to one consumer: so the memory
is bounded, and nothing that two consumers must not have at once is ever forgotten. Invariant: a bucket changes its
owner only when the owner holds none of its messages, unacknowledged or in an open transaction.

A queue that comes from another store brings the buckets of its consumers along, by what the consumers are known as
there and here. Nobody gets anything of these before their consumer is here, or is not awaited any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

from amq.broker.queues.backlog import NEVER
from amq.broker.queues.queue import GROUP_ID, Subscription
from amq.core.message import Message
from amq.core.values import text

GROUP_SEQ = "JMSXGroupSeq"
LAST_SEQ = "-1"  # as GROUP_SEQ: the last message of its group


class Groups:
    """The buckets of one queue."""

    def __init__(self, buckets: int, priorities: int) -> None:
        self._count = buckets
        self._priorities = priorities
        self._owners: dict[int, Subscription] = {}
        self._moving: dict[int, list[int]] = {}  # → seqs that the owner has. They shall be free when it has none
        # From which seq on, by priority, messages wait that the owner of the bucket is not going to see again.
        self._skipped: dict[int, list[int]] = {}
        self._awaited: dict[int, str] = {}  # → what the consumer is known as that is about to come for it

    def __bool__(self) -> bool:
        """Does any group belong to anybody?"""
        return bool(self._owners or self._awaited)

    def bucket(self, message: Message) -> int:
        """The bucket of the group of `message`; -1 = it is in no group."""
        properties = message.properties
        if not properties or GROUP_ID not in properties:
            return -1
        return crc32(text(properties[GROUP_ID]).encode("utf-8", "replace")) % self._count

    def is_owned(self, bucket: int) -> bool:
        return bucket in self._owners or bucket in self._awaited

    def owner(self, bucket: int) -> Subscription | None:
        """The subscription that gets the messages of the bucket, which has an owner. None = they wait until the bucket
        is free.
        """
        return self._owners.get(bucket) if bucket not in self._moving else None

    def skip(self, bucket: int, priority: int, seq: int) -> None:
        """A message of the bucket has to wait until the bucket is free."""
        skipped = self._skipped.setdefault(bucket, [NEVER] * self._priorities)
        skipped[priority] = min(skipped[priority], seq)

    def own(self, bucket: int, subscription: Subscription) -> None:
        """From now on the bucket is that of `subscription`."""
        self._owners[bucket] = subscription

    def owners(self) -> set[Subscription]:
        return set(self._owners.values())

    def of(self, subscription: Subscription) -> list[int]:
        """The buckets that `subscription` owns and keeps."""
        return [b for b, owner in self._owners.items() if owner is subscription and b not in self._moving]

    def move(self, buckets: list[int], cursor: list[int]) -> None:
        """These buckets of one owner shall be free as soon as it holds none of their messages; until then nobody gets
        any. `cursor` = by priority: what waits for the owner is behind it."""
        for bucket in buckets:
            held = self._owners[bucket].unacked.values()
            self._moving[bucket] = [each.seq for each in held if self.bucket(each) == bucket]
            for priority, seq in enumerate(cursor):
                self.skip(bucket, priority, seq + 1)

    def freed(self) -> list[int]:
        """Free the buckets that shall be and can be. Returns by priority from which seq on messages may wait that are
        anybody's now; nothing where no bucket is freed."""
        free = [bucket for bucket, held in self._moving.items() if not _holds(self._owners[bucket], held)]
        for bucket in free:
            del self._owners[bucket], self._moving[bucket]
        return self._first_of(free)

    def _first_of(self, free: Sequence[int]) -> list[int]:
        first = [NEVER] * self._priorities
        for bucket in free:
            first = list(map(min, first, self._skipped.pop(bucket, first)))
        return first if free else []

    # -- consumers that come from another store -----------------------------------------------------------------------

    def known(self) -> dict[str, list[int]]:
        """The buckets that are somebody's, and stay so, by what their consumers are known as."""
        found: dict[str, list[int]] = {}
        for bucket, owner in self._owners.items():
            if bucket not in self._moving and owner.known_as:
                found.setdefault(owner.known_as, []).append(bucket)
        for bucket, name in self._awaited.items():
            found.setdefault(name, []).append(bucket)
        return found

    def expect(self, known: Mapping[str, Sequence[int]]) -> None:
        """These buckets wait for their consumers, which are known so, as far as they are nobody's."""
        for name, buckets in known.items():
            self._awaited |= {bucket: name for bucket in buckets if bucket not in self._owners}

    def claim(self, subscription: Subscription) -> bool:
        """`subscription`, which has looked at nothing yet, is here: does it get buckets that waited for it?"""
        name = subscription.known_as if self._awaited else ""
        mine = [bucket for bucket, awaited in self._awaited.items() if awaited == name]
        for bucket in mine:
            del self._awaited[bucket]
            self._skipped.pop(bucket, None)
            self._owners[bucket] = subscription
        return bool(mine)

    def expect_nobody(self) -> list[int]:
        """Nobody else will come: as `freed`, of the buckets that still waited."""
        awaited, self._awaited = self._awaited, {}
        return self._first_of([*awaited])


def _holds(owner: Subscription, held: list[int]) -> bool:
    while held and held[-1] not in owner.unacked:
        held.pop()
    return bool(held) or owner.in_transactions > 0


def ends_group(message: Message) -> bool:
    """Is it the last of its group? Messages that follow under that name are another group."""
    properties = message.properties
    return properties is not None and GROUP_SEQ in properties and text(properties[GROUP_SEQ]) == LAST_SEQ
