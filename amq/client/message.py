"""A received message as the application sees it: the common part of the synchronous and the asyncio face."""

from __future__ import annotations

from typing import Generic, TypeVar

from amq.client.core import DUPLICATE_ID_HEADER, Delivery
from amq.core.message import DEFAULT_PRIORITY

SessionT = TypeVar("SessionT")


class ReceivedMessage(Generic[SessionT]):
    """A received message. `body` is bytes as sent; `headers` holds every header as the broker wrote it."""

    __slots__ = ("_delivery", "_session", "body", "headers")

    def __init__(self, session: SessionT, delivery: Delivery) -> None:
        self._session = session
        self._delivery = delivery
        self.body = delivery.frame.body
        self.headers = delivery.frame.headers

    @property
    def text(self) -> str:
        """The body as UTF-8 text. Raises UnicodeDecodeError where it is none."""
        return self.body.decode()

    @property
    def id(self) -> str:
        """The broker's id of the message; the same on every delivery."""
        return self.headers.get("message-id", "")

    @property
    def destination(self) -> str:
        return self.headers.get("destination", "")

    @property
    def duplicate_id(self) -> str:
        """The id that the producer gave for duplicate detection, "" = none."""
        return self.headers.get(DUPLICATE_ID_HEADER, "")

    @property
    def redelivered(self) -> bool:
        """True when it was delivered before, to anybody, and not acknowledged."""
        return self.headers.get("redelivered") == "true"

    @property
    def priority(self) -> int:
        value = self.headers.get("priority", "")
        return int(value) if value.isdecimal() else DEFAULT_PRIORITY

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.destination} {len(self.body)} B>"
