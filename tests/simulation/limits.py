"""The oracle of limits: a queue takes no more than docs/messaging.md allows, and what it drops is in its dead-letter
queue, once and in order.

A dead letter is known by the id of what it stands for, with `DEAD` before it; from then on it is a message like any
other, which must be delivered once and acknowledged.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from amq.broker.broker import Broker
from amq.broker.names import SCHEDULE_SCHEME
from amq.broker.queues.queue import QUEUE_SCHEME, Queue
from amq.broker.scheduling.scheduler import JOB_ID
from amq.core.message import SUBSCRIPTION_SCHEME, TEXT, Message
from amq.core.ownership import given
from amq.journal.batch import OpenBatch
from amq.journal.records import DEAD_LETTERED, Consumed, Group, Record
from amq.journal.records.message import Run
from amq.protocols.openwire.messages import is_openwire

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle

DLQ = "DLQ."
DEAD = "dead-"
GIVEN_UP = "ActiveMQ.DLQ"  # where clients of OpenWire look for what they gave up


def is_dead_letter_queue(name: str) -> bool:
    return name.startswith(DLQ) or name == GIVEN_UP


def identity(message: Message) -> str:
    """The id that its application gave, or wrote into the body; with `DEAD` before it of a dead letter, with the name
    of its queue behind it where it waits for a durable subscription, with its seq where it is or was scheduled.
    """
    if message.queue_name.startswith(SCHEDULE_SCHEME) or JOB_ID in (message.properties or {}):
        return f"{_written(message)}#{message.seq}"
    if message.queue_name.startswith(SUBSCRIPTION_SCHEME):
        return f"{given(message.duplicate_id)}@{message.queue_name}"
    if is_dead_letter_queue(message.destination.removeprefix(QUEUE_SCHEME)):
        return DEAD + _written(message)
    return given(message.duplicate_id) or _written(message)


def _written(message: Message) -> str:
    """The id in the body. A text of OpenWire begins with its length."""
    body = message.body[4:] if message.content == TEXT and is_openwire(message) else message.body
    return body.rstrip(b".").decode()


class LimitsOracle:
    """Told of each commit by `Oracle`, which it tells what is wrong."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._seen: set[int] = set()  # seqs that a consumer had, or whose drop was refused: they leave later
        self._last: dict[str, int] = {}  # queue → seq of what it dropped last
        self._units: Counter[str] = Counter()  # queue → bytes of the most that was stored there at once
        self._late: Counter[str] = Counter()  # queue → bytes of what came late, since it was below its limit

    def delivered(self, message: Message) -> None:
        self._seen.add(message.seq)

    def rejected(self, records: list[Record]) -> None:
        for record in records:
            if isinstance(record, Group):
                for part in record.records:
                    if isinstance(part, Consumed):
                        self._seen.update(part.seqs)

    # -- what is dropped ----------------------------------------------------------------------------------------------

    def recorded(self, group: Group, stored: dict[int, tuple[int, str]], consumed: dict[int, int]) -> None:
        """`group` is committed. Is it a drop, and does each message in it stand for one that leaves there?"""
        end = group.records[-1]
        if not isinstance(end, Consumed) or end.reason != DEAD_LETTERED:
            return
        moved = [part for part in group.records if isinstance(part, Message)]
        before = [DEAD + stored.get(seq, (0, "?"))[1] for seq in end.seqs]
        if [identity(message) for message in moved] != before:
            self._oracle.broken("limits", f"{before} left for the dead-letter queue, and others stand there")
        for message, seq in zip(moved, end.seqs, strict=True):
            if seq in consumed:
                self._oracle.broken("limits", f"{identity(message)} was acknowledged before it was dropped")
            self.found(message)
            if seq not in self._seen:
                if seq < self._last.get(end.destination, 0):
                    self._oracle.broken("limits", f"{identity(message)} was dropped behind a younger one")
                self._last[end.destination] = seq
            self._oracle.counts["dropped"] += 1

    def found(self, message: Message) -> None:
        """A dead letter is durable: nobody has acknowledged what it stands for, and somebody must get it."""
        oracle, id = self._oracle, identity(message)
        before = oracle.sent.get(id.removeprefix(DEAD))
        if before is None:
            oracle.broken("limits", f"{id} was never sent")
        elif before.acked_epoch:
            oracle.broken("P2", f"{id} stands for a message that was acknowledged")
        oracle.sending(id, message.destination, "broker", message.seq)
        oracle.sent[id].may_be_early = oracle.sent[id].confirmed = True

    # -- how much is taken --------------------------------------------------------------------------------------------

    def taken_over(self, messages: list[Message]) -> None:
        """`messages` of one queue were durable when their master died, and not confirmed."""
        for message in messages:
            self._units |= Counter({message.destination: sum(each.size for each in messages)})

    def came_late(self, name: str, seqs: list[int], size: int) -> None:
        """`seqs`, of `size` bytes, come into that queue, at the places of their age: no limit holds them up."""
        self._seen.update(seqs)
        self._late[name] += size

    def committed(self, broker: Broker, batch: OpenBatch) -> None:
        """No queue that blocks or refuses holds more than its limit and the one message or transaction that led past
        it.
        """
        for record in batch.records:
            parts = record.records if isinstance(record, Group) else [record]
            sizes: Counter[str] = Counter()
            for part in parts:
                if isinstance(part, Message | Run):
                    sizes[part.destination] += part.size
            self._units |= sizes
        for name in batch.names:
            queue = broker.state.queue(name)
            limit = queue.options.queue_limit_bytes
            if not limit or queue.options.queue_limit_policy == "drop-oldest":
                continue
            taken = _stored_bytes(queue)
            if queue.taken_bytes < limit:
                del self._late[name]
            elif taken >= limit + self._units[name] + self._late[name]:
                self._oracle.broken("limits", f"{name} holds {taken} bytes, its limit is {limit}")


def _stored_bytes(queue: Queue) -> int:
    """Counted anew."""
    here = sum(message.size for message in queue.messages.values())
    return here + sum(place.size for backlog in queue.backlogs.values() for place in backlog)
