"""Names: which kinds of destinations the broker has, and the requests that each allows. See `amq.core.destination`."""

from __future__ import annotations

from collections.abc import Sequence

from amq.core.destination import (
    ANY_REST,
    QUEUE_SCHEME,
    TEMPORARY_QUEUE_SCHEME,
    TEMPORARY_TOPIC_SCHEME,
    TOPIC_SCHEME,
    Pattern,
    Source,
    flaw,
    is_of_queues,
    told,
    wire_name,
)
from amq.core.errors import AccessError, CommandError
from amq.core.message import SUBSCRIPTION_SCHEME as SUBSCRIPTION_SCHEME
from amq.journal.hidden import HELD_SCHEME, OUTBOX_SCHEME, SENT_SCHEME
from amq.journal.hidden import real_name as real_name

SCHEDULE_SCHEME = "schedule://"  # see `amq.broker.scheduling.schedule`: to be browsed, and nothing else
PREPARED_NAME = QUEUE_SCHEME + "AMQ.Prepared"  # browsed, it shows what is prepared
ADVISORY_PREFIX = TOPIC_SCHEME + "ActiveMQ.Advisory."  # see `amq.broker.topics.advisories`
_SCHEMES = (QUEUE_SCHEME, TOPIC_SCHEME, TEMPORARY_QUEUE_SCHEME, TEMPORARY_TOPIC_SCHEME)


def shelves(name: str) -> tuple[str, str, str]:
    """Full names of a queue and of the two hidden ones that belong to it, by the name of any of them."""
    real = name.removeprefix(SENT_SCHEME).removeprefix(HELD_SCHEME)
    return real, SENT_SCHEME + real, HELD_SCHEME + real


def is_topic(source: Source) -> bool:
    """One topic, or those of a pattern?"""
    return str(source).startswith(TOPIC_SCHEME)


def is_temporary(source: Source) -> bool:
    return str(source).startswith((TEMPORARY_QUEUE_SCHEME, TEMPORARY_TOPIC_SCHEME))


def is_stored(name: str) -> bool:
    """Is it a queue, whose messages may be in the journal?"""
    return name.startswith(QUEUE_SCHEME)


def is_queued(name: str) -> bool:
    """Is it such a queue, one of the scheduler's, or an outbox?"""
    return name.startswith((QUEUE_SCHEME, SCHEDULE_SCHEME, OUTBOX_SCHEME))


def check_sent_to(name: str) -> None:
    """Raises AccessError where nobody can send to a destination of this name."""
    _check(name)
    if name == PREPARED_NAME:
        raise AccessError(
            f"{wire_name(name)}: browse it; it shows prepared transactions, and holds no messages",
            code="DESTINATION_REFUSED",
        )


def check_made(name: str) -> None:
    """Raises AccessError, CommandError where no client could make a destination of this name: for those who name it
    otherwise than in a protocol's notation, which refuses the same."""
    check_sent_to(name)
    if why := flaw(name):
        raise CommandError(f"destination {name[:100]!r}: {why}", code="DESTINATION_INVALID")


def check_subscribed_to(sources: Sequence[Source]) -> None:
    """Raises AccessError where nobody can subscribe to these."""
    for source in sources:
        _check(source)
        if is_temporary(source) and (len(sources) > 1 or isinstance(source, Pattern)):
            raise AccessError(
                f"{wire_name(str(source))}: subscribe to each temporary destination by its name",
                code="DESTINATION_REFUSED",
            )
        if isinstance(source, Pattern) and ANY_REST in source.words[:-1]:
            raise AccessError(
                f'{wire_name(str(source))}: ">" stands for all further words: write it last, and "*" for one word',
                code="DESTINATION_REFUSED",
            )


def check_browsed(sources: Sequence[Source]) -> None:
    """Raises AccessError where there is nothing to browse in these."""
    first = sources[0]
    if len(sources) == 1 and str(first).startswith(SCHEDULE_SCHEME):
        return
    check_subscribed_to(sources)
    if len(sources) > 1 or not is_of_queues(first):
        raise AccessError(
            f"{wire_name(told(sources))}: browse one queue, or those of a pattern; a topic holds no messages",
            code="DESTINATION_REFUSED",
        )


def check_queue(name: str) -> None:
    """Raises AccessError where this is not a name of one queue."""
    if not is_stored(name):
        raise AccessError(f"{wire_name(name)} is not a queue: give /queue/NAME", code="DESTINATION_REFUSED")
    check_sent_to(name)


def _check(source: Source) -> None:
    if not str(source).startswith(_SCHEMES):
        raise AccessError(
            f"{source}: this broker serves queues and topics; use /queue/NAME or /topic/NAME",
            code="DESTINATION_REFUSED",
        )
