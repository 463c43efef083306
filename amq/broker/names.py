"""Names: full names of destinations, `queue://orders.eu` or `topic://prices`, and the requests that each allows.

A name's words are separated by dots; a composite name has several parts, with commas between. In a subscription the
word `*` stands for any one word, and a final `>` for all further words, also none; nothing is ever sent to such a name.
"""

from __future__ import annotations

from amq.config.destinations import ANY_REST, ANY_WORD
from amq.errors import AccessError
from amq.journal.hidden import HELD_SCHEME, SENT_SCHEME
from amq.journal.hidden import real_name as real_name
from amq.message import SUBSCRIPTION_SCHEME as SUBSCRIPTION_SCHEME
from amq.message import wire_name as wire_name

QUEUE_SCHEME = "queue://"
TOPIC_SCHEME = "topic://"
TEMPORARY_QUEUE_SCHEME = "temp-queue://"
TEMPORARY_TOPIC_SCHEME = "temp-topic://"
SCHEDULE_SCHEME = "schedule://"  # see `amq.broker.scheduling.schedule`: to be browsed, and nothing else
PREPARED_NAME = QUEUE_SCHEME + "AMQ.Prepared"  # browsed, it shows what is prepared
ADVISORY_PREFIX = TOPIC_SCHEME + "ActiveMQ.Advisory."  # see `amq.broker.topics.advisories`
_SCHEMES = (QUEUE_SCHEME, TOPIC_SCHEME, TEMPORARY_QUEUE_SCHEME, TEMPORARY_TOPIC_SCHEME)


def plain_name(name: str) -> str:
    """The full name of a destination without its scheme, as users know it."""
    return name.partition("://")[2]


def words_of(name: str) -> list[str]:
    """Of the full name of a destination: what stands between its dots."""
    return plain_name(name).split(".")


def shelves(name: str) -> tuple[str, str, str]:
    """Full names of a queue and of the two hidden ones that belong to it, by the name of any of them."""
    real = name.removeprefix(SENT_SCHEME).removeprefix(HELD_SCHEME)
    return real, SENT_SCHEME + real, HELD_SCHEME + real


def is_topic(name: str) -> bool:
    """Are all of its parts topics?"""
    return name.startswith(TOPIC_SCHEME) and name.count("," + TOPIC_SCHEME) == name.count(",")


def is_temporary(name: str) -> bool:
    return name.startswith((TEMPORARY_QUEUE_SCHEME, TEMPORARY_TOPIC_SCHEME))


def is_stored(name: str) -> bool:
    """Is it one queue, whose messages may be in the journal?"""
    return name.startswith(QUEUE_SCHEME) and "," not in name


def is_queued(name: str) -> bool:
    """Is it such a queue, or one of the scheduler's?"""
    return is_stored(name) or name.startswith(SCHEDULE_SCHEME)


def is_pattern(name: str) -> bool:
    """Does a word of the name stand for others?"""
    if ANY_WORD not in name and ANY_REST not in name:
        return False
    words = words_of(name)
    return ANY_WORD in words or ANY_REST in words


def is_gathered(name: str) -> bool:
    """Would a subscription to it consume more than one queue, or a queue and something else?"""
    return QUEUE_SCHEME in name and ("," in name or is_pattern(name)) and not is_topic(name)


def check_sent_to(name: str) -> None:
    """Raises AccessError where nobody can send to a destination of this name."""
    _check(name)
    if name == PREPARED_NAME:
        raise AccessError(
            f"{wire_name(name)}: browse it; it shows prepared transactions, and holds no messages",
            code="DESTINATION_REFUSED",
        )
    if is_pattern(name):
        raise AccessError(
            f"{wire_name(name)}: only a subscription may name many destinations by * and >; send to one",
            code="DESTINATION_REFUSED",
        )


def check_subscribed_to(name: str) -> None:
    """Raises AccessError where nobody can subscribe to a destination of this name."""
    for part in name.split(","):
        _check(part)
        if is_temporary(part) and ("," in name or is_pattern(part)):
            raise AccessError(
                f"{wire_name(name)}: subscribe to each temporary destination by its name", code="DESTINATION_REFUSED"
            )
        if is_pattern(part) and ANY_REST in words_of(part)[:-1]:
            raise AccessError(
                f'{wire_name(part)}: ">" stands for all further words: write it last, and "*" for one word',
                code="DESTINATION_REFUSED",
            )


def check_browsed(name: str) -> None:
    """Raises AccessError where there is nothing to browse in destinations of this name."""
    if name.startswith(SCHEDULE_SCHEME) and "," not in name:
        return
    check_subscribed_to(name)
    if not is_stored(name):
        raise AccessError(
            f"{wire_name(name)}: browse one queue, or those of a pattern; a topic holds no messages",
            code="DESTINATION_REFUSED",
        )


def check_queue(name: str) -> None:
    """Raises AccessError where this is no name of one queue."""
    if not is_stored(name):
        raise AccessError(f"{wire_name(name)} is no queue: give /queue/NAME", code="DESTINATION_REFUSED")
    check_sent_to(name)


def _check(name: str) -> None:
    if not name.startswith(_SCHEMES):
        raise AccessError(
            f"{name}: this broker serves queues and topics; use /queue/NAME or /topic/NAME", code="DESTINATION_REFUSED"
        )
