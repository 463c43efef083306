"""Messages of the neutral protocol: a map of what is said about a message ↔ `Message`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amq.core.message import BYTES, TEXT, Envelope, Message, check, neutral
from amq.core.ownership import given
from amq.core.values import are_texts

NAME: Final = "neutral"
BIG: Final = range(1 << 62)
_ABOUT: Final[Mapping[str, type | range]] = {
    "properties": dict,
    "content_type": str,
    "content": range(6),
    "priority": range(10),
    "persistent": bool,
    "expires_ms": BIG,
    "duplicate_id": str,
    "transaction": str,
    "message_id": str,
    "correlation_id": str,
    "reply_to": str,
    "type": str,
    "sent_ms": BIG,
}


def checked(value: Any, kind: type | range) -> Any:
    """`value`, which is of that type, or a number of that range. Raises ValueError."""
    if (type(value) is not int or value not in kind) if isinstance(kind, range) else type(value) is not kind:
        raise ValueError(f"{value!r} is not {kind}")
    return value


def _fields(about: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ValueError."""
    if unknown := about.keys() - _ABOUT.keys():
        raise ValueError(f"nothing of a message is called {min(unknown)!r}")
    return {name: checked(value, _ABOUT[name]) for name, value in about.items()}


def read_message(destination: str, body: bytes, about: Mapping[str, Any]) -> tuple[Message, str]:
    """The message, and the name of its transaction. Raises ValueError, CommandError."""
    fields = _fields(about)
    transaction = fields.pop("transaction", "")
    said = {name: fields.pop(name) for name in Envelope._fields if name in fields}
    typed = fields.get("content", BYTES) > TEXT or not are_texts(fields.get("properties", {}).values())
    message = Message(destination, body, envelope=Envelope(**said) if said or typed else None, **fields)
    check(message)
    return message, transaction


def told(message: Message) -> dict[str, Any]:
    """What a delivery says about its message."""
    message = neutral(message)
    about: dict[str, Any] = {
        "content_type": message.content_type,
        "priority": message.priority,
        "persistent": message.persistent,
        "timestamp_ms": message.timestamp_ms,
        "expires_ms": message.expires_ms,
        "duplicate_id": given(message.duplicate_id),
    }
    envelope = message.envelope
    about |= {"properties": dict(message.properties or {}), "content": message.content}
    return about | envelope._asdict() if envelope is not None else about
