"""The log of what happens in the broker: one of those that listen to its events."""

from __future__ import annotations

import structlog

from amq.broker.events import (
    Events,
    GroupChanged,
    MemoryLimitLeft,
    MemoryLimitReached,
    QueueLimitLeft,
    QueueLimitReached,
    SlowConsumer,
    StoreFull,
    StoreHasRoom,
    StoreLimitLeft,
    StoreLimitReached,
)

_log = structlog.get_logger("amq.broker")


def log_events(events: Events) -> None:
    """Write a line for each event that an operator may have to do something about."""
    events.listen(GroupChanged, _group_changed)
    events.listen(QueueLimitReached, _queue_limit_reached)
    events.listen(QueueLimitLeft, _queue_limit_left)
    events.listen(MemoryLimitReached, _memory_limit_reached)
    events.listen(MemoryLimitLeft, _memory_limit_left)
    events.listen(StoreLimitReached, _store_limit_reached)
    events.listen(StoreLimitLeft, _store_limit_left)
    events.listen(StoreFull, _store_full)
    events.listen(StoreHasRoom, _store_has_room)
    events.listen(SlowConsumer, _slow_consumer)


def _group_changed(event: GroupChanged) -> None:
    if event.brokers:
        _log.info("clients are told where they find the group", brokers=list(event.brokers))
    else:
        _log.info("clients are no longer told where they find the group")


def _queue_limit_reached(event: QueueLimitReached) -> None:
    _log.warning(
        "a queue has reached queueLimit", queue=event.queue, limit_bytes=event.limit_bytes, policy=event.policy
    )


def _queue_limit_left(event: QueueLimitLeft) -> None:
    _log.info("a queue is below queueLimit again", queue=event.queue, limit_bytes=event.limit_bytes)


def _memory_limit_reached(event: MemoryLimitReached) -> None:
    _log.warning(
        "memoryLimit is reached: producers wait or are refused, consumers go on", limit_bytes=event.limit_bytes
    )


def _memory_limit_left(event: MemoryLimitLeft) -> None:
    _log.info("there is memory again: messages are accepted", limit_bytes=event.limit_bytes)


def _store_limit_reached(event: StoreLimitReached) -> None:
    _log.warning("storeLimit is reached: producers wait or are refused, consumers go on", limit_bytes=event.limit_bytes)


def _store_limit_left(event: StoreLimitLeft) -> None:
    _log.info("the store is below storeLimit again: messages are accepted", limit_bytes=event.limit_bytes)


def _store_full(event: StoreFull) -> None:
    _log.error(
        "the store's disk is full: messages are refused, acknowledgements go on",
        store=event.store,
        floor_bytes=event.floor_bytes,
    )


def _store_has_room(event: StoreHasRoom) -> None:
    _log.info("the store's disk has room again: messages are accepted", store=event.store)


def _slow_consumer(event: SlowConsumer) -> None:
    _log.warning(
        "a topic's consumer is too slow: it misses messages",
        destination=",".join(event.destinations),
        subscription=event.subscription,
        policy=event.policy,
        limit=event.limit,
        connection=event.connection,
    )
