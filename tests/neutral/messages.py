"""Messages of the neutral protocol: a map of what is said about a message ↔ `Message`, and its native form.

A native form is `raw`, bytes that a producer sends and that consumers of this protocol get as they are. For all others
they are a map of properties, and of what an envelope has; the body is that of the kind `content`, back to front.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

from amq.core.message import BYTES, TEXT, Content, Envelope, Message, Native, NativeReader, check, neutral, register
from amq.core.ownership import given
from amq.core.values import Properties, are_texts, decode_map, encode

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
    "raw": bytes,
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
    transaction, raw = fields.pop("transaction", ""), fields.pop("raw", None)
    said = {name: fields.pop(name) for name in Envelope._fields if name in fields}
    if raw is not None:
        said["native"] = Native(NAME, raw)
    typed = fields.get("content", BYTES) > TEXT or not are_texts(fields.get("properties", {}).values())
    message = Message(destination, body, envelope=Envelope(**said) if said or typed else None, **fields)
    check(message)
    return message, transaction


def own(message: Message) -> Message:
    """With the body that this protocol writes: as it came, if it came by this protocol."""
    native = message.envelope.native if message.envelope is not None else None
    return message if native is None or native.protocol == NAME else neutral(message)


def told(message: Message) -> dict[str, Any]:
    """What a delivery says about its message."""
    message = own(message)
    about: dict[str, Any] = {
        "content_type": message.content_type,
        "priority": message.priority,
        "persistent": message.persistent,
        "timestamp_ms": message.timestamp_ms,
        "expires_ms": message.expires_ms,
        "duplicate_id": given(message.duplicate_id),
    }
    envelope = message.envelope
    if envelope is not None and envelope.native is not None:
        return about | {"raw": envelope.native.data}
    about |= {"properties": dict(message.properties or {}), "content": message.content}
    return about | envelope._asdict() if envelope is not None else about


def _raw(message: Message) -> dict[str, Any]:
    assert message.envelope is not None
    assert message.envelope.native is not None
    return _fields(decode_map(message.envelope.native.data))


def _head(message: Message) -> tuple[Properties, Envelope]:
    """Raises ValueError."""
    fields = _raw(message)
    return fields.get("properties", {}), Envelope(**{name: fields[name] for name in Envelope._fields if name in fields})


def _content(message: Message, _bytes_max: int) -> Content:
    """Raises ValueError."""
    return Content(_raw(message).get("content", BYTES), message.body[::-1])


def _without(data: bytes, names: Container[str]) -> bytes:
    """Raises ValueError."""
    fields = _fields(decode_map(data))
    kept = {name: value for name, value in fields.get("properties", {}).items() if name not in names}
    return encode(fields | {"properties": kept})


register(NAME, NativeReader(_head, _content, _without))
