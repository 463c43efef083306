"""Unowned: outcome ids and duplicate ids that are in the journal without the name of a user.

Earlier versions stored all of them so. Invariant: such an id answers a client only where no other user can have made
it: the broker knows one user, or it is an id of our client library, which has 96 random bits. Every other one answers
nobody. docs/journal-format.md has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from amq.broker.queues.queue import Queue
from amq.config.checks import has_logins
from amq.config.schema import BrokerConfig
from amq.core.message import Message
from amq.core.ownership import given, is_owned

_LIBRARY: Final = re.compile("[0-9a-f]{24}-[0-9]+")  # see `amq.client.machine`


def answers(id: str, config: BrokerConfig) -> bool:
    """May a record of `id` without a user answer a client that gives this id?"""
    return not has_logins(config) or _LIBRARY.fullmatch(id) is not None


def is_duplicate(queue: Queue, message: Message, config: BrokerConfig) -> bool:
    """Does `queue` know the producer-given id of `message` from a record without a user, which answers? Then `message`
    has the id of that record from here on."""
    if not knows_any(queue, (message.duplicate_id,), config):
        return False
    message.duplicate_id = given(message.duplicate_id)
    return True


def knows_any(queue: Queue, ids: Iterable[str], config: BrokerConfig) -> bool:
    """Does `queue` know one of `ids` from a record without a user, which answers?"""
    known, pending = queue.duplicates, queue.duplicates_pending
    queue.may_hold_unowned = any(not is_owned(id) for some in (known, pending) for id in some)
    if not queue.may_hold_unowned:
        return False
    return any((id in known or id in pending) and answers(id, config) for id in map(given, ids))
