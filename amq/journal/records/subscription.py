"""Subscribed: the record of a durable subscription. Spec: docs/journal-format.md."""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

from amq.core.destination import Source, source
from amq.core.message import SUBSCRIPTION_SCHEME
from amq.journal.format import frame_record
from amq.journal.live import Segment
from amq.journal.records.base import BaseRecord, S

SUBSCRIBED = 15
_QUEUE = re.compile(re.escape(SUBSCRIPTION_SCHEME) + r".*:[0-9]{1,20}", re.DOTALL)  # its age comes last


class Subscribing(Protocol[S]):
    """The method of a fold that this record calls."""

    def subscribe(self, record: Subscribed, segment: S) -> None:
        """A subscription is there, stands elsewhere now, or has ended."""


class Subscribed(BaseRecord):
    """There is a durable subscription, whose messages wait in `queue`; without a definition: it ended. Another record
    of the same queue takes the place of the one before.

    definition   client_id, name, topics (full names, or patterns of them), selector, message_id_prefix, no_local; those
                 of a session with several filters may have options, expires_s, user, exact. Unknown keys are kept
    segment      where that stands, once it does
    is_ending    the word of its end is on its way
    """

    kinds = (SUBSCRIBED,)
    type_name = "subscription"
    __slots__ = ("definition", "is_ending", "queue", "segment")

    def __init__(self, queue: str, definition: dict[str, Any]) -> None:
        self.queue = queue
        self.definition = definition
        self.segment: Segment | None = None
        self.is_ending = False

    @property
    def topics(self) -> list[str]:
        return list(self.definition["topics"])

    @property
    def selector(self) -> str:
        return str(self.definition["selector"])

    @property
    def no_local(self) -> bool:
        return bool(self.definition["no_local"])

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        """The options of each filter, by topic."""
        return dict(self.definition.get("options", {}))

    @property
    def expires_s(self) -> int | None:
        """It outlives its connection for so long; None = for ever."""
        return self.definition.get("expires_s")

    @property
    def user(self) -> str:
        """The user to whom it belongs, "" = nobody said."""
        return str(self.definition.get("user", ""))

    @property
    def exact(self) -> frozenset[str]:
        """Those of `topics` that are literal names, although they look like patterns or lists."""
        return frozenset(self.definition.get("exact", ()))

    @property
    def sources(self) -> tuple[Source, ...]:
        """`topics`, read."""
        exact = self.exact
        return tuple(each if each in exact else source(each) for each in self.topics)

    def encode(self, _: dict[str, int], /) -> bytes:
        return frame_record(SUBSCRIBED, json.dumps([self.queue, self.definition]).encode())

    @classmethod
    def decode(cls, body: bytes, *_: object) -> Subscribed:
        return cls.stored(json.loads(body))

    @classmethod
    def stored(cls, found: Any) -> Subscribed:
        """The stored subscription. Raises ValueError, also where the queue has a name that no broker gives."""
        queue, definition = checked(found)
        if not _QUEUE.fullmatch(queue):
            raise ValueError(f"{queue[:100]!r} is not the queue of a durable subscription")
        return cls(queue, definition)

    def apply(self, fold: Subscribing[S], segment: S, /) -> None:
        fold.subscribe(self, segment)

    def facts(self) -> dict[str, Any]:
        return {"destination": self.queue, "definition": self.definition}


def checked(found: Any) -> tuple[str, dict[str, Any]]:
    """Queue and definition of a subscription, as JSON has them. Raises ValueError."""
    queue, definition = found if isinstance(found, list) and len(found) == 2 else (None, None)
    if not isinstance(queue, str) or not isinstance(definition, dict):
        raise ValueError("no queue and definition of a subscription")
    texts = [definition.get(key) for key in ("client_id", "name", "selector")]
    topics = definition.get("topics")
    good = isinstance(topics, list) and topics and all(isinstance(each, str) for each in (*texts, *topics))
    if definition and not (good and {"message_id_prefix", "no_local"} <= definition.keys()):
        raise ValueError("definition of a subscription lacks something")
    options, exact = definition.get("options", {}), definition.get("exact", [])
    expires_s = definition.get("expires_s", 0)
    if not isinstance(options, dict) or not all(isinstance(each, dict) for each in options.values()):
        raise ValueError("options of a subscription are not an object of objects")
    if type(expires_s) is not int or expires_s < 0 or not isinstance(definition.get("user", ""), str):
        raise ValueError("a subscription has an expiry that is not a number of seconds, or a user that is not a text")
    if not isinstance(exact, list) or not all(isinstance(each, str) for each in exact):
        raise ValueError("exact topics of a subscription are not a list of texts")
    return queue, definition
