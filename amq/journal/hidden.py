"""Queues that nobody can address, and what people read in place of their names. Spec: docs/journal-format.md."""

from __future__ import annotations

from amq.core.destination import TOPIC_SCHEME
from amq.core.message import SUBSCRIPTION_SCHEME

# Hidden queues: nobody can address them, all in them waits on disk alone, and no ids are remembered for them. There are
# two for each queue: what was sent to it, and what was acknowledged of it, in prepared transactions.
SENT_SCHEME = "sent://"
HELD_SCHEME = "held://"
RETAINED_SCHEME = "retained://"  # one for each topic that has a retained message; it may expire there
_SCHEDULE_SCHEME = "schedule://"
OUTBOX_SCHEME = "outbox://"  # see `amq.broker.transfer.outbox`: messages that go to destinations of other stores
_TOLD = (
    (SENT_SCHEME, "prepared, for "),
    (HELD_SCHEME, "prepared, taken from "),
    (RETAINED_SCHEME, "retained message of "),
)


def is_hidden(destination: str) -> bool:
    """Is it a queue of prepared transactions, or of a retained message?"""
    return destination.startswith((SENT_SCHEME, HELD_SCHEME, RETAINED_SCHEME))


def is_prepared(destination: str) -> bool:
    """Is it a queue of prepared transactions? Nothing expires there."""
    return destination.startswith((SENT_SCHEME, HELD_SCHEME))


def real_name(destination: str) -> str:
    """The name of the queue or topic to which a hidden one belongs; of any other its own."""
    return destination.removeprefix(SENT_SCHEME).removeprefix(HELD_SCHEME).removeprefix(RETAINED_SCHEME)


def told_name(destination: str) -> str:
    """The name for people of a queue that nobody can address; other names as they are."""
    for scheme, what in _TOLD:
        if destination.startswith(scheme):
            return what + told_name(destination.removeprefix(scheme))
    if destination.startswith(SUBSCRIPTION_SCHEME):
        return "durable subscription " + destination.removeprefix(SUBSCRIPTION_SCHEME).rpartition(":")[0]
    if destination.startswith(_SCHEDULE_SCHEME):
        return "scheduled for " + destination.removeprefix(_SCHEDULE_SCHEME).replace(".", "://", 1)
    if destination.startswith(OUTBOX_SCHEME):
        return "on the way to " + outbox_target(destination)
    return destination


def outbox_name(destination: str) -> str:
    """`queue://orders` → `outbox://queue.orders`"""
    return OUTBOX_SCHEME + destination.replace("://", ".", 1)


def outbox_target(name: str) -> str:
    """Full name of the destination of an outbox; any other name as it is."""
    if not name.startswith(OUTBOX_SCHEME):
        return name
    return name.removeprefix(OUTBOX_SCHEME).replace(".", "://", 1)


def home_name(queue: str) -> str:
    """Full name of the destination to which a queue of the journal belongs: hidden ones, and schedules, have one."""
    name = real_name(queue)
    if name.startswith(_SCHEDULE_SCHEME):
        kind, _, plain = name.removeprefix(_SCHEDULE_SCHEME).partition(".")
        return f"{kind}://{plain}"
    return name if "://" in name else TOPIC_SCHEME + name
