"""The log of what happens in the broker: one of those that listen to its events."""

from __future__ import annotations

import structlog

from amq.broker.events import Events, QueueLimitLeft, QueueLimitReached, SlowConsumer

_log = structlog.get_logger("amq.broker")


def log_events(events: Events) -> None:
    """Write a line for each event that an operator may have to do something about."""
    events.listen(QueueLimitReached, _queue_limit_reached)
    events.listen(QueueLimitLeft, _queue_limit_left)
    events.listen(SlowConsumer, _slow_consumer)


def _queue_limit_reached(event: QueueLimitReached) -> None:
    _log.warning(
        "a queue has reached queueLimit", queue=event.queue, limit_bytes=event.limit_bytes, policy=event.policy
    )


def _queue_limit_left(event: QueueLimitLeft) -> None:
    _log.info("a queue is below queueLimit again", queue=event.queue, limit_bytes=event.limit_bytes)


def _slow_consumer(event: SlowConsumer) -> None:
    _log.warning(
        "a topic's consumer is too slow: it misses messages", destination=",".join(event.destinations),
        subscription=event.subscription, policy=event.policy, limit=event.limit, connection=event.connection,
    )  # fmt: skip
