"""Recounts what the broker counts of topics' subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.broker.topics.buffer import TopicBuffer
from amq.core.message import Message

if TYPE_CHECKING:
    from tests.broker.world import World


def memory_of(message: Message) -> int:
    """What a message takes that shares nothing."""
    return len(message.body) + message.header_bytes + MESSAGE_OVERHEAD_BYTES


def check_topics(world: World) -> int:
    """Recount what waits for topic subscriptions. Returns the memory that it takes."""
    holders: dict[int, int] = {}
    bodies: dict[int, int] = {}
    for queue in {*world.broker.topics.queues(), *_closed(world)}:
        waiting = {message.seq for level in queue.levels for message in level}
        held = {seq for subscription in queue.subscriptions for seq in subscription.unacked}
        assert not waiting & held
        assert waiting | held <= queue.messages.keys()
        assert queue.resident_bytes == sum(map(memory_of, queue.messages.values()))
        assert queue.stored_bytes == queue.resident_bytes
        assert queue.expiring == sum(bool(message.expires_ms) for message in queue.messages.values())
        for message in queue.messages.values():
            assert message.segment is None
            assert message.shared is not None
            holders[message.seq] = holders.get(message.seq, 0) + 1
            bodies[message.seq] = len(message.body) + message.header_bytes
    recent = world.broker.topics.recovery_buffer
    assert recent.size == sum(map(memory_of, recent.messages()))
    assert sorted(recent._all) == sorted(message.seq for message in recent.messages())
    for message in recent.messages():
        holders[message.seq] = holders.get(message.seq, 0) + 1
        bodies[message.seq] = len(message.body) + message.header_bytes
    return sum(holders.values()) * MESSAGE_OVERHEAD_BYTES + sum(bodies.values())


def _closed(world: World) -> set[TopicBuffer]:
    """Of subscriptions that have ended while a transaction holds some of their messages."""
    transactions = [each for client in world.clients for each in client.transactions.values()]
    settled = [subscription for each in transactions for subscription, _ in each.acks + each.nacks]
    return {each.queue for each in settled if isinstance(each.queue, TopicBuffer)}
